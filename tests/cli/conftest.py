"""The command line, called in this process or in one of its own, and a tiny model for it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from torchelmo.cli import main

LINES = [
    "I took a bow",
    "bow and arrow",
    "",
    "Zürich and 東京 are places far from here .",
    "bow and arrow",
    "one",
    "   ",
    "the last of them",
]
# The real program, which commits after every line.
COMMITTING = "import torchelmo.bulk.job as job; job.COMMIT_SECONDS = 0.0; from torchelmo.cli import main; main()"


@pytest.fixture(autouse=True, scope="session")
def _heed_ctrl_c() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would the programs that these tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`torchelmo …` in this process."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        return Outcome(int(end.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def start() -> Callable[..., "subprocess.Popen[str]"]:
    """`torchelmo …` in a process of its own, with pipes."""

    def start(*arguments: object, **options: object) -> "subprocess.Popen[str]":
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen(
            [sys.executable, "-c", COMMITTING, *map(str, arguments)],
            text=True,
            encoding="utf-8",
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            **pipes,  # type: ignore[call-overload]
        )

    return start


@pytest.fixture(scope="session")
def model(bilm_folder: Path) -> Path:
    return bilm_folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    return path
