"""Imports go one way: a file imports only from its own step and from the steps before it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchelmo

PACKAGE = Path(torchelmo.__file__).parent

# The parts of the package in the order of the flow: each may import itself and the parts before it.
ORDER = [
    "errors",
    "files",
    "config",
    "tensors",
    "progress",
    "runtime",
    "text",
    "bilm",
    "formats",
    "mix",
    "embedder",
    "elmo",
    "runs",
    "lm",
    "tasks",
    "analysis",
    "bulk",
    "compat",
    "cli",
]
CORE = ORDER[: ORDER.index("elmo") + 1]
WHOLE = "torchelmo"  # the package by its public names, which are those of the core
ALLOWED: dict[str, list[str]] = {
    part: [*ORDER[:place], *([WHOLE] if place >= len(CORE) else [])] for place, part in enumerate(ORDER)
}
ALLOWED |= {"pretrained": [], "__init__": CORE, "__main__": ["cli"]}

# Half a second or more each, or not installed everywhere: imported where they are used.
LATE = ["h5py", "safetensors", "spacy", "typer", "rich", "tensorboard", "matplotlib", "scipy", "sklearn", "pandas"]


def test_every_file_imports_only_from_earlier_steps():
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    problems = [line for file in files for line in violations(file, PACKAGE)]
    assert not problems, "\n".join(["Imports must go one way:", *problems])


@pytest.mark.parametrize(
    "source",
    [
        "from torchelmo.elmo import Elmo",
        "import torchelmo.elmo",
        "from torchelmo import elmo",
        "def late():\n    from torchelmo.lm.loop import train",
    ],
)
def test_an_import_from_a_later_step_is_named(tmp_path, source):
    file = write(tmp_path, "bilm/model.py", source)
    (problem,) = violations(file, tmp_path / "torchelmo")
    assert problem.startswith(f"torchelmo/bilm/model.py:{source.count(chr(10)) + 1}: bilm imports ")


def test_the_core_does_not_import_the_package_as_a_whole(tmp_path):
    file = write(tmp_path, "bilm/model.py", "import torchelmo\nfrom torchelmo import Elmo")
    assert len(violations(file, tmp_path / "torchelmo")) == 2


def test_relative_imports_are_refused(tmp_path):
    file = write(tmp_path, "bilm/model.py", "from ..errors import InputError")
    (problem,) = violations(file, tmp_path / "torchelmo")
    assert "absolute" in problem


def test_a_new_part_of_the_package_must_be_given_a_place(tmp_path):
    file = write(tmp_path, "novelty.py", "import torch")
    (problem,) = violations(file, tmp_path / "torchelmo")
    assert "ALLOWED" in problem


def test_imports_from_earlier_steps_pass(tmp_path):
    source = "import torch\nfrom torchelmo.bilm.lstm import LSTMState\nfrom torchelmo.text import characters"
    file = write(tmp_path, "bilm/model.py", source)
    assert violations(file, tmp_path / "torchelmo") == []


def test_importing_the_package_imports_nothing_optional_or_slow():
    code = f"import sys, torchelmo; print(*[name for name in {LATE} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # torch may bring some of them by itself; only what torchelmo adds counts.
    alone = subprocess.run(
        [sys.executable, "-c", code.replace("torchelmo", "torch")], capture_output=True, text=True, check=True
    )
    assert set(run.stdout.split()) - set(alone.stdout.split()) == set()


def violations(file: Path, package: Path) -> list[str]:
    """One line for each import in `file` that is not allowed."""
    where = file.relative_to(package.parent)
    part = where.parts[1].removesuffix(".py")
    if part not in ALLOWED:
        return [f"{where}: {part} has no place in ALLOWED; say there what it may import."]
    problems = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            problems.append(f"{where}:{node.lineno}: imports are absolute: from torchelmo… import …")
        for name in imported_parts(node):
            if name != part and name not in ALLOWED[part]:
                may = ", ".join(ALLOWED[part]) or "nothing else of the package"
                problems.append(f"{where}:{node.lineno}: {part} imports {name}, but may import only: {may}.")
    return problems


def imported_parts(node: ast.AST) -> Iterator[str]:
    """The parts of torchelmo that an import statement names; WHOLE for its public names."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module == "torchelmo":
        # `from torchelmo import x` is a part if there is one of this name, else a public name of the package.
        names = [f"torchelmo.{alias.name}" if alias.name in ALLOWED else WHOLE for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        names = [node.module]
    else:
        names = []
    for name in names:
        top, _, rest = name.partition(".")
        if top == "torchelmo":
            yield rest.partition(".")[0] or WHOLE


def write(folder: Path, name: str, source: str) -> Path:
    file = folder / "torchelmo" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    return file
