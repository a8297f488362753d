"""Print the measured parts of a model card: perplexity by text and direction, and the learning curve of the run.

    python -m benchmarks.model_card english-small heldout_wiki.txt.xz heldout_books.txt.xz --run runs/english-small

Perplexities are exact (full softmax, whole texts); every sentence starts from zero state. The learning curve shows the
evaluations during training, on a part of the held-out text. It is also plotted to RUN/curve.png.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import print_header
from torchelmo import load
from torchelmo.errors import TorchelmoError
from torchelmo.lm.loop import read_evaluations
from torchelmo.lm.predict import Perplexity, combine, perplexity
from torchelmo.progress import progress
from torchelmo.runs.metrics import read_records
from torchelmo.text.reading import read_sentences


def main() -> None:
    given = parse_arguments()
    if given.run is not None and not read_evaluations(given.run):  # check before minutes of measuring
        raise SystemExit(f"{given.run}: expected a run with evaluations in metrics.jsonl, found none.")
    print_header()
    try:
        print_perplexities(given.model, given.texts)
        if given.run is not None:
            print_curve(given.run, given.rows)
    except TorchelmoError as error:
        raise SystemExit(str(error)) from error


def print_perplexities(model: str, texts: Sequence[str]) -> None:
    bilm = load(model)
    found: dict[str, Perplexity] = {}
    for text in texts:
        with progress(f"perplexity of {text}", unit="tokens") as advance:
            found[Path(text).name] = perplexity(bilm, read_sentences(text, "en"), progress=advance)
    print("| text | tokens | OOV | forward | backward | average |\n|---|---|---|---|---|---|")
    for name, one in (found | {"**all**": combine(list(found.values()))}).items():
        perplexities = " | ".join(
            "–" if value is None else f"{value:.2f}" for value in (one.forward, one.backward, one.average)
        )
        print(f"| {name} | {one.n_tokens:,} | {one.oov_rate:.1%} | {perplexities} |")
    print()


def print_curve(run: Path, n_rows: int) -> None:
    print("| hours | M tokens | learning rate | held-out perplexity |\n|---|---|---|---|")
    for record in sample_evenly(read_evaluations(run), n_rows):
        hours, tokens = record["seconds"] / 3600, record["tokens"] / 1e6
        print(f"| {hours:.2f} | {tokens:.1f} | {record['lr']:.2g} | {record['heldout']:.1f} |")
    print(f"\n{draw_curve(run)}")


def draw_curve(run: Path) -> Path:
    """Write run/curve.png, the learning curve in run/metrics.jsonl."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    records = read_records(run / "metrics.jsonl")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, style in (("forward", "-"), ("backward", "-"), ("heldout_forward", "o--"), ("heldout_backward", "o--")):
        points = [(record["tokens"] / 1e6, record[name]) for record in records if name in record]
        if points:
            axes.plot(*zip(*points), style, label=name.replace("heldout_", "held-out "), linewidth=1.2, markersize=4)
    axes.set(xlabel="million tokens", ylabel="perplexity", yscale="log")
    for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        set_formatter(StrMethodFormatter("{x:g}"))
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(run / "curve.png", dpi=120)
    return run / "curve.png"


def sample_evenly(records: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Return at most `n` records at equal distances, including the last one."""
    step = max(1, -(-len(records) // n))
    return records[(len(records) - 1) % step :: step]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder with a softmax, or a name")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="raw held-out text; also .gz, .bz2, .xz")
    parser.add_argument("--run", type=Path, help="folder of the training run, for the learning curve")
    parser.add_argument("--rows", type=int, default=12, help="maximum rows of the learning curve (default: 12)")
    given = parser.parse_args()
    if given.rows < 1:
        parser.error(f"argument --rows: expected at least 1, got {given.rows}")
    return given


if __name__ == "__main__":
    main()
