"""The processes of a table: one per task run, and one per biLM that a column needs."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from torchelmo.errors import TorchelmoError
from torchelmo.files import os_errors_as_output_error
from torchelmo.progress import progress
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.runner import find_finished, flat_settings
from torchelmo.tasks.task import Result

Process: TypeAlias = subprocess.Popen[bytes]
T = TypeVar("T")
_POLL_SECONDS = 0.05
# Settings that have no effect on the result of a run.
_WITHOUT_EFFECT = frozenset(
    "out checkpoint_every threads device elmo.memory_mb elmo.disk_mb elmo.cache elmo.cache_mb".split()
)


class JobOutcome(NamedTuple):
    """The state of a run: its result, the reason why it failed, or neither if it is not finished."""

    result: Result | None = None
    failure: str = ""


class Job(Protocol):
    """Something that runs as a process of its own."""

    def start(self, threads: int) -> Process:
        """Start the process. Its output is appended to log.txt in its folder."""

    def outcome_of_process(self, code: int) -> JobOutcome:
        """Return the outcome after the process has ended; a failure is explained by the last line of its log."""


J = TypeVar("J", bound=Job)


class BilmJob(NamedTuple):
    """Pre-training of a biLM that one or more columns use. A finished run ends at once."""

    file: Path  # a configuration of `torchelmo pretrain`
    out: Path

    def exists(self) -> bool:
        """Return whether there is a biLM in the folder; it may be of an unfinished run."""
        return (self.out / "config.json").exists()

    def start(self, threads: int) -> Process:
        """Start the run as a separate process. Its output is appended to log.txt in the folder of the run."""
        settings = [f"out={json.dumps(str(self.out))}", f"threads={threads}"]
        return _start(["pretrain", str(self.file), "--resume"], settings, self.out, threads, log=f"{self.out}.log")

    def outcome_of_process(self, code: int) -> JobOutcome:
        """Return a failure if the run did not end well: an unfinished run leaves a biLM, too."""
        return JobOutcome(failure=_last_line(self.out, Path(f"{self.out}.log"))) if code else JobOutcome()


class TaskJob(NamedTuple):
    """One run: a cell of the table with one seed."""

    file: Path
    settings: Sequence[str]  # changes of the file, as for --set
    config: TaskConfig  # the two together
    bilm: BilmJob | None = None  # the biLM that the table trains for this run

    def outcome_on_disk(self) -> JobOutcome:
        """Return what the folder of the run holds. A different or damaged run there is a failure of this job only."""
        try:
            return JobOutcome(find_finished(self.config))
        except TorchelmoError as error:
            return JobOutcome(failure=str(error))

    def start(self, threads: int) -> Process:
        """Start the run as a separate process. Its output is appended to log.txt in the folder of the run."""
        command = ["task", "train", self.config.task, "--config", str(self.file), "--resume"]
        return _start(command, self.settings, self.config.out, threads)

    def outcome_of_process(self, code: int) -> JobOutcome:
        """Return the outcome of a run whose process has ended; a failure is explained by the last line of its log."""
        outcome = self.outcome_on_disk()
        return JobOutcome(failure=_last_line(self.config.out)) if outcome == JobOutcome() else outcome


def run_name(config: TaskConfig) -> str:
    """Return a name for a run that is the same for equal settings: the task and a hash of what affects the result."""
    settings = {name: value for name, value in flat_settings(config).items() if name not in _WITHOUT_EFFECT}
    if config.elmo.place == "none":  # then the other settings of ELMo have no effect
        settings = {name: value for name, value in settings.items() if not name.startswith("elmo.")}
    return f"{config.task}-{hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]}"


def run_jobs(jobs: Sequence[J], n_parallel: int, *, threads: int) -> Generator[tuple[J, JobOutcome], None, None]:
    """Run all jobs, `n_parallel` at a time, and yield each with its outcome when it has ended.

    Closing the generator ends the jobs that still run.
    """
    if not jobs:
        return
    failures: dict[int, str] = {}  # jobs that could not be started

    def start(number: int) -> Process | None:
        try:
            return jobs[number].start(threads)
        except TorchelmoError as error:
            failures[number] = str(error)
            return None

    with (
        progress("table", len(jobs), unit="runs") as advance,
        contextlib.closing(run_processes(range(len(jobs)), start, n_parallel)) as ended,
    ):
        for number, process in ended:
            advance(1)
            if process is None:
                yield jobs[number], JobOutcome(failure=failures[number])
            else:
                yield jobs[number], jobs[number].outcome_of_process(process.returncode)


def run_processes(
    items: Iterable[T], start: Callable[[T], Process | None], n_parallel: int
) -> Generator[tuple[T, Process | None], None, None]:
    """Start a process for each item, `n_parallel` at a time, and yield each item when its process has ended.

    Closing the generator terminates the processes that still run and waits for them.

    Args:
        items: The items.
        start: Starts the process of an item, or returns None if there is nothing to wait for.
        n_parallel: How many processes run at the same time.

    Yields:
        The item and its process, or None if `start` returned None.
    """
    waiting = deque(items)
    running: dict[Process, T] = {}
    try:
        while waiting or running:
            while waiting and len(running) < n_parallel:
                item = waiting.popleft()
                process = start(item)
                if process is None:
                    yield item, None
                else:
                    running[process] = item
            time.sleep(_POLL_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                yield running.pop(process), process
    finally:
        for process in running:
            process.terminate()  # a run saves a checkpoint after its current step
        for process in running:
            with contextlib.suppress(KeyboardInterrupt):
                process.wait()


def _start(
    command: Sequence[str], settings: Sequence[str], out: Path, threads: int, log: str | Path | None = None
) -> Process:
    """Run `torchelmo COMMAND` with changed settings as a process of its own."""
    path = Path(log or out / "log.txt")
    with os_errors_as_output_error(out):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            # A new session: Ctrl-C reaches only the table, which then asks its runs to stop.
            return subprocess.Popen(
                [sys.executable, "-m", "torchelmo", *command, *(p for item in settings for p in ("--set", item))],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                start_new_session=True,
            )


def _last_line(out: Path, path: Path | None = None) -> str:
    path = path or out / "log.txt"
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else "The run produced no output."
    return f"{out}: {last} The full output is in {path.name} in that folder."
