"""What the training data showed of each sense: the mean of its vectors, or every one of them."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from torchelmo.analysis.vectors import Array, unit
from torchelmo.errors import ConfigError


class SenseVectors(Protocol):
    counts: Counter[str]  # sense -> how many vectors were added for it

    def add(self, sense: str, vectors: Array) -> None:
        """A word of the training data, (n_layers, dim)."""

    def nearest(self, vectors: Array, candidates: Sequence[str]) -> list[str]:
        """(n_layers, dim) -> the answer of each layer, of senses that were added; the first of equals."""


class SenseMeans:
    """A sense is the mean of its vectors, as in the paper: memory holds a sum for each."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.sums: dict[str, npt.NDArray[np.float64]] = {}  # their cosines are those of the means

    def add(self, sense: str, vectors: Array) -> None:
        if sense not in self.sums:
            self.sums[sense] = np.zeros(vectors.shape)
        self.sums[sense] += vectors
        self.counts[sense] += 1

    def nearest(self, vectors: Array, candidates: Sequence[str]) -> list[str]:
        means = unit(np.stack([self.sums[sense] for sense in candidates]))
        cosines = np.einsum("ld,sld->ls", unit(vectors), means)
        return [candidates[i] for i in cosines.argmax(axis=1)]


class SenseOccurrences:
    """The nearest words of the training data vote, so that a frequent sense counts for more: memory holds them all.

    A vote has the weight 1 + cosine, which is never negative: more votes win, and among as many the nearer ones.
    """

    def __init__(self, n_neighbours: int) -> None:
        if n_neighbours < 1:
            raise ConfigError(
                f"neighbours: expected at least 1, or none for the mean of each sense; got {n_neighbours}."
            )
        self.n_neighbours = n_neighbours
        self.counts: Counter[str] = Counter()
        self._vectors: dict[str, list[npt.NDArray[np.float32]]] = {}

    def add(self, sense: str, vectors: Array) -> None:
        self._vectors.setdefault(sense, []).append(unit(vectors).astype(np.float32))
        self.counts[sense] += 1

    def nearest(self, vectors: Array, candidates: Sequence[str]) -> list[str]:
        occurrences = np.stack([each for sense in candidates for each in self._vectors[sense]])
        senses = np.repeat(np.arange(len(candidates)), [self.counts[sense] for sense in candidates])
        # Rounded, so that a word's token vector, the same in every sentence, is as near in all of them: then WordNet's
        # order decides, not the last digit.
        cosines = np.einsum("ld,nld->ln", unit(vectors), occurrences).round(5)
        answers = []
        for of_layer in cosines:
            voters = np.argsort(-of_layer, kind="stable")[: self.n_neighbours]
            votes = np.bincount(senses[voters], weights=1 + of_layer[voters])
            answers.append(candidates[int(votes.argmax())])
        return answers
