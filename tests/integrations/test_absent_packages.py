"""An absent package is an error that names the extra."""

import importlib
import sys

import pytest
from facts import mentions

from torchelmo.errors import MissingPackageError

PACKAGES = {"sklearn": "sklearn", "sentence_transformers": "sentence-transformers"}


@pytest.mark.parametrize("name", PACKAGES)
def test_the_error_names_the_extra(name, monkeypatch):
    for loaded in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)  # its import fails
    monkeypatch.delitem(sys.modules, f"torchelmo.integrations.{name}", raising=False)
    with pytest.raises(MissingPackageError, match=mentions(f"pip install 'torchelmo[{PACKAGES[name]}]'")):
        importlib.import_module(f"torchelmo.integrations.{name}")
