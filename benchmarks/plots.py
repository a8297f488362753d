"""Plot the results of `benchmarks.embed`: speed by batch, by sentence length and by number of sentences."""

from pathlib import Path
from typing import Any

_COLORS = {"small": "tab:blue", "original": "tab:orange"}
_STYLES = {
    "float32": "o-",
    "float16": "s-",
    "int8": "D-",
    "float32 before": "o:",
    "float16 before": "s:",
    "reference": "^:",
    "allennlp": "x--",
    "minilm": "v-.",
    "tok2vec": "+-.",
}


def plot_growth(result: dict[str, Any], path: Path) -> None:
    """Write a PNG of the rows that `benchmarks.embed --plot` measures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.2), sharey=True)
    kinds = (
        ("batch", "sentences in a batch"),
        ("length", "tokens in a sentence (batches of 32)"),
        ("corpus", "sentences in one call"),
    )
    for axis, (what, label) in zip(axes, kinds, strict=True):
        rows = [row for row in result["rows"] if row["what"] == what]
        for shape, name in dict.fromkeys((row["shape"], row["implementation"]) for row in rows):
            points = [row for row in rows if (row["shape"], row["implementation"]) == (shape, name)]
            axis.plot(
                [row["batch" if what == "batch" else "size"] for row in points],
                [row["tokens_per_second"] for row in points],
                _STYLES[name],
                color="tab:gray" if name in ("minilm", "tok2vec") else _COLORS[shape],
                label=name if name in ("minilm", "tok2vec") else f"{shape}, {name}",
            )
        axis.set(xscale="log", yscale="log", xlabel=label)
        axis.grid(True, which="both", alpha=0.25)
    axes[0].set_ylabel("tokens per second")
    axes[2].legend(*axes[0].get_legend_handles_labels(), fontsize=7, loc="lower right")
    figure.suptitle(result["machine"], fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
