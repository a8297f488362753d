"""Run fuzz cases of one target and classify each: defined result, torchelmo's own error, or a failure."""

import contextlib
import logging
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.errors import TorchelmoError

SECONDS = 5.0  # a case that takes longer counts as a hang
MEGABYTES = 1000  # a case that needs more counts as a failure


class SilentlyWrongError(Exception):
    """A damaged input was accepted and changed the result."""


class Target(NamedTuple):
    """One kind of input."""

    name: str
    make: Callable[[Path], Any]  # writes a good input into a folder and returns what `run` needs beside it
    mutate: Callable[[Path, random.Random], str]  # damages it, and returns a description
    run: Callable[[Path, Any, random.Random], None]  # uses it; raises SilentlyWrongError if a check fails
    share: float = 1.0  # of the cases of a run; less for targets whose cases take long


class Failure(NamedTuple):
    """One case that did not end in a defined way."""

    target: str
    case: int  # the seed of the case: `python -m fuzz TARGET --case N` repeats it
    kind: str
    change: str
    detail: str


class Outcome(NamedTuple):
    """The count of each kind of result, and the failures."""

    counts: Counter[str]
    failures: list[Failure]


def run_target(
    target: Target,
    *,
    first: int,
    count: int,
    seconds: float = float("inf"),
    report: Callable[[str, Failure | None], None] = lambda kind, failure: None,
) -> Outcome:
    """Run cases `first` … `first + count − 1`, or as many as there is time for once the good input is made.

    `report` is called with "start" when the good input is made, and then with the result of each case.
    """
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    with tempfile.TemporaryDirectory(prefix="torchelmo-fuzz-", dir=memory_folder()) as root, _quiet():
        good = Path(root) / "good"
        good.mkdir()
        extra = target.make(good)
        if count > 1:  # the first call imports and prepares; that is no part of the time of a case
            _run_case(target._replace(mutate=lambda folder, rng: "nothing"), good, extra, Path(root) / "case", -1)
        report("start", None)
        start = time.monotonic()
        for case in range(first, first + count):
            if time.monotonic() - start > seconds:
                break
            kind, change, detail = _run_case(target, good, extra, Path(root) / "case", case)
            if kind == "hang":  # the machine may have been busy: only a case that takes long twice is a failure
                kind, change, detail = _run_case(target, good, extra, Path(root) / "case", case)
            counts[kind] += 1
            failure = None
            if kind not in ("ok", "refused"):
                failure = Failure(target.name, case, kind, change[:500], detail[:2_000])
                failures.append(failure)
            report(kind, failure)
    return Outcome(counts, failures)


def memory_folder() -> str | None:
    """Return a folder of a file system in memory, where flushing to disk costs nothing; None if there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _run_case(target: Target, good: Path, extra: Any, folder: Path, case: int) -> tuple[str, str, str]:
    rng = random.Random(f"{target.name} {case}")
    _remove(folder)
    shutil.copytree(good, folder, symlinks=True)
    change = target.mutate(folder, rng)
    _reset_peak_memory()
    before, start = _peak_memory(), time.monotonic()
    try:
        with _alarm(2 * SECONDS):
            target.run(folder, extra, rng)
        kind, detail = "ok", ""
    except TorchelmoError as error:
        kind, detail = "refused", str(error)
        if len(detail) > 5_000:
            kind, detail = "message too long", detail[:200]
    except SilentlyWrongError as error:
        kind, detail = "silently wrong", str(error)
    except _HangError:
        kind, detail = "hang", "".join(traceback.format_exc().splitlines(keepends=True)[-6:])
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        kind, detail = (
            "exception",
            f"{type(error).__name__}: {str(error)[:200]} ({Path(where.filename).name}:{where.lineno})",
        )
    if kind in ("ok", "refused"):
        if time.monotonic() - start > SECONDS:
            kind, detail = "hang", f"{time.monotonic() - start:.1f} s"
        elif _peak_memory() - before > MEGABYTES:
            kind, detail = "memory", f"{_peak_memory() - before:.0f} MB"
    return kind, change, detail


class _HangError(BaseException):
    """Raised by the alarm; a BaseException, so that no `except Exception` swallows it."""


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise _HangError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence logs and warnings of cases."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(level)


def _peak_memory() -> float:
    """Return the largest memory of this process since the last reset, in MB."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _reset_peak_memory() -> None:
    """Let Linux forget the peak, so that every case is measured separately."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as command:
        command.write("5")


def _remove(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
