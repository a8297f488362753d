"""Word senses by nearest neighbour (Table 5 of the paper), for each layer alone.

A sense is the mean of the vectors of its words in the training data; a word of the test data gets the sense of its
lemma and part of speech with the highest cosine, or WordNet's first where the training data has none of them. Or the
words of the training data stand for themselves, and the nearest ones vote.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from torchelmo.analysis.neighbours import Array, Count, choose_layers, unit, with_vectors
from torchelmo.analysis.senses import Senses, TaggedSentence, TaggedWord
from torchelmo.elmo import Elmo, Vectors
from torchelmo.errors import ConfigError
from torchelmo.tasks.scores import Counts


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


class Disambiguation(NamedTuple):
    """An answer is right if it is one of the keys; words without an answer count in recall and not in precision."""

    first_sense: Counts  # WordNet's first sense
    most_frequent: Counts  # the most frequent sense in the training data
    layers: dict[int, Counts]  # what each layer answers
    n_seen: int  # words of the test data with a sense in the training data; the others get the first sense
    n_senses: int  # of those words, in the training data


def disambiguate(
    elmo: Elmo,
    train: Iterable[TaggedSentence],
    test: Iterable[TaggedSentence],
    senses: Senses,
    *,
    layers: Sequence[int | str] = ("all",),
    neighbours: int | None = None,
    batch_tokens: int = 2048,
    progress: Count | None = None,
) -> Disambiguation:
    """Train on any number of sentences in one pass, then answer for every tagged word of `test`.

    Memory holds a sum for each sense, never the vectors of the text; or, with `neighbours`, which is how many words of
    the training data vote, a vector for each that may. Only senses that `test` can ask for are kept, and only the
    sentences that have one of them are run: no other sense is ever looked up, so the answers are the same.
    Senses that `senses` does not have (those of another WordNet) are no candidates.
    """
    chosen, test = choose_layers(elmo, layers), list(test)
    known: SenseVectors = SenseMeans() if neighbours is None else SenseOccurrences(neighbours)
    train = needed(train, test, senses)
    learn(known, elmo, train, _wanted(test, senses), chosen, batch_tokens=batch_tokens, progress=progress)
    # A row per answer: the first sense, the most frequent, then the layers.
    right, found = np.zeros(2 + len(chosen), dtype=np.int64), 0
    n_words = n_seen = 0
    for sentence, vectors in with_vectors(elmo, test, lambda sentence: sentence.tokens, batch_tokens=batch_tokens):
        for word in sentence.words:
            n_words += 1
            inventory = senses.get(word.word)
            if not inventory:
                continue
            found += 1
            candidates = [key for key in inventory if key in known.counts]
            n_seen += bool(candidates)
            answers = [inventory[0]] * len(right)
            if candidates:
                # max and argmax take the first of equals: the order of WordNet decides.
                answers[1] = max(candidates, key=known.counts.__getitem__)
                answers[2:] = known.nearest(_mean(vectors, word, chosen), candidates)
            right += [answer in word.senses for answer in answers]
    counts = [Counts(n_words, found, int(n)) for n in right]
    return Disambiguation(counts[0], counts[1], dict(zip(chosen, counts[2:])), n_seen, len(known.counts))


def needed(train: Iterable[TaggedSentence], test: Iterable[TaggedSentence], senses: Senses) -> Iterator[TaggedSentence]:
    """The sentences of `train` that have a sense of a word that `test` asks for."""
    wanted = _wanted(test, senses)
    return (sentence for sentence in train if any(wanted.intersection(word.senses) for word in sentence.words))


def learn(
    known: SenseVectors,
    elmo: Elmo,
    train: Iterable[TaggedSentence],
    wanted: set[str],
    layers: list[int],
    *,
    batch_tokens: int = 2048,
    progress: Count | None = None,
) -> None:
    """Add the vectors of every wanted sense."""
    pairs = with_vectors(elmo, train, lambda sentence: sentence.tokens, batch_tokens=batch_tokens, progress=progress)
    for sentence, vectors in pairs:
        for word in sentence.words:
            for key in wanted.intersection(word.senses):
                known.add(key, _mean(vectors, word, layers))


def _wanted(test: Iterable[TaggedSentence], senses: Senses) -> set[str]:
    words = {word.word for sentence in test for word in sentence.words}
    return {key for word in words for key in senses.get(word, ())}


def _mean(vectors: Vectors, word: TaggedWord, layers: list[int]) -> npt.NDArray[np.float64]:
    """(n_chosen_layers, dim): of the parts of a word, mostly one."""
    mean: npt.NDArray[np.float64] = vectors[layers, word.start : word.end].mean(axis=1, dtype=np.float64)
    return mean
