"""A reader who follows one call opens few files of the package: three walks, traced in processes of their own."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from trace_files import tracing

import torchelmo
from torchelmo.cli import main

# Package files in which a function ran. Budgets may only go down.
BUDGETS = {"embed": 13, "pretrain": 34, "task train ner": 44}

ROOT = Path(torchelmo.__file__).parents[1]
TRACER = Path(__file__).with_name("trace_files.py")

NAMES = "Ann Bob Eve Gus Ida Jim".split()
PRETRAIN = """\
data = "data"
out = "run"
steps = 3
batch_size = 4
unroll = 5
negatives = 6
log_every = 1
tensorboard = false

[model]
max_characters = 8
char_dim = 4
filters = [[1, 4], [2, 4]]
n_highway = 1
projection_dim = 6
cell_dim = 8
"""
NER = [
    *["--train", "train.conll", "--dev", "dev.conll", "--out", "run", "--elmo", "input"],
    *["--set", "epochs=1", "--set", "words.dim=5", "--set", "words.min_count=1"],
    *["--set", "characters.n_filters=4", "--set", "model.hidden_dims=[4,4]"],
]


class Pretrained(NamedTuple):
    folder: Path  # of the tiny model
    walk: tuple[set[str], str]  # files, output


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Pre-train a tiny model, and trace it."""
    folder = tmp_path_factory.mktemp("pretrain")
    for name, n in (("text", 60), ("heldout", 6)):
        text = "".join(f"{NAMES[i % 6]} sees {NAMES[i % 5]} and the dog .\n" for i in range(n))
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    (folder / "run.toml").write_text(PRETRAIN, encoding="utf-8")
    files = [folder / "text.txt", "--heldout", folder / "heldout.txt", "--out", folder / "data"]
    settings = ["--pretokenized", "--vocab-size", "30", "--max-characters", "8", "--workers", "1"]
    with pytest.raises(SystemExit) as end:
        main(["prepare", *map(str, files), *settings])
    assert not end.value.code
    return Pretrained(folder / "run", walk(folder, "pretrain", "run.toml"))


@pytest.mark.slow
def test_embed(tmp_path):
    files, _ = walk(tmp_path, "embed")
    assert "elmo.py" in files
    check("embed", files)


@pytest.mark.slow
@pytest.mark.xdist_group("walks")
def test_pretrain(pretrained):
    files, printed = pretrained.walk
    assert "perplexity" in printed  # the held-out text is part of the walk
    check("pretrain", files)


@pytest.mark.slow
@pytest.mark.xdist_group("walks")
def test_task_train_ner(pretrained, tmp_path):
    """With a model that has a softmax and a vocabulary, as those that users have."""
    rows = [[(NAMES[i % 6], "B-PER"), ("sees", "O"), (NAMES[i % 5], "B-PER"), (".", "O")] for i in range(12)]
    blocks = ["".join(f"{word} {tag}\n" for word, tag in row) for row in rows]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text("\n".join(blocks), encoding="utf-8")
    files, printed = walk(tmp_path, "task", "train", "ner", *NER, "--model", str(pretrained.folder))
    assert "gamma" in printed  # ELMo is part of the walk
    check("task train ner", files)


def test_a_walk_over_its_budget_names_its_files():
    files = {f"file_{i}.py" for i in range(BUDGETS["embed"] + 1)}
    with pytest.raises(AssertionError, match=r"file_\d+.py"):
        check("embed", files)


def test_the_trace_holds_functions_of_the_package_in_all_threads(tmp_path):
    """Code that runs at import, and files elsewhere, do not count."""
    sources = {
        "package/called.py": "def f(): pass",
        "package/in_thread.py": "def f(): pass",
        "package/imported.py": "class C:\n    x = 1\ndef f(): pass",
        "elsewhere.py": "def f(): pass",
    }
    (tmp_path / "package").mkdir()
    with tracing(tmp_path / "package") as found:
        made = {}
        for name, source in sources.items():
            exec(compile(source, str(tmp_path / name), "exec"), made.setdefault(name, {}))
        made["package/called.py"]["f"]()
        made["elsewhere.py"]["f"]()
        thread = threading.Thread(target=made["package/in_thread.py"]["f"])
        thread.start()
        thread.join()
    assert found == {"called.py", "in_thread.py"}


def check(name: str, files: set[str]) -> None:
    listing = "\n".join(f"  {file}" for file in sorted(files))
    assert len(files) <= BUDGETS[name], f"{name}: {len(files)} files, budget {BUDGETS[name]}:\n{listing}"


def walk(folder: Path, *arguments: str) -> tuple[set[str], str]:
    """Return the files and the output of one walk, traced in a process that runs in `folder`."""
    # One thread: the small models need no more, and the walk is the same on every machine.
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, str(TRACER), "files.json", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return set(json.loads((folder / "files.json").read_text(encoding="utf-8"))), done.stdout
