"""`make docs` builds the site without warnings, and its reference has an entry for every public name."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import all_pages, read_blocks

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torchelmo"


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
    modules = public_modules()
    assert {"torchelmo", "torchelmo.lm", "torchelmo.tasks", "torchelmo.errors"} <= set(modules)
    wanted = {name for module in modules for name in public_names(module)} | set(names_in_pages())
    missing = sorted(wanted - entries)
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


def public_modules():
    """Return the modules of the package that say what is public in `__all__`, and the module of errors."""
    files = [file for file in PACKAGE.rglob("*.py") if re.search(r"^__all__\b", file.read_text("utf-8"), re.MULTILINE)]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files}
    return sorted(names | {"torchelmo.errors"})


def names_in_pages():
    """Yield the full names that the code blocks of the documentation import from the package."""
    for page in all_pages():
        for block in read_blocks(page):
            for node in ast.walk(ast.parse(block.text)) if block.language == "python" else ():
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torchelmo":
                    module = importlib.import_module(node.module)
                    names = [alias.name for alias in node.names]
                    yield from (f"{node.module}.{n}" for n in names if not inspect.ismodule(getattr(module, n)))


def public_names(module):
    """Return the full names in `__all__`, or all classes and functions that the module defines."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None)
    if names is None:
        names = [name for name, value in vars(loaded).items() if getattr(value, "__module__", "") == module]
    return [f"{module}.{name}" for name in names if not name.startswith("_")]
