"""Measure whether a word is closer to itself in the same sense than in another sense.

    python experiments/senses/pairs.py english-small --vectors data/vectors/glove.6B.50d.100k.txt.xz

`words.tsv` has four sentences for each ambiguous word, two for each of two senses: word, sense, and the sentence as
tokens separated by spaces, with the word in brackets. For every layer the script prints three shares:

    words     words whose two same-sense cosines are higher, on average, than their four different-sense cosines
    pairs     (same-sense pair, different-sense pair) of one word with a higher same-sense cosine
    all       words whose lower same-sense cosine is above all four different-sense cosines

A static vector is the same in every sentence, so it cannot tell senses apart. The rows of `--vectors` therefore use the
mean of the vectors of the other words in the sentence. A word that the file does not have in its own form is looked up
in lower case.
"""

import argparse
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import torchelmo
from torchelmo.analysis.similarity import l2_normalize
from torchelmo.tasks.words import read_vectors

WORDS = Path(__file__).with_name("words.tsv")


class Use(NamedTuple):
    word: str
    sense: str
    tokens: list[str]
    position: int  # of the word in `tokens`


class Shares(NamedTuple):
    words: float
    pairs: float
    all: float
    failed: list[str]  # words whose same-sense pairs are not closer on average


def main() -> None:
    given = parse_arguments()
    uses = read_uses(given.words)
    print(f"{len({use.word for use in uses})} words, {len(uses)} sentences\n")
    print("| vectors | words | pairs | all |\n|---|---|---|---|")
    for model in given.models:
        layers = embed_uses(model, uses)
        for layer, vectors in enumerate(layers):
            print_row(f"{model}, {'token layer' if layer == 0 else f'layer {layer}'}", uses, vectors, given.failed)
        print_row(f"{model}, average of the layers", uses, layers.mean(axis=0), given.failed)
    for path in given.vectors:
        print_row(f"{Path(path).name}, mean of the other words", uses, average_contexts(path, uses), given.failed)


def read_uses(path: Path) -> list[Use]:
    """Read the sentences, and find the word in each."""
    uses = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        word, sense, sentence = line.split("\t")
        tokens = sentence.split()
        if tokens.count(f"[{word}]") != 1:
            raise SystemExit(f"{path}:{number}: expected [{word}] once in the sentence, found {sentence!r}.")
        position = tokens.index(f"[{word}]")
        tokens[position] = word
        uses.append(Use(word, sense, tokens, position))
    return uses


def embed_uses(model: str, uses: Sequence[Use]) -> npt.NDArray[np.float32]:
    """Return the vector of each word in its sentence: (n_layers + 1, n_uses, dim)."""
    elmo = torchelmo.Elmo(torchelmo.load(model))
    vectors = elmo.embed([use.tokens for use in uses])
    return np.stack([each[:, use.position] for each, use in zip(vectors, uses)], axis=1)


def average_contexts(path: str, uses: Sequence[Use]) -> npt.NDArray[np.float32]:
    """Return the mean of the static vectors of the other words in each sentence: (n_uses, dim)."""
    file = read_vectors(path)
    rows = {word: i for i, word in enumerate(file.words)}
    matrix = np.asarray(file.vectors)
    found = []
    for use in uses:
        others = [token for i, token in enumerate(use.tokens) if i != use.position]
        indices = [rows[form] for token in others if (form := token if token in rows else token.lower()) in rows]
        found.append(matrix[indices].mean(axis=0))
    return np.stack(found)


def compare_pairs(uses: Sequence[Use], vectors: npt.NDArray[np.float32]) -> Shares:
    """Return the shares that the module docstring describes, for vectors (n_uses, dim).

    Equal cosines do not count as closer.
    """
    units = l2_normalize(vectors.astype(np.float64))
    by_word: dict[str, list[int]] = {}
    for i, use in enumerate(uses):
        by_word.setdefault(use.word, []).append(i)
    closer, pairs, failed, separate = 0, [], [], 0
    for word, members in by_word.items():
        same: list[float] = []
        different: list[float] = []
        for i, j in combinations(members, 2):
            cosine = round(float(units[i] @ units[j]), 9)  # rounded, so that equal vectors have equal cosines
            (same if uses[i].sense == uses[j].sense else different).append(cosine)
        pairs += [a > b for a in same for b in different]
        separate += min(same) > max(different)
        if mean(same) > mean(different):
            closer += 1
        else:
            failed.append(word)
    n = len(by_word)
    return Shares(closer / n, mean(pairs), separate / n, failed)


def mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def print_row(name: str, uses: Sequence[Use], vectors: npt.NDArray[np.float32], show_failed: bool) -> None:
    shares = compare_pairs(uses, vectors)
    print(f"| {name} | {shares.words:.1%} | {shares.pairs:.1%} | {shares.all:.1%} |", flush=True)
    if show_failed and shares.words:
        print(f"    not closer: {', '.join(shares.failed)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["english-small"], help="model folders or names")
    parser.add_argument("--vectors", action="append", default=[], metavar="FILE", help="static vectors in GloVe format")
    parser.add_argument("--words", type=Path, default=WORDS, help="the list of sentences (default: words.tsv)")
    parser.add_argument("--failed", action="store_true", help="list the words whose same-sense pairs are not closer")
    return parser.parse_args()


if __name__ == "__main__":
    main()
