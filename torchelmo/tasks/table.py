"""A table of experiments: rows are tasks, columns are ways to train them, each cell is run with several seeds."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.config import load_config
from torchelmo.errors import ConfigError, TrainingError
from torchelmo.files import explaining, writing
from torchelmo.progress import progress
from torchelmo.tasks.result import Result, Summary, read_result, summarise

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


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        for what, items in (("columns", self.columns), ("rows", self.rows)):
            names = [item.name for item in items]
            if not items or len({_slug(name) for name in names}) < len(names):
                raise ConfigError(f"{what}: expected at least one, each with a name of its own; got {names}.")


class Job(NamedTuple):
    """One run: a cell with one seed."""

    folder: Path
    command: list[str]


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

    `columns` names those to run; the others are shown if they were run before.
    """
    table = read_table(path)
    unknown = [name for name in columns if name not in [column.name for column in table.columns]]
    if unknown:
        raise ConfigError(f"{path}: has no column {unknown[0]!r}; it has {[column.name for column in table.columns]}.")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    wanted = [
        job
        for row in table.rows
        for column in table.columns
        if not columns or column.name in columns
        for job in _jobs(path.parent, row, column, out, [*settings, f"threads={threads}"])
    ]
    with progress("table", len(wanted), unit="runs") as advance, ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(lambda job: _run(job, threads), wanted):
            advance(1)
    cells = [Cell(row, column, _summary(row, column, out)) for row in table.rows for column in table.columns]
    write_table(table, cells, out)
    return cells


def write_table(table: Table, cells: Sequence[Cell], out: Path) -> None:
    """table.md, table.json and, where matplotlib is installed, table.png."""
    with writing(out / "table.md") as temporary:
        temporary.write_text(to_markdown(table, cells), encoding="utf-8")
    with writing(out / "table.json") as temporary:
        temporary.write_text(json.dumps(_to_json(cells), indent=2) + "\n", encoding="utf-8")
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
        line = [row.name, known.results[0].metric if known else "", _mean(first)]
        for column in others:
            summary = found[row.name, column.name]
            line += [_mean(summary), _increase(first, summary)]
        lines.append(_line([*line, row.paper]))
    return "\n".join(lines) + "\n"


def relative_error_reduction(before: float, after: float) -> float:
    """Of scores in percent: how much of what was wrong is now right.

    >>> relative_error_reduction(90.0, 92.0)
    20.0
    """
    return 100.0 * (after - before) / (100.0 - before) if before < 100.0 else 0.0


def _jobs(beside: Path, row: Row, column: Column, out: Path, settings: Sequence[str]) -> Iterator[Job]:
    config = beside / row.config
    task = load_task_name(config)
    for seed in range(1, row.seeds + 1):
        folder = _folder(out, row, column, seed)
        command = [sys.executable, "-m", "torchelmo", "task", "train", task, "--config", str(config), "--resume"]
        for item in (*row.set, *column.set, *settings, f"seed={seed}", f"out={json.dumps(str(folder))}"):
            command += ["--set", item]
        yield Job(folder, command)


def load_task_name(config: Path) -> str:
    from torchelmo.config import read_toml

    task = read_toml(config).get("task")
    if not isinstance(task, str):
        raise ConfigError(f'{config}: expected task = "…", the name of a task; got {task!r}.')
    return task


def _run(job: Job, threads: int) -> None:
    """In a process of its own, so that runs at the same time share nothing; what it says goes into a file."""
    with explaining(job.folder):
        job.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with (job.folder / "log.txt").open("a", encoding="utf-8") as stream:
        done = subprocess.run(job.command, stdout=stream, stderr=subprocess.STDOUT, env=environment, check=False)
    if done.returncode:
        last = (job.folder / "log.txt").read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise TrainingError(f"{job.folder}: the run failed: {' '.join(last)} All of it is in log.txt there.")


def _summary(row: Row, column: Column, out: Path) -> Summary | None:
    folders = [_folder(out, row, column, seed) for seed in range(1, row.seeds + 1)]
    results: list[Result] = [read_result(folder) for folder in folders if (folder / "metrics.json").exists()]
    return summarise(results) if results else None


def _folder(out: Path, row: Row, column: Column, seed: int) -> Path:
    return out / "runs" / _slug(row.name) / _slug(column.name) / f"seed-{seed}"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _mean(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    metric = summary.results[0].metric
    spread = f" ± {summary.sd[metric]:.2f}" if len(summary.results) > 1 else ""
    return f"{summary.mean[metric]:.2f}{spread}"


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
            "runs": [
                {**result._asdict(), "mixes": [mix._asdict() for mix in result.mixes]}
                for result in cell.summary.results
            ],
        }
        for cell in cells
        if cell.summary is not None
    ]
