"""The runs of a table, each in a process of its own, so that runs at the same time share nothing."""

import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from torchelmo.errors import TorchelmoError
from torchelmo.files import explaining
from torchelmo.progress import progress
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.result import Result
from torchelmo.tasks.resume import find_finished

Process: TypeAlias = subprocess.Popen[bytes]
T = TypeVar("T")

_LOOK_SECONDS = 0.05


class Outcome(NamedTuple):
    """What there is of a run: its result, or what is wrong with it, or neither if it has steps left to take."""

    result: Result | None = None
    failure: str = ""


class Job(NamedTuple):
    """One run: a cell of the table with one seed."""

    file: Path
    settings: Sequence[str]  # changes of the file, as for --set
    config: TaskConfig  # the two together

    def look(self) -> Outcome:
        """A folder that holds another run, or a damaged one, is a failure of this job and of no other."""
        try:
            return Outcome(find_finished(self.config))
        except TorchelmoError as error:
            return Outcome(failure=str(error))

    def start(self, threads: int) -> Process:
        """What it says goes into log.txt beside the run."""
        command = [sys.executable, "-m", "torchelmo", "task", "train", self.config.task, "--config", str(self.file)]
        command += ["--resume", *(part for item in self.settings for part in ("--set", item))]
        with explaining(self.config.out):
            self.config.out.mkdir(parents=True, exist_ok=True)
            with (self.config.out / "log.txt").open("ab") as log:
                # A session of its own: a Ctrl-C is for the table, which then asks its runs to stop.
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                    start_new_session=True,
                )

    def ended(self) -> Outcome:
        """What came of a run that was started and is over."""
        found = self.look()
        if found.result is not None or found.failure:
            return found
        said = (self.config.out / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = said[-1] if said else "It said nothing."
        return Outcome(failure=f"{self.config.out}: {last} All it said is in log.txt there.")


def run_jobs(jobs: Sequence[Job], n_at_once: int, *, threads: int) -> list[Outcome]:
    """Run all of them; what came of each, in their order. They end with this process."""
    found = [Outcome()] * len(jobs)

    def start(number: int) -> Process | None:
        try:
            return jobs[number].start(threads)
        except TorchelmoError as error:
            found[number] = Outcome(failure=str(error))
            return None

    with (
        progress("table", len(jobs), unit="runs") as advance,
        contextlib.closing(at_once(range(len(jobs)), start, n_at_once)) as ended,
    ):
        for number, process in ended:
            if process is not None:
                found[number] = jobs[number].ended()
            advance(1)
    return found


def at_once(
    items: Iterable[T], start: Callable[[T], Process | None], n: int
) -> Generator[tuple[T, Process | None], None, None]:
    """Start a process for each item, `n` of them at once; each as it ends, or None where `start` gave none.

    Closing it ends those that still run.
    """
    waiting = deque(items)
    running: dict[Process, T] = {}
    try:
        while waiting or running:
            while waiting and len(running) < n:
                item = waiting.popleft()
                process = start(item)
                if process is None:
                    yield item, None
                else:
                    running[process] = item
            time.sleep(_LOOK_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                yield running.pop(process), process
    finally:
        for process in running:
            process.terminate()  # it saves where it stands after its step
        for process in running:
            with contextlib.suppress(KeyboardInterrupt):
                process.wait()
