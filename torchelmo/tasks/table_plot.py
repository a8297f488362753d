"""The plot of a table of experiments: one group of bars per task, with the standard deviation over seeds."""

from collections.abc import Sequence
from pathlib import Path

from torchelmo.files import writing
from torchelmo.tasks.table import Cell, Table


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
    with writing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
