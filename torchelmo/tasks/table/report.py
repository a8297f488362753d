"""The results of a table as Markdown and JSON, and the claims that they decide."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.runs.metrics import duration, read_records
from torchelmo.tasks.table.spec import Claim, Column, Row, Table
from torchelmo.tasks.task import Summary


class Cell(NamedTuple):
    """The results of one row and column, for one share of the training data."""

    row: Row
    column: Column
    summary: Summary | None  # None without a finished run
    share: float = 1.0
    folders: tuple[Path, ...] = ()  # of the finished runs

    @property
    def metric(self) -> str:
        """The name of the score, or "" without a finished run."""
        return self.summary.results[0].metric if self.summary else ""

    def scores(self) -> list[float]:
        """Return the score of every finished run."""
        return [result.score for result in self.summary.results] if self.summary else []

    def histories(self) -> list[list[float]]:
        """Return the dev scores after every epoch, run by run."""
        return [
            [float(record["scores"][self.metric]) for record in read_records(folder / "epochs.jsonl")]
            for folder in self.folders
        ]


class Decision(NamedTuple):
    """Whether a claim holds for one row."""

    claim: Claim
    row: Row
    better: list[float]  # scores, or numbers of epochs
    than: list[float]
    difference: float  # in favor of the claim
    error: float  # the standard error of the difference; NaN if one side has a single run

    @property
    def verdict(self) -> str:
        """Whether the claim holds."""
        return judge(self.difference, self.error)


def judge(difference: float, error: float) -> str:
    """Return whether a claim holds: decided if the difference in its favor is more than twice its standard error."""
    if math.isnan(error) and math.isfinite(difference):
        return "not decided: one seed"
    if abs(difference) <= 2 * error:
        return "not decided"
    return "holds" if difference > 0 else "does not hold"


def to_markdown(table: Table, cells: Sequence[Cell]) -> str:
    """Return the table in Markdown: the mean of every cell, the increase over the first column, mixes, and claims."""
    base, *others = table.columns
    by_name = {(cell.row.name, cell.column.name, cell.share): cell for cell in cells}
    header = ["task", *(["share"] if len(table.shares) > 1 else []), "score", base.name]
    for column in others:
        header += [column.name, "increase (absolute / relative error)"]
    lines = [f"# {table.title}", "", *_table_head([*header, "in the paper"])]
    for row in table.rows:
        for share in table.shares:
            of_row = {column.name: by_name[row.name, column.name, share] for column in table.columns}
            line = [row.name, *([f"{100 * share:g} %"] if len(table.shares) > 1 else [])]
            line += [next((cell.metric for cell in of_row.values() if cell.metric), ""), _mean(of_row[base.name])]
            for column in others:
                line += [_mean(of_row[column.name]), _increase(of_row[base.name], of_row[column.name])]
            lines.append(_markdown_row([*line, row.paper]))
    lines += [*_mix_lines(cells), *_claim_lines(decide(table, cells)), *_missing_lines(cells)]
    seconds = sum(
        result.seconds + result.bilm_seconds for cell in cells if cell.summary for result in cell.summary.results
    )
    n_runs = sum(len(cell.scores()) for cell in cells)
    return "\n".join([*lines, "", f"{n_runs} runs, {duration(seconds)} in all."]) + "\n"


def to_json(table: Table, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return everything that the table shows as plain data."""
    return {
        "title": table.title,
        "cells": [
            {
                "row": cell.row.name,
                "column": cell.column.name,
                "share": cell.share,
                "mean": cell.summary.mean,
                "sd": cell.summary.sd,
                "runs": [
                    {**result.to_dict(), "history": history, "folder": str(folder)}
                    for result, history, folder in zip(cell.summary.results, cell.histories(), cell.folders)
                ],
            }
            for cell in cells
            if cell.summary is not None
        ],
        "claims": [
            {
                "text": found.claim.text,
                "row": found.row.name,
                "paper": found.claim.paper,
                "measure": found.claim.measure,
                "better": found.better,
                "than": found.than,
                "difference": found.difference,
                "standard_error": None if math.isnan(found.error) else found.error,
                "verdict": found.verdict,
            }
            for found in decide(table, cells)
        ],
    }


def decide(table: Table, cells: Sequence[Cell]) -> list[Decision]:
    """Compare the columns that the claims name, for every row that has results in both."""
    by_name = {(cell.row.name, cell.column.name, cell.share): cell for cell in cells}
    decisions = []
    for claim in table.claims:
        for row in table.rows:
            if claim.rows and row.name not in claim.rows:
                continue
            better = by_name[row.name, claim.better, claim.share]
            than = by_name[row.name, claim.than, claim.than_share]
            if better.summary is None or than.summary is None:
                continue
            one, other, sign = better.scores(), than.scores(), 1.0
            if claim.measure == "epochs":
                goal, sign = statistics.fmean(other), -1.0
                one = [_epochs_to_reach(goal, history) for history in better.histories()]
                other = [float(result.best_epoch) for result in than.summary.results]
            difference = sign * (statistics.fmean(one) - statistics.fmean(other))
            decisions.append(Decision(claim, row, one, other, difference, _standard_error(one, other)))
    return decisions


def relative_error_reduction(before: float, after: float) -> float:
    """Return by how many percent the error 100 - score became smaller.

    >>> relative_error_reduction(90.0, 92.0)
    20.0
    """
    return 100.0 * (after - before) / (100.0 - before) if before < 100.0 else 0.0


def _epochs_to_reach(goal: float, history: Sequence[float]) -> float:
    """Return the first epoch, counted from 1, whose score reaches the goal; infinite if none does."""
    return next((float(epoch) for epoch, score in enumerate(history, 1) if score >= goal), math.inf)


def _standard_error(one: Sequence[float], other: Sequence[float]) -> float:
    if len(one) < 2 or len(other) < 2 or not all(map(math.isfinite, [*one, *other])):
        return math.nan
    return math.sqrt(statistics.variance(one) / len(one) + statistics.variance(other) / len(other))


def _table_head(names: Sequence[str]) -> list[str]:
    return [_markdown_row(names), _markdown_row(["---"] * len(names))]


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _mean(cell: Cell) -> str:
    if cell.summary is None:
        return "–"
    n_runs = len(cell.summary.results)
    deviation = f" ± {cell.summary.sd[cell.metric]:.2f}" if n_runs > 1 else ""
    incomplete = f" ({n_runs} of {cell.row.seeds} seeds)" if n_runs < cell.row.seeds else ""
    return f"{cell.summary.mean[cell.metric]:.2f}{deviation}{incomplete}"


def _increase(base: Cell, cell: Cell) -> str:
    if base.summary is None or cell.summary is None:
        return "–"
    before, after = base.summary.mean[base.metric], cell.summary.mean[base.metric]
    return f"{after - before:+.2f} / {relative_error_reduction(before, after):.1f} %"


def _mix_lines(cells: Sequence[Cell]) -> list[str]:
    """Return a table of the learned mixes, as means over the seeds."""
    mixes = [(cell, place, weights, gamma) for cell in cells for place, weights, gamma in mean_mixes(cell)]
    if not mixes:
        return []
    n_layers = max(len(weights) for _, _, weights, _ in mixes)
    head = _table_head(["task", "column", "share", "place", *(f"layer {i}" for i in range(n_layers)), "γ"])
    rows = [
        _markdown_row(
            [cell.row.name, cell.column.name, f"{100 * cell.share:g} %", place]
            + [f"{weight:.3f}" for weight in weights]
            + [""] * (n_layers - len(weights))
            + [f"{gamma:.3f}"]
        )
        for cell, place, weights, gamma in mixes
    ]
    return ["", "## Learned mixes", "", *head, *rows]


def mean_mixes(cell: Cell) -> list[tuple[str, list[float], float]]:
    """Return (place, weights, γ) of every place where ELMo enters, as means over the runs of a cell."""
    if cell.summary is None:
        return []
    found = []
    for mixes in zip(*(result.mixes for result in cell.summary.results)):
        weights = [statistics.fmean(values) for values in zip(*(mix.weights for mix in mixes))]
        found.append((mixes[0].place, weights, statistics.fmean(mix.gamma for mix in mixes)))
    return found


def _claim_lines(decisions: Sequence[Decision]) -> list[str]:
    if not decisions:
        return []
    lines = ["", "## Claims", "", *_table_head(["claim", "task", "in the paper", "here", "difference", "verdict"])]
    for found in decisions:
        unit = " epochs" if found.claim.measure == "epochs" else ""
        here = f"{statistics.fmean(found.better):.2f} against {statistics.fmean(found.than):.2f}{unit}"
        error = "" if math.isnan(found.error) else f" ± {found.error:.2f}"
        cells = [found.claim.text, found.row.name, found.claim.paper, here, f"{found.difference:+.2f}{error}"]
        lines.append(_markdown_row([*cells, found.verdict]))
    return [*lines, "", "The difference is in favor of the claim, with its standard error over the seeds."]


def _missing_lines(cells: Sequence[Cell]) -> list[str]:
    missing = [cell for cell in cells if len(cell.scores()) < cell.row.seeds]
    if not missing:
        return []
    names = [f"{cell.row.name}, {cell.column.name} ({100 * cell.share:g} %)" for cell in missing]
    return ["", f"Not complete: {'; '.join(names)}."]
