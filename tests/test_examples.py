"""The scripts in examples/ run."""

import runpy
import sys
import warnings
from pathlib import Path

import pytest
from forks import run_forked

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_runs(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.syspath_prepend(script.parent)
    output, errors = tmp_path / "output.txt", tmp_path / "errors.txt"

    def run():
        sys.stdout, sys.stderr = output.open("w"), errors.open("w")
        warnings.simplefilter("error")
        runpy.run_path(str(script), run_name="__main__")
        sys.stdout.close()

    assert run_forked(run) == 0, errors.read_text()
    assert output.read_text()
