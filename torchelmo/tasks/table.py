"""A table of experiments: rows are tasks, columns are ways to train them, each cell is run with several seeds."""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.config import load_config
from torchelmo.errors import ConfigError, TrainingError
from torchelmo.files import write_json, writing
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.result import Summary, summarise
from torchelmo.tasks.table_jobs import Job, Outcome, run_jobs

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
    with writing(out / "table.md") as temporary:
        temporary.write_text(to_markdown(table, cells), encoding="utf-8")
    write_json(out / "table.json", _to_json(cells))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        log.info("No plot: it needs matplotlib, which comes with pip install 'torchelmo[tasks]'.")
        return
    from torchelmo.tasks.table_plot import draw

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
