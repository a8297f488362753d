"""The results of a table as Markdown, JSON and plots, and the claims that they decide."""

import itertools
import logging
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.files import atomic_write, write_json
from torchelmo.runs.metrics import duration
from torchelmo.tasks.table.records import Record, read_history
from torchelmo.tasks.table.spec import Claim, Column, Row, Table
from torchelmo.tasks.task import Summary

log = logging.getLogger(__name__)


class Cell(NamedTuple):
    """The results of one row and column, for one share of the training data."""

    row: Row
    column: Column
    summary: Summary | None  # None without a finished run
    share: float = 1.0
    folders: tuple[Path | None, ...] = ()  # of the finished runs; None for a run of another machine
    records: tuple[Record, ...] = ()  # of the finished runs, if the table has a file of records

    @property
    def metric(self) -> str:
        """The name of the score, or "" without a finished run."""
        return self.summary.results[0].metric if self.summary else ""

    def scores(self) -> list[float]:
        """Return the score of every finished run."""
        return [result.score for result in self.summary.results] if self.summary else []

    def histories(self) -> list[list[float]]:
        """Return the dev scores after every epoch, run by run."""
        if self.records:
            return [record.history for record in self.records]
        return [read_history(folder, self.metric) for folder in self.folders if folder is not None]


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


def write_table(table: Table, cells: Sequence[Cell], out: Path) -> None:
    """Write table.md, table.json and, if matplotlib is installed, table.png."""
    with atomic_write(out / "table.md") as temporary:
        temporary.write_text(to_markdown(table, cells), encoding="utf-8")
    write_json(out / "table.json", to_json(table, cells))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        log.info("table.png was not drawn: it needs matplotlib. Install it with: pip install 'torchelmo[tasks]'")
        return
    _plot_table(table, cells, out / "table.png")


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
                "runs": _runs_to_json(cell, cell.summary),
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


def _runs_to_json(cell: Cell, summary: Summary) -> list[dict[str, Any]]:
    """Return every run with its folder, "" for a run of another machine, and with its origin if it has a record."""
    runs = [
        {**result.to_dict(), "history": history, "folder": str(folder or "")}
        for result, history, folder in zip(summary.results, cell.histories(), cell.folders)
    ]
    for run, record in zip(runs, cell.records):
        run |= {"commit": record.commit, "machine": record.machine}
    return runs


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


def _plot_table(table: Table, cells: Sequence[Cell], path: Path) -> None:
    """Draw the kind of plot that the table asks for."""
    draw = {"bars": _draw_bars, "shares": _draw_shares, "epochs": _draw_epochs, "mixes": _draw_mixes}[table.plot]
    figure = draw(table, [cell for cell in cells if cell.summary is not None])
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def _draw_bars(table: Table, cells: Sequence[Cell]) -> Any:
    """Draw one group of bars per row, with the standard deviation over the seeds."""
    figure, (axes,) = _figure(1, width=2.2 + 1.5 * len(table.rows))
    width = 0.8 / len(table.columns)
    largest = max(table.shares)
    for number, column in enumerate(table.columns):
        shown = [
            (position + (number - (len(table.columns) - 1) / 2) * width, cell.summary, cell.metric)
            for position, row in enumerate(table.rows)
            for cell in cells
            if (cell.row.name, cell.column.name, cell.share) == (row.name, column.name, largest) and cell.summary
        ]
        means = [summary.mean[metric] for _, summary, metric in shown]
        deviations = [summary.sd[metric] for _, summary, metric in shown]
        bars = axes.bar([x for x, _, _ in shown], means, width, yerr=deviations, capsize=3, label=column.name)
        axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
    axes.set_xticks(range(len(table.rows)), [row.name for row in table.rows], fontsize=8)
    axes.set_ylabel("score on dev (%)")
    return _finish(table, figure, axes)


def _draw_shares(table: Table, cells: Sequence[Cell]) -> Any:
    """Draw the score of every column by the share of the training data, one panel per row."""
    figure, panels = _figure(len(table.rows), width=3.6 * len(table.rows))
    for row, axes in zip(table.rows, panels):
        for column in table.columns:
            shown = sorted(
                (100 * cell.share, cell.summary.mean[cell.metric], cell.summary.sd[cell.metric])
                for cell in cells
                if cell.row.name == row.name and cell.column.name == column.name and cell.summary
            )
            if shown:
                shares, means, deviations = zip(*shown)
                axes.errorbar(shares, means, deviations, marker="o", markersize=3, capsize=2, label=column.name)
        axes.set_xscale("log")
        axes.set_xlabel("share of the training data (%)")
        axes.set_title(row.name, fontsize=9)
    panels[0].set_ylabel("score on dev (%)")
    return _finish(table, figure, panels[0])


def _draw_epochs(table: Table, cells: Sequence[Cell]) -> Any:
    """Draw the mean score of every column after each epoch, one panel per row."""
    figure, panels = _figure(len(table.rows), width=3.6 * len(table.rows))
    for row, axes in zip(table.rows, panels):
        for cell in cells:
            if cell.row.name == row.name and cell.share == max(table.shares):
                by_epoch = itertools.zip_longest(*cell.histories())  # runs may end at different epochs
                means = [statistics.fmean(score for score in scores if score is not None) for scores in by_epoch]
                axes.plot(range(1, len(means) + 1), means, marker="o", markersize=3, label=cell.column.name)
        axes.set_xlabel("epoch")
        axes.set_title(row.name, fontsize=9)
    panels[0].set_ylabel("score on dev (%)")
    return _finish(table, figure, panels[0])


def _draw_mixes(table: Table, cells: Sequence[Cell]) -> Any:
    """Draw the softmaxed mix weights of every row and column: one panel per place, a line per run, with the values."""
    mixes = [(cell, *mix) for cell in cells if cell.share == max(table.shares) for mix in mean_mixes(cell)]
    places = sorted({place for _, place, _, _ in mixes}) or ["input"]
    n_lines = max((sum(place == other for _, other, _, _ in mixes) for place in places), default=1)
    figure, panels = _figure(len(places), width=4.6 * len(places), height=1.4 + 0.45 * n_lines)
    for place, axes in zip(places, panels):
        lines = [(cell, weights, gamma) for cell, other, weights, gamma in mixes if other == place]
        if not lines:
            continue
        n_layers = max(len(weights) for _, weights, _ in lines)
        values = [[*weights, *[float("nan")] * (n_layers - len(weights))] for _, weights, _ in lines]
        axes.imshow(values, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
        for y, x in itertools.product(range(len(values)), range(n_layers)):
            color = "white" if values[y][x] > 0.6 else "black"
            axes.text(x, y, f"{values[y][x]:.2f}", ha="center", va="center", fontsize=7, color=color)
        axes.set_xticks(range(n_layers), [f"layer {i}" for i in range(n_layers)], fontsize=7)
        names = [f"{cell.row.name}, {cell.column.name} (γ {gamma:.2f})" for cell, _, gamma in lines]
        axes.set_yticks(range(len(lines)), names, fontsize=7)
        axes.set_title(f"at the {place}", fontsize=9)
    figure.suptitle(table.title, fontsize=10)
    return figure


def _figure(n_panels: int, *, width: float, height: float = 4.0) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = [figure.add_subplot(1, n_panels, number + 1) for number in range(n_panels)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _finish(table: Table, figure: Any, axes: Any) -> Any:
    """Add the title, and a legend if anything was drawn."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(table.title, fontsize=10)
    return figure
