"""experiments/Makefile, by which every figure can be had again: its commands, options and files exist."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from command_lines import check_command, check_options

ROOT = Path(__file__).parent.parent
MAKEFILE = ROOT / "experiments" / "Makefile"
TARGETS = re.findall(r"^([a-z-]+):.*##", MAKEFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.fixture
def elsewhere(tmp_path):
    """A folder with the files that make wants to see there, empty."""
    for name in ("wiki", "books"):
        path = tmp_path / "data" / "text" / f"{name}.txt.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def make(*words, folder):
    # `make test` hands its own settings on to every make below it.
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-f", MAKEFILE, *words]
    return subprocess.run(command, cwd=folder, env=outside, check=True, capture_output=True, text=True).stdout


def test_it_lists_what_it_can_do():
    assert [line.split()[0] for line in make(folder=ROOT).splitlines()] == TARGETS


@pytest.mark.parametrize("target", TARGETS[1:])
def test_commands_options_and_files_exist(target, elsewhere, monkeypatch, capsys):
    planned = make("-n", target, folder=elsewhere).replace("\\\n", " ")
    calls = [shlex.split(line) for line in planned.splitlines() if line.startswith(".venv/bin/")]
    assert calls
    for program, *words in calls:
        assert all((ROOT / word).exists() for word in words if word.startswith("experiments/"))
        if program == ".venv/bin/torchelmo":
            check_command(["torchelmo", *words], monkeypatch, capsys)
        elif program == ".venv/bin/torchrun":
            check_command(words[words.index("torchelmo") :], monkeypatch, capsys)
        else:
            script = f"{words[1].replace('.', '/')}.py" if words[0] == "-m" else words[0]
            check_options(words, (ROOT / script).read_text(encoding="utf-8"))
