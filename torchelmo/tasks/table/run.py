"""Run a table of experiments: train what is missing, then write the table."""

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from torchelmo.config import load_config
from torchelmo.errors import ConfigError, TrainingError
from torchelmo.formats.load import find_model
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.table.jobs import BilmJob, JobOutcome, TaskJob, run_jobs, run_name
from torchelmo.tasks.table.records import Record, RecordFile
from torchelmo.tasks.table.report import Cell, write_table
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
    rows: Sequence[str] = (),
    cache: Path | None = None,
    models: Path | None = None,
    runs: Path | None = None,
    records: Path | None = None,
    train: bool = True,
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
        rows: The names of the rows to run, in the same way.
        cache: The folder for the layers of frozen biLMs, which all runs share. Default: out/cache.
        models: The folder for biLMs that columns train. Default: out/models.
        runs: A folder for the runs that several tables share: a run whose settings are those of a run of another table
            is not repeated. The folder of each run is named by its settings. Default: out/runs, by row and column.
        records: A JSON file of finished runs, which belongs into version control: a run that it has a record of is not
            repeated on another machine. Needs `runs`. Every finished run is added at once. A record applies if the
            biLM and the data are those of this machine, or are not on this machine; a biLM that only recorded runs
            need is not trained. A finished run in `runs` has priority over its record. Default: no file.
        train: Run what is missing. False writes the table with the runs that are finished.

    Returns:
        The cells, row by row.

    Raises:
        ConfigError: The table or one of its configurations is wrong, or the file of records is damaged. Nothing was
            run.
        MissingFileError: There is no such biLM. Nothing was run.
        TrainingError: Some runs failed. The message has the reason of each.
    """
    if records is not None and runs is None:
        raise ConfigError(
            f"records={str(records)!r}: expected runs, too, the folder whose runs are recorded; got none."
        )
    table = read_table(path)
    for what, asked, items in (("column", columns, table.columns), ("row", rows, table.rows)):
        names = [item.name for item in items]
        unknown = [name for name in asked if name not in names]
        if unknown:
            raise ConfigError(f"{path}: has no {what} {unknown[0]!r}; it has {names}.")
    threads = max(1, torch.get_num_threads() // jobs)
    settings = [f"elmo.cache={_quote(cache or out / 'cache')}", *settings, f"threads={threads}"]
    cells = [
        _CellJobs.build(table, path.parent, cell, out, settings, models or out / "models", runs)
        for cell in _empty_cells(table)
    ]
    every_job = {job.config.out: job for cell in cells for job in cell.jobs}  # two cells may share a run
    wanted = {job.config.out: job for cell in cells if train and cell.is_in(columns, rows) for job in cell.jobs}
    record_file = RecordFile(records) if records is not None else None
    recorded = record_file.select(every_job.values()) if record_file else {}

    missing = [job for folder, job in wanted.items() if folder not in recorded]
    given = {job.config.elmo for job in missing if job.bilm is None}
    for model in {elmo.model for elmo in given if elmo.place != "none"}:
        find_model(model or None)  # a wrong name is an error now, not after the first column
    bilms = _train_bilms(missing, jobs, threads)
    if record_file and bilms:
        recorded = record_file.select(every_job.values())  # those of the biLMs that now exist

    outcomes = {folder: _find_outcome(job, bilms) for folder, job in every_job.items()}
    finished = [(every_job[folder], outcome.result) for folder, outcome in outcomes.items() if outcome.result]
    recorded = {folder: record for folder, record in recorded.items() if not outcomes[folder].result}
    outcomes |= {folder: JobOutcome(record.result) for folder, record in recorded.items()}
    local: dict[Path, Record] = {}  # of the runs on this machine
    trained_bilms = [bilm for bilm, failure in bilms.items() if not failure]
    if record_file:
        local |= record_file.add(finished, trained_now=False, bilms=trained_bilms)
    unfinished = [job for folder, job in wanted.items() if outcomes[folder] == JobOutcome()]
    with contextlib.closing(run_jobs(unfinished, jobs, threads=threads)) as ended:
        for job, outcome in ended:
            outcomes[job.config.out] = outcome
            if record_file and outcome.result:
                local |= record_file.add([(job, outcome.result)], trained_now=True, bilms=trained_bilms)
    for folder in every_job:
        if folder not in wanted and outcomes[folder].failure:
            log.warning("%s It is left out of the table.", outcomes[folder].failure)

    found = [cell.finished(outcomes, local, recorded) for cell in cells]
    write_table(table, found, out)
    failures = [outcomes[folder].failure for folder in wanted if outcomes[folder].failure]
    if failures:
        raise TrainingError(f"{len(failures)} of {len(wanted)} runs failed. {' '.join(dict.fromkeys(failures))}")
    return found


class _CellJobs(NamedTuple):
    """A cell with its runs, one per seed."""

    cell: Cell
    jobs: list[TaskJob]

    @classmethod
    def build(
        cls,
        table: Table,
        folder: Path,
        cell: Cell,
        out: Path,
        settings: Sequence[str],
        models: Path,
        runs: Path | None,
    ) -> "_CellJobs":
        row, column = cell.row, cell.column
        bilm = BilmJob(folder / column.bilm, models / slug(column.bilm.stem)) if column.bilm else None
        changes = [*row.set, *(one.replace("{row}", slug(row.name)) for one in column.set), *settings]
        if bilm is not None:
            changes.append(f"elmo.model={_quote(bilm.out)}")
        if cell.share != 1.0:
            whole = load_config(TaskConfig, folder / row.config, changes)
            changes.append(f"share={whole.share * cell.share:.6g}")
            if table.max_epochs:
                epochs = max(whole.epochs, min(table.max_epochs, round(whole.epochs / cell.share)))
                changes.append(f"epochs={epochs}")
        return cls(cell, list(_jobs(folder / row.config, cell, out, changes, runs, bilm)))

    def is_in(self, columns: Sequence[str], rows: Sequence[str]) -> bool:
        """Return whether the cell is in these columns and rows; none given means all."""
        in_columns = not columns or self.cell.column.name in columns
        return in_columns and (not rows or self.cell.row.name in rows)

    def finished(
        self, outcomes: Mapping[Path, JobOutcome], local: Mapping[Path, Record], recorded: Mapping[Path, Record]
    ) -> Cell:
        """Return the cell with the results of its finished runs, and with the records of those that have one."""
        done = [job.config.out for job in self.jobs if outcomes[job.config.out].result is not None]
        results = [result for path in done if (result := outcomes[path].result) is not None]
        return self.cell._replace(
            summary=summarize(results) if results else None,
            folders=tuple(None if path in recorded else path for path in done),
            records=tuple({**local, **recorded}[path] for path in done if path in local or path in recorded),
        )


def run_folder(out: Path, row: Row, column: Column, share: float, seed: int) -> Path:
    """Return the folder of one run."""
    folder = out / "runs" / slug(row.name) / slug(column.name)
    return (folder if share == 1.0 else folder / f"share-{share:g}") / f"seed-{seed}"


def _empty_cells(table: Table) -> Iterator[Cell]:
    for row in table.rows:
        for share in table.shares:
            for column in table.columns:
                yield Cell(row, column, None, share)


def _jobs(
    file: Path, cell: Cell, out: Path, settings: Sequence[str], runs: Path | None, bilm: BilmJob | None
) -> Iterator[TaskJob]:
    for seed in range(1, cell.row.seeds + 1):
        changes = (*settings, f"seed={seed}")
        folder = run_folder(out, cell.row, cell.column, cell.share, seed)
        if runs is not None:
            folder = runs / run_name(load_config(TaskConfig, file, changes))
        changes = (*changes, f"out={_quote(folder)}")
        yield TaskJob(file, changes, load_config(TaskConfig, file, changes), bilm)


def _train_bilms(jobs: Iterable[TaskJob], n_parallel: int, threads: int) -> dict[BilmJob, str]:
    """Train the biLMs that the runs need, and return the failure of each, "" for those that were trained."""
    bilms = list(dict.fromkeys(job.bilm for job in jobs if job.bilm is not None))
    with contextlib.closing(run_jobs(bilms, n_parallel, threads=threads)) as ended:
        return {bilm: outcome.failure for bilm, outcome in ended}


def _find_outcome(job: TaskJob, bilms: Mapping[BilmJob, str]) -> JobOutcome:
    """Return the outcome of a run on this machine; `bilms` has the failures of those that the table has trained."""
    if job.bilm is not None:
        if failure := bilms.get(job.bilm):
            return JobOutcome(failure=failure)
        if not job.bilm.exists():
            return JobOutcome()
    return job.outcome_on_disk()


def _quote(path: Path) -> str:
    return json.dumps(str(path), ensure_ascii=False)
