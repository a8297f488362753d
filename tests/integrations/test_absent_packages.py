"""An absent package is an error that names the extra, and `import torchelmo` loads none of them."""

import importlib
import subprocess
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


def test_importing_the_package_and_its_classes_loads_no_integration():
    code = (
        "import sys, torch; before = set(sys.modules); import torchelmo; torchelmo.SentenceEncoder, torchelmo.Elmo; "
        "import torchelmo.integrations; names = ['sklearn', 'sentence_transformers', 'transformers', 'gensim', "
        "'spacy', 'pandas']; print(*[name for name in names if name in set(sys.modules) - before])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
