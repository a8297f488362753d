"""The plot of a table of experiments: one group of bars per task, with the standard deviation over seeds."""

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from torchelmo.config import load_config
from torchelmo.errors import ConfigError, TorchelmoError, TrainingError
from torchelmo.files import atomic_write, os_errors_as_output_error, write_json
from torchelmo.progress import progress
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.resume import find_finished
from torchelmo.tasks.trained import Result, Summary, summarise

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
        with os_errors_as_output_error(self.config.out):
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


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Column:
    """[[columns]]: one way to train every row; the first is what the others are compared with."""

    name: str
    set: tuple[str, ...] = ()  # "key=value" settings, after those of the row


@dataclass(frozen=True)
class Row:
    """[[rows]]: a configuration, and how it is called in the table."""

    name: str
    config: Path  # beside the table's file
    seeds: int = 3
    set: tuple[str, ...] = ()
    paper: str = ""  # the published increase, for comparison

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds must be at least 1, got {self.seeds}.")


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        for what, items in (("columns", self.columns), ("rows", self.rows)):
            names = [item.name for item in items]
            if not items or len({slug(name) for name in names} - {""}) < len(names):
                raise ConfigError(f"{what}: expected at least one, each with a name of its own; got {names}.")


class Cell(NamedTuple):
    row: Row
    column: Column
    summary: Summary | None  # None if it was left out


def read_table(path: str | Path) -> Table:
    return load_config(Table, path)


def run_table(
    path: Path, out: Path, *, settings: Sequence[str] = (), jobs: int = 1, columns: Sequence[str] = ()
) -> list[Cell]:
    """Run what is not there yet, `jobs` runs at a time with a share of the cores each, and write the table.

    `columns` names those to run; the others are shown if they were run before. A run that fails, or a folder that
    holds another run, does not stop the others: the table is written without it, and then it is an error.
    """
    table = read_table(path)
    unknown = [name for name in columns if name not in [column.name for column in table.columns]]
    if unknown:
        raise ConfigError(f"{path}: has no column {unknown[0]!r}; it has {[column.name for column in table.columns]}.")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    changes = [*settings, f"threads={threads}"]
    runs = [(c, job) for row in table.rows for c in table.columns for job in _jobs(path.parent, row, c, out, changes)]
    found = {job.config.out: job.look() for _, job in runs}
    wanted = [job for column, job in runs if not columns or column.name in columns]
    left = [job for job in wanted if found[job.config.out] == Outcome()]
    found |= {job.config.out: outcome for job, outcome in zip(left, run_jobs(left, jobs, threads=threads))}
    for job in (job for _, job in runs if job not in wanted and found[job.config.out].failure):
        log.warning("%s It is left out of the table.", found[job.config.out].failure)
    cells = [Cell(row, column, _summary(row, column, out, found)) for row in table.rows for column in table.columns]
    write_table(table, cells, out)
    failures = [found[job.config.out].failure for job in wanted if found[job.config.out].failure]
    if failures:
        raise TrainingError(f"{len(failures)} of {len(wanted)} runs failed. {' '.join(failures)}")
    return cells


def write_table(table: Table, cells: Sequence[Cell], out: Path) -> None:
    """table.md, table.json and, where matplotlib is installed, table.png."""
    with atomic_write(out / "table.md") as temporary:
        temporary.write_text(to_markdown(table, cells), encoding="utf-8")
    write_json(out / "table.json", _to_json(cells))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        log.info("No plot: it needs matplotlib, which comes with pip install 'torchelmo[tasks]'.")
        return

    draw(table, cells, out / "table.png")


def to_markdown(table: Table, cells: Sequence[Cell]) -> str:
    base, *others = table.columns
    found = {(cell.row.name, cell.column.name): cell.summary for cell in cells}
    header = ["task", "score", base.name]
    for column in others:
        header += [column.name, "increase (absolute / relative error)"]
    lines = [f"# {table.title}", "", _line([*header, "in the paper"]), _line(["---"] * (len(header) + 1))]
    for row in table.rows:
        first = found[row.name, base.name]
        known = next((found[row.name, c.name] for c in table.columns if found[row.name, c.name]), None)
        line = [row.name, known.results[0].metric if known else "", _mean(first, row.seeds)]
        for column in others:
            summary = found[row.name, column.name]
            line += [_mean(summary, row.seeds), _increase(first, summary)]
        lines.append(_line([*line, row.paper]))
    return "\n".join(lines) + "\n"


def relative_error_reduction(before: float, after: float) -> float:
    """Of scores in percent: how much of what was wrong is now right.

    >>> relative_error_reduction(90.0, 92.0)
    20.0
    """
    return 100.0 * (after - before) / (100.0 - before) if before < 100.0 else 0.0


def _jobs(beside: Path, row: Row, column: Column, out: Path, settings: Sequence[str]) -> Iterator[Job]:
    file = beside / row.config
    for seed in range(1, row.seeds + 1):
        folder = json.dumps(str(_folder(out, row, column, seed)), ensure_ascii=False)
        changes = (*row.set, *column.set, *settings, f"seed={seed}", f"out={folder}")
        yield Job(file, changes, load_config(TaskConfig, file, changes))


def _summary(row: Row, column: Column, out: Path, found: Mapping[Path, Outcome]) -> Summary | None:
    outcomes = [found[_folder(out, row, column, seed)] for seed in range(1, row.seeds + 1)]
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    return summarise(results) if results else None


def _folder(out: Path, row: Row, column: Column, seed: int) -> Path:
    return out / "runs" / slug(row.name) / slug(column.name) / f"seed-{seed}"


def slug(name: str) -> str:
    """
    >>> slug("Sentiment, SST-5")
    'sentiment-sst-5'
    """
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _mean(summary: Summary | None, n_seeds: int) -> str:
    if summary is None:
        return "–"
    metric, n_runs = summary.results[0].metric, len(summary.results)
    spread = f" ± {summary.sd[metric]:.2f}" if n_runs > 1 else ""
    short = f" ({n_runs} of {n_seeds} seeds)" if n_runs < n_seeds else ""
    return f"{summary.mean[metric]:.2f}{spread}{short}"


def _increase(base: Summary | None, summary: Summary | None) -> str:
    if base is None or summary is None:
        return "–"
    metric = base.results[0].metric
    before, after = base.mean[metric], summary.mean[metric]
    return f"{after - before:+.2f} / {relative_error_reduction(before, after):.1f} %"


def _to_json(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    return [
        {
            "row": cell.row.name,
            "column": cell.column.name,
            "mean": cell.summary.mean,
            "sd": cell.summary.sd,
            "runs": [result.plain() for result in cell.summary.results],
        }
        for cell in cells
        if cell.summary is not None
    ]


def draw(table: Table, cells: Sequence[Cell], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.2 + 1.5 * len(table.rows), 4.0), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(table.columns)
    for number, column in enumerate(table.columns):
        shown = [
            (place + (number - (len(table.columns) - 1) / 2) * width, cell.summary)
            for place, row in enumerate(table.rows)
            for cell in cells
            if cell.row.name == row.name and cell.column.name == column.name and cell.summary is not None
        ]
        metrics = [summary.results[0].metric for _, summary in shown]
        means = [summary.mean[metric] for (_, summary), metric in zip(shown, metrics)]
        spreads = [summary.sd[metric] for (_, summary), metric in zip(shown, metrics)]
        bars = axes.bar([x for x, _ in shown], means, width, yerr=spreads, capsize=3, label=column.name)
        axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
    axes.set_xticks(range(len(table.rows)), [row.name for row in table.rows], fontsize=8)
    axes.set_ylabel("score on dev (%)")
    axes.set_title(table.title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
