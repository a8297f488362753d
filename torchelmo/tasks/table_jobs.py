"""The runs of a table, each in a process of its own, so that runs at the same time share nothing."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchelmo.files import explaining
from torchelmo.progress import progress
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.resume import find_finished

_LOOK_SECONDS = 0.05


class Job(NamedTuple):
    """One run: a cell of the table with one seed."""

    file: Path
    settings: Sequence[str]  # changes of the file, as for --set
    config: TaskConfig  # the two together

    def is_finished(self) -> bool:
        return find_finished(self.config) is not None

    def start(self, threads: int) -> "subprocess.Popen[bytes]":
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

    def failure(self) -> str:
        """What went wrong in a run that has ended, or nothing."""
        if self.is_finished():
            return ""
        said = (self.config.out / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{self.config.out}: {said[-1] if said else 'It said nothing.'} All it said is in log.txt there."


def run_jobs(jobs: Sequence[Job], n_at_once: int, *, threads: int) -> list[str]:
    """Run all of them; what went wrong, one message for each that failed. They end with this process."""
    waiting, failures = list(jobs), []
    running: dict[subprocess.Popen[bytes], Job] = {}
    try:
        with progress("table", len(jobs), unit="runs") as advance:
            while waiting or running:
                while waiting and len(running) < n_at_once:
                    job = waiting.pop(0)
                    running[job.start(threads)] = job
                time.sleep(_LOOK_SECONDS)
                for process in [process for process in running if process.poll() is not None]:
                    failures.append(running.pop(process).failure())
                    advance(1)
    finally:
        for process in running:
            process.terminate()  # it saves where it stands after its step
        for process in running:
            with contextlib.suppress(KeyboardInterrupt):
                process.wait()
    return [failure for failure in failures if failure]
