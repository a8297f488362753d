"""Imports go one way, without rings, and the package keeps the house limits on modules and folders."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

import torchelmo

PACKAGE = Path(torchelmo.__file__).parent

# The parts of the package in the order of the flow: each may import itself and the parts before it.
ORDER = [
    "lazy",
    "errors",
    "files",
    "unfinished",
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
    "sentences",
    "runs",
    "lm",
    "tasks",
    "analysis",
    "bulk",
    "compat",
    "integrations",
    "cli",
]
CORE = ORDER[: ORDER.index("sentences") + 1]
WHOLE = "torchelmo"  # the package by its public names, which are those of the core
ALLOWED: dict[str, list[str]] = {
    part: [*ORDER[:place], *([WHOLE] if place >= len(CORE) else [])] for place, part in enumerate(ORDER)
}
ALLOWED |= {"pretrained": [], "__init__": CORE, "__main__": ["cli"]}

MAX_MODULES = 158  # 117 without integrations, the hub, shards, studies of surprisal, hidden words and meaning change
MAX_LINES = 450  # of a module
MAX_MODULES_PER_FOLDER = 15  # without its subfolders

# Half a second or more each, or not installed everywhere: imported where they are used.
LATE = [
    "h5py",
    "safetensors",
    "spacy",
    "typer",
    "rich",
    "tensorboard",
    "matplotlib",
    "scipy",
    "sklearn",
    "pandas",
    "pyarrow",
    "ray",
    "datasets",
]


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


def test_imports_form_no_rings():
    found = rings(import_graph(PACKAGE))
    assert not found, f"These modules import each other in a ring: {[sorted(ring) for ring in found]}"


def test_a_ring_is_found(tmp_path):
    """Of four modules, three in a ring that a function-level import closes."""
    write(tmp_path, "__init__.py", "")
    write(tmp_path, "a.py", "import torchelmo.folder.b")
    write(tmp_path, "folder/__init__.py", "")
    write(tmp_path, "folder/b.py", "from torchelmo.folder import c")
    write(tmp_path, "folder/c.py", "def late():\n    from torchelmo.a import name")
    write(tmp_path, "d.py", "from torchelmo.a import name")
    graph = import_graph(tmp_path / "torchelmo")
    assert graph["torchelmo.folder.b"] == {"torchelmo.folder.c"}  # an edge to a submodule is none to its package
    assert rings(graph) == [{"torchelmo.a", "torchelmo.folder.b", "torchelmo.folder.c"}]


def test_a_ring_through_a_package_is_found(tmp_path):
    write(tmp_path, "folder/__init__.py", "from torchelmo.folder.b import name")
    write(tmp_path, "folder/b.py", "from torchelmo.folder import other_name")
    assert rings(import_graph(tmp_path / "torchelmo")) == [{"torchelmo.folder", "torchelmo.folder.b"}]


def test_two_rings_are_told_apart(tmp_path):
    for one, other in (("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")):
        write(tmp_path, f"{one}.py", f"import torchelmo.{other}" + ("\nimport torchelmo.c" if one == "a" else ""))
    found = rings(import_graph(tmp_path / "torchelmo"))
    assert sorted(map(sorted, found)) == [["torchelmo.a", "torchelmo.b"], ["torchelmo.c", "torchelmo.d"]]


@pytest.mark.parametrize("condition", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_imports_for_the_type_checker_make_no_ring(tmp_path, condition):
    write(tmp_path, "a.py", f"if {condition}:\n    from torchelmo.b import B\nelse:\n    import torchelmo.c")
    write(tmp_path, "b.py", "from torchelmo.a import A")
    write(tmp_path, "c.py", "")
    graph = import_graph(tmp_path / "torchelmo")
    assert graph["torchelmo.a"] == {"torchelmo.c"}
    assert rings(graph) == []


def test_the_package_has_few_modules():
    n_modules = len(list(PACKAGE.rglob("*.py")))
    assert n_modules <= MAX_MODULES, f"{n_modules} modules, at most {MAX_MODULES} are allowed."


def test_modules_are_short():
    lines = {str(file.relative_to(PACKAGE)): count_lines(file) for file in PACKAGE.rglob("*.py")}
    long = {name: n for name, n in lines.items() if n > MAX_LINES}
    assert not long, f"At most {MAX_LINES} lines are allowed: {long}"


def test_folders_hold_few_modules():
    folders = Counter(str(file.parent.relative_to(PACKAGE.parent)) for file in PACKAGE.rglob("*.py"))
    full = {name: n for name, n in folders.items() if n > MAX_MODULES_PER_FOLDER}
    assert not full, f"At most {MAX_MODULES_PER_FOLDER} modules are allowed: {full}"


def count_lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def import_graph(package: Path) -> dict[str, set[str]]:
    """Return for each module of `package` the modules that it imports, by their full names."""
    files = {module_name(file, package): file for file in sorted(package.rglob("*.py"))}
    return {
        name: {
            target
            for node in running_nodes(ast.parse(file.read_text(encoding="utf-8")))
            for target in imported_modules(node, files.keys())
        }
        for name, file in files.items()
    }


def module_name(file: Path, package: Path) -> str:
    """Return "torchelmo.bilm.model" for its file; a package has the name of its folder."""
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes below it, except those that only a type checker reads."""
    yield node
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        children: Iterator[ast.AST] = iter(node.orelse)
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from running_nodes(child)


def imported_modules(node: ast.AST, modules: Set[str]) -> Iterator[str]:
    """Yield those of `modules` that an import statement names: a submodule if there is one, else the module itself."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        for alias in node.names:
            submodule = f"{node.module}.{alias.name}"
            if submodule in modules:
                yield submodule
            elif node.module in modules:
                yield node.module


def rings(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import each other: strongly connected components, by Tarjan's algorithm."""
    index: dict[str, int] = {}  # the order in which modules were visited
    low: dict[str, int] = {}  # the earliest module on the stack that can be reached
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(graph.get(name, ())):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            start = stack.index(name)
            ring = set(stack[start:])
            del stack[start:]
            if len(ring) > 1 or name in graph[name]:
                found.append(ring)

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


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
