"""`make docs` builds the site without warnings, and its reference has an entry for every public name."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = (
    "torchelmo",
    "torchelmo.lm",
    "torchelmo.tasks",
    "torchelmo.analysis",
    "torchelmo.bulk",
    "torchelmo.compat.allennlp",
    "torchelmo.errors",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, in a folder outside the repository."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", folder / "doctrees"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [*command, ROOT / "docs", folder / "html"], capture_output=True, text=True, check=False, env=environment
    )
    assert run.returncode == 0, run.stderr
    return folder / "html"


@pytest.mark.slow
def test_every_public_name_has_a_reference_entry(site):
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    entries = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    missing = [name for module in MODULES for name in public_names(module) if name not in entries]
    assert not missing, f"docs/reference/python.md has no entry for {', '.join(missing)}."


@pytest.mark.slow
def test_every_command_has_a_reference_entry(site):
    from pinned.make_pins import walk_commands

    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    commands = [" ".join(words) for words, command in walk_commands() if not hasattr(command, "commands")]
    assert len(commands) > 10
    for command in commands:
        if command.startswith("analyze "):  # a second name of analyse
            continue
        assert f"torchelmo {command}<" in page


def public_names(module):
    """Return the full names in `__all__`, or all classes and functions that the module defines."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None)
    if names is None:
        names = [name for name, value in vars(loaded).items() if getattr(value, "__module__", "") == module]
    return [f"{module}.{name}" for name in names if not name.startswith("_")]
