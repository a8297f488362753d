"""Plots of a table: bars, curves by share of the training data or by epoch, and heat maps of mixes."""

import itertools
import logging
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchelmo.files import atomic_write, write_json
from torchelmo.tasks.table.report import Cell, mean_mixes, to_json, to_markdown
from torchelmo.tasks.table.spec import Table

log = logging.getLogger(__name__)


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
    plot_table(table, cells, out / "table.png")


def plot_table(table: Table, cells: Sequence[Cell], path: Path) -> None:
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
