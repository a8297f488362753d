"""Run a table of experiments: train what is missing, then write the table."""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torchelmo.config import load_config
from torchelmo.errors import ConfigError, TrainingError
from torchelmo.formats.load import find_model
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.table.jobs import BilmJob, JobOutcome, TaskJob, run_jobs
from torchelmo.tasks.table.plots import write_table
from torchelmo.tasks.table.report import Cell
from torchelmo.tasks.table.spec import Column, Row, Table, read_table, slug
from torchelmo.tasks.task import summarize

log = logging.getLogger(__name__)


def run_table(
    path: Path,
    out: Path,
    *,
    settings: Sequence[str] = (),
    jobs: int = 1,
    columns: Sequence[str] = (),
    cache: Path | None = None,
    models: Path | None = None,
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
        cache: The folder for the layers of frozen biLMs, which all runs share. Default: out/cache.
        models: The folder for biLMs that columns train. Default: out/models.

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
    settings = [f"elmo.cache={_quote(cache or out / 'cache')}", *settings, f"threads={threads}"]
    cells = [
        _CellJobs.build(table, path.parent, cell, out, settings, models or out / "models")
        for cell in _empty_cells(table)
    ]
    wanted = [cell for cell in cells if not columns or cell.cell.column.name in columns]
    given = {job.config.elmo for cell in wanted if cell.bilm is None for job in cell.jobs}
    for model in {elmo.model for elmo in given if elmo.place != "none"}:
        find_model(model or None)  # a wrong name is an error now, not after the first column
    failed_bilms = _train_bilms(wanted, jobs, threads)

    outcomes: dict[Path, JobOutcome] = {}
    for cell in cells:
        failure = failed_bilms.get(cell.bilm) if cell.bilm else None
        if failure is None and cell not in wanted and cell.bilm and not (cell.bilm.out / "config.json").exists():
            outcomes |= {job.config.out: JobOutcome() for job in cell.jobs}
            continue
        outcomes |= {
            job.config.out: JobOutcome(failure=failure) if failure else job.outcome_on_disk() for job in cell.jobs
        }
    unfinished = [job for cell in wanted for job in cell.jobs if outcomes[job.config.out] == JobOutcome()]
    for job, outcome in zip(unfinished, run_jobs(unfinished, jobs, threads=threads)):
        outcomes[job.config.out] = outcome
    for cell in cells:
        for job in cell.jobs if cell not in wanted else []:
            if outcomes[job.config.out].failure:
                log.warning("%s It is left out of the table.", outcomes[job.config.out].failure)

    found = [cell.finished(outcomes) for cell in cells]
    write_table(table, found, out)
    runs = [job for cell in wanted for job in cell.jobs]
    failures = [outcomes[job.config.out].failure for job in runs if outcomes[job.config.out].failure]
    if failures:
        raise TrainingError(f"{len(failures)} of {len(runs)} runs failed. {' '.join(dict.fromkeys(failures))}")
    return found


class _CellJobs(NamedTuple):
    """A cell with its runs, one per seed, and the biLM that they need first."""

    cell: Cell
    jobs: list[TaskJob]
    bilm: BilmJob | None

    @classmethod
    def build(
        cls, table: Table, folder: Path, cell: Cell, out: Path, settings: Sequence[str], models: Path
    ) -> "_CellJobs":
        row, column = cell.row, cell.column
        bilm = BilmJob(folder / column.bilm, models / slug(column.bilm.stem)) if column.bilm else None
        changes = [*row.set, *column.set, *settings]
        if bilm is not None:
            changes.append(f"elmo.model={_quote(bilm.out)}")
        if cell.share != 1.0:
            changes.append(f"share={cell.share}")
            if table.max_epochs:
                epochs = load_config(TaskConfig, folder / row.config, changes).epochs
                changes.append(f"epochs={max(epochs, min(table.max_epochs, round(epochs / cell.share)))}")
        return cls(cell, list(_jobs(folder / row.config, cell, out, changes)), bilm)

    def finished(self, outcomes: Mapping[Path, JobOutcome]) -> Cell:
        """Return the cell with the results of its finished runs."""
        done = [job.config.out for job in self.jobs if outcomes[job.config.out].result is not None]
        results = [result for path in done if (result := outcomes[path].result) is not None]
        return self.cell._replace(summary=summarize(results) if results else None, folders=tuple(done))


def run_folder(out: Path, row: Row, column: Column, share: float, seed: int) -> Path:
    """Return the folder of one run."""
    folder = out / "runs" / slug(row.name) / slug(column.name)
    return (folder if share == 1.0 else folder / f"share-{share:g}") / f"seed-{seed}"


def _empty_cells(table: Table) -> Iterator[Cell]:
    for row in table.rows:
        for share in table.shares:
            for column in table.columns:
                yield Cell(row, column, None, share)


def _jobs(file: Path, cell: Cell, out: Path, settings: Sequence[str]) -> Iterator[TaskJob]:
    for seed in range(1, cell.row.seeds + 1):
        folder = run_folder(out, cell.row, cell.column, cell.share, seed)
        changes = (*settings, f"seed={seed}", f"out={_quote(folder)}")
        yield TaskJob(file, changes, load_config(TaskConfig, file, changes))


def _train_bilms(cells: Sequence[_CellJobs], n_parallel: int, threads: int) -> dict[BilmJob, str]:
    """Train the biLMs of the columns, and return the failures."""
    jobs = list(dict.fromkeys(cell.bilm for cell in cells if cell.bilm is not None))
    outcomes = run_jobs(jobs, n_parallel, threads=threads)
    return {job: outcome.failure for job, outcome in zip(jobs, outcomes) if outcome.failure}


def _quote(path: Path) -> str:
    return json.dumps(str(path), ensure_ascii=False)
