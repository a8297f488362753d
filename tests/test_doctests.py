"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import torchelmo

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(torchelmo.__path__, "torchelmo.")
    if not module.name.endswith("__main__")  # importing it is harmless, but it has no examples
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) >= 5
