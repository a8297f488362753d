"""Tables of experiments: one run per row, column and seed; results as Markdown, JSON and a plot."""

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

from torchelmo.config import Config, PositiveInt, load_config
from torchelmo.errors import ConfigError, TorchelmoError, TrainingError
from torchelmo.files import atomic_write, os_errors_as_output_error, write_json
from torchelmo.formats.load import find_model
from torchelmo.progress import progress
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.runner import find_finished
from torchelmo.tasks.task import Result, Summary, summarize

log = logging.getLogger(__name__)
Process: TypeAlias = subprocess.Popen[bytes]
T = TypeVar("T")
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Column:
    """[[columns]]: one way to train every row. The others are compared with the first one."""

    name: str
    set: tuple[str, ...] = ()  # "key=value" settings, applied after those of the row


@dataclass(frozen=True)
class Row(Config):
    """[[rows]]: one configuration of a task."""

    name: str
    config: Path  # relative to the file of the table
    seeds: PositiveInt = 3
    set: tuple[str, ...] = ()
    paper: str = ""  # the published increase, for comparison


@dataclass(frozen=True)
class Table:
    """A table of experiments."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        for what, items in (("columns", self.columns), ("rows", self.rows)):
            names = [item.name for item in items]
            if not items or len({slug(name) for name in names} - {""}) < len(names):
                raise ConfigError(f"{what}: expected at least one, with distinct names; got {names}.")


class Cell(NamedTuple):
    """The results of one row and column."""

    row: Row
    column: Column
    summary: Summary | None  # None without a finished run


def read_table(path: str | Path) -> Table:
    """Read a table from a TOML file."""
    return load_config(Table, path)


def run_table(
    path: Path, out: Path, *, settings: Sequence[str] = (), jobs: int = 1, columns: Sequence[str] = ()
) -> list[Cell]:
    """Run the experiments of a table that are not finished yet, and write the table.

    A run that fails, or a folder that holds a different or damaged run, does not stop the others: the table is written
    without it, and the error is raised at the end.

    Args:
        path: The TOML file of the table.
        out: The folder for the runs, table.md, table.json and table.png.
        settings: "key=value" settings for every run.
        jobs: How many runs train at the same time. They share the cores.
        columns: The names of the columns to run. Other columns are shown if they were run before. Default: all.

    Returns:
        The cells, row by row.

    Raises:
        ConfigError: The table or one of its configurations is wrong. Nothing was run.
        MissingFileError: There is no such biLM. Nothing was run.
        TrainingError: Some runs failed. The message has the reason of each.
    """
    table = read_table(path)
    unknown = [name for name in columns if name not in [column.name for column in table.columns]]
    if unknown:
        raise ConfigError(f"{path}: has no column {unknown[0]!r}; it has {[column.name for column in table.columns]}.")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    settings = [*settings, f"threads={threads}"]
    runs = [
        (column, job)
        for row in table.rows
        for column in table.columns
        for job in _jobs(path.parent, row, column, out, settings)
    ]
    outcomes = {job.config.out: job.outcome_on_disk() for _, job in runs}
    wanted = [job for column, job in runs if not columns or column.name in columns]
    unfinished = [job for job in wanted if outcomes[job.config.out] == JobOutcome()]
    for model in {job.config.elmo.model for job in unfinished if job.config.elmo.place != "none"}:
        find_model(model or None)  # a wrong name is an error now, not after the first column
    for job, outcome in zip(unfinished, run_jobs(unfinished, jobs, threads=threads)):
        outcomes[job.config.out] = outcome
    for _, job in runs:
        if job not in wanted and outcomes[job.config.out].failure:
            log.warning("%s It is left out of the table.", outcomes[job.config.out].failure)
    cells = [Cell(row, column, _summary(row, column, out, outcomes)) for row in table.rows for column in table.columns]
    write_table(table, cells, out)
    failures = [outcomes[job.config.out].failure for job in wanted if outcomes[job.config.out].failure]
    if failures:
        reasons = " ".join(dict.fromkeys(failures))
        raise TrainingError(f"{len(failures)} of {len(wanted)} runs failed. {reasons}")
    return cells


class JobOutcome(NamedTuple):
    """The state of a run: its result, the reason why it failed, or neither if it is not finished."""

    result: Result | None = None
    failure: str = ""


class Job(NamedTuple):
    """One run: a cell of the table with one seed."""

    file: Path
    settings: Sequence[str]  # changes of the file, as for --set
    config: TaskConfig  # the two together

    def outcome_on_disk(self) -> JobOutcome:
        """Return what the folder of the run holds. A different or damaged run there is a failure of this job only."""
        try:
            return JobOutcome(find_finished(self.config))
        except TorchelmoError as error:
            return JobOutcome(failure=str(error))

    def start(self, threads: int) -> Process:
        """Start the run as a separate process. Its output is appended to log.txt in the folder of the run."""
        command = [sys.executable, "-m", "torchelmo", "task", "train", self.config.task, "--config", str(self.file)]
        command += ["--resume", *(part for item in self.settings for part in ("--set", item))]
        with os_errors_as_output_error(self.config.out):
            self.config.out.mkdir(parents=True, exist_ok=True)
            with (self.config.out / "log.txt").open("ab") as stream:
                # A new session: Ctrl-C reaches only the table, which then asks its runs to stop.
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                    start_new_session=True,
                )

    def outcome_of_process(self) -> JobOutcome:
        """Return the outcome of a run whose process has ended; a failure is explained by the last line of its log."""
        outcome = self.outcome_on_disk()
        if outcome != JobOutcome():
            return outcome
        path = self.config.out / "log.txt"
        log_lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = log_lines[-1] if log_lines else "The run produced no output."
        return JobOutcome(failure=f"{self.config.out}: {last} The full output is in log.txt in that folder.")


def run_jobs(jobs: Sequence[Job], n_parallel: int, *, threads: int) -> list[JobOutcome]:
    """Run all jobs, `n_parallel` at a time, and return their outcomes in order. They end with this process."""
    outcomes = [JobOutcome()] * len(jobs)
    if not jobs:
        return outcomes

    def start(number: int) -> Process | None:
        try:
            return jobs[number].start(threads)
        except TorchelmoError as error:
            outcomes[number] = JobOutcome(failure=str(error))
            return None

    with (
        progress("table", len(jobs), unit="runs") as advance,
        contextlib.closing(run_processes(range(len(jobs)), start, n_parallel)) as ended,
    ):
        for number, process in ended:
            if process is not None:
                outcomes[number] = jobs[number].outcome_of_process()
            advance(1)
    return outcomes


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


def write_table(table: Table, cells: Sequence[Cell], out: Path) -> None:
    """Write table.md, table.json and, if matplotlib is installed, table.png."""
    with atomic_write(out / "table.md") as temporary:
        temporary.write_text(to_markdown(table, cells), encoding="utf-8")
    write_json(out / "table.json", _to_json(cells))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        log.info("table.png was not drawn: it needs matplotlib. Install it with: pip install 'torchelmo[tasks]'")
        return
    plot_table(table, cells, out / "table.png")


def to_markdown(table: Table, cells: Sequence[Cell]) -> str:
    """Return the table in Markdown: the mean of every cell, and the increase over the first column."""
    base, *others = table.columns
    summaries = {(cell.row.name, cell.column.name): cell.summary for cell in cells}
    header = ["task", "score", base.name]
    for column in others:
        header += [column.name, "increase (absolute / relative error)"]
    lines = [f"# {table.title}", "", _markdown_row([*header, "in the paper"])]
    lines.append(_markdown_row(["---"] * (len(header) + 1)))
    for row in table.rows:
        of_row = {column.name: summaries[row.name, column.name] for column in table.columns}
        metric = next((summary.results[0].metric for summary in of_row.values() if summary), "")
        line = [row.name, metric, _mean(of_row[base.name], row.seeds)]
        for column in others:
            line += [_mean(of_row[column.name], row.seeds), _increase(of_row[base.name], of_row[column.name])]
        lines.append(_markdown_row([*line, row.paper]))
    return "\n".join(lines) + "\n"


def relative_error_reduction(before: float, after: float) -> float:
    """Return by how many percent the error 100 - score became smaller.

    >>> relative_error_reduction(90.0, 92.0)
    20.0
    """
    return 100.0 * (after - before) / (100.0 - before) if before < 100.0 else 0.0


def plot_table(table: Table, cells: Sequence[Cell], path: Path) -> None:
    """Draw one group of bars per row, with the standard deviation over the seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.2 + 1.5 * len(table.rows), 4.0), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(table.columns)
    for number, column in enumerate(table.columns):
        shown = [
            (position + (number - (len(table.columns) - 1) / 2) * width, cell.summary)
            for position, row in enumerate(table.rows)
            for cell in cells
            if cell.row.name == row.name and cell.column.name == column.name and cell.summary is not None
        ]
        metrics = [summary.results[0].metric for _, summary in shown]
        means = [summary.mean[metric] for (_, summary), metric in zip(shown, metrics)]
        deviations = [summary.sd[metric] for (_, summary), metric in zip(shown, metrics)]
        bars = axes.bar([x for x, _ in shown], means, width, yerr=deviations, capsize=3, label=column.name)
        axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
    axes.set_xticks(range(len(table.rows)), [row.name for row in table.rows], fontsize=8)
    axes.set_ylabel("score on dev (%)")
    axes.set_title(table.title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def slug(name: str) -> str:
    """Return a name as part of a path.

    >>> slug("Sentiment, SST-5")
    'sentiment-sst-5'
    """
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def _jobs(folder: Path, row: Row, column: Column, out: Path, settings: Sequence[str]) -> Iterator[Job]:
    """Yield the runs of a cell; `folder` is that of the table's file."""
    file = folder / row.config
    for seed in range(1, row.seeds + 1):
        run = json.dumps(str(_run_folder(out, row, column, seed)), ensure_ascii=False)
        changes = (*row.set, *column.set, *settings, f"seed={seed}", f"out={run}")
        yield Job(file, changes, load_config(TaskConfig, file, changes))


def _run_folder(out: Path, row: Row, column: Column, seed: int) -> Path:
    return out / "runs" / slug(row.name) / slug(column.name) / f"seed-{seed}"


def _summary(row: Row, column: Column, out: Path, outcomes: Mapping[Path, JobOutcome]) -> Summary | None:
    of_seeds = [outcomes[_run_folder(out, row, column, seed)] for seed in range(1, row.seeds + 1)]
    results = [outcome.result for outcome in of_seeds if outcome.result is not None]
    return summarize(results) if results else None


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _mean(summary: Summary | None, n_seeds: int) -> str:
    if summary is None:
        return "–"
    metric, n_runs = summary.results[0].metric, len(summary.results)
    deviation = f" ± {summary.sd[metric]:.2f}" if n_runs > 1 else ""
    incomplete = f" ({n_runs} of {n_seeds} seeds)" if n_runs < n_seeds else ""
    return f"{summary.mean[metric]:.2f}{deviation}{incomplete}"


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
            "runs": [result.to_dict() for result in cell.summary.results],
        }
        for cell in cells
        if cell.summary is not None
    ]
