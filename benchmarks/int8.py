"""Compare the vectors of `precision="int8"` with float32: the cosine of every token in every layer.

    python -m benchmarks.int8 --text TEXT
    python -m benchmarks.int8 --text TEXT --model runs/mine --sentences 500

TEXT is raw text that the model was not trained on.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.common import print_header, sample_sentences
from torchelmo import Elmo, load
from torchelmo.bilm.fast.int8 import has_int8


class Agreement(NamedTuple):
    """The cosines of one layer."""

    mean: float
    percentile: float  # one token in a thousand is below
    worst: float


def main() -> None:
    arguments = parse_arguments()
    if not has_int8():
        raise SystemExit("This machine has no int8 kernels.")
    sentences = sample_sentences(arguments.text, arguments.sentences)
    rows = agreement(Elmo(load(arguments.model)), sentences)
    print_header(f"{len(sentences)} sentences, {sum(map(len, sentences)):,} tokens")
    print("| layer | mean cosine | 0.1 % below | worst |\n|---|---|---|---|")
    for layer, row in enumerate(rows):
        print(f"| {layer} | {row.mean:.5f} | {row.percentile:.5f} | {row.worst:.5f} |")


def agreement(elmo: Elmo, sentences: Sequence[Sequence[str]]) -> list[Agreement]:
    """Embed the sentences in float32 and in int8, and compare the vectors layer by layer."""
    cosines: list[npt.NDArray[np.float64]] = []
    for one, other in zip(elmo.stream(sentences), elmo.stream(sentences, precision="int8"), strict=True):
        a, b = one.astype(np.float64), other.astype(np.float64)
        cosines.append((a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)))
    layers = np.concatenate(cosines, axis=1)
    return [Agreement(float(row.mean()), float(np.quantile(row, 0.001)), float(row.min())) for row in layers]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="raw text to take sentences from (default: random words)")
    parser.add_argument("--model", help="the model (default: english-small)")
    parser.add_argument("--sentences", type=int, default=2000, help="number of sentences (default: 2000)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
