"""Show the progress of a long job: a bar on a terminal, a log line every few seconds elsewhere."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

Advance = Callable[[int], None]

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def progress(
    what: str, total: int | None = None, *, done: int = 0, unit: str = "sentences", every: float = 10.0
) -> Iterator[Advance]:
    """Show the progress of the block.

    Args:
        what: The name of the job.
        total: The number of units, if it is known; then the remaining time is shown too.
        done: The number of units that an earlier run has done.
        unit: The name of the counted items, in the plural.
        every: Seconds between two log lines.

    Yields:
        A function to call with the number of units just done.

    >>> with progress("embed", total=3) as advance:
    ...     for _ in range(3):
    ...         advance(1)
    """
    show = _bar if sys.stderr.isatty() else _log_lines
    with show(what, total, done, unit, every) as advance:
        yield advance


def describe(done: int, total: int | None, unit: str, rate: float) -> str:
    """Return the progress in words.

    >>> describe(4096, 10000, "lines", 200.0)
    '4,096 of 10,000 lines, 200/s, 0:00:29 left'
    """
    so_far = f"{done:,} of {count(total, unit)}" if total is not None else count(done, unit)
    left = f", {timedelta(seconds=int((total - done) / rate))} left" if total is not None and rate > 0 else ""
    return f"{so_far}, {_short(rate)}/s{left}"


def count(n: int, unit: str) -> str:
    """Return a number with its unit, which is given in the plural.

    >>> count(1, "lines"), count(1200, "lines"), count(1, "batches")
    ('1 line', '1,200 lines', '1 batch')
    """
    if n == 1:
        unit = unit.removesuffix("es" if unit.endswith(("ches", "sses")) else "s")
    return f"{n:,} {unit}"


@contextlib.contextmanager
def _log_lines(what: str, total: int | None, done: int, unit: str, every: float) -> Iterator[Advance]:
    start = last = time.monotonic()
    before = done

    def advance(n: int) -> None:
        nonlocal done, last
        done += n
        now = time.monotonic()
        if now - last >= every:
            last = now
            _logger.info("%s: %s", what, describe(done, total, unit, (done - before) / (now - start)))

    yield advance
    seconds = time.monotonic() - start
    if done > before:
        rate = (done - before) / seconds if seconds else 0.0
        _logger.info("%s: %s in %.1f s, %s/s", what, count(done - before, unit), seconds, _short(rate))


@contextlib.contextmanager
def _bar(what: str, total: int | None, done: int, unit: str, every: float) -> Iterator[Advance]:
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Rate(rich.ProgressColumn):
        def render(self, task: rich.Task) -> Text:
            return Text("" if task.speed is None else f"{_short(task.speed)}/s")

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn(unit),
        Rate(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda n: bar.advance(task, n)


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
