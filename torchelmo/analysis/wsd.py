"""Word senses by nearest neighbour (Table 5 of the paper), for each layer alone.

A sense is the mean of the vectors of its words in the training data; a word of the test data gets the sense of its
lemma and part of speech with the highest cosine, or WordNet's first where the training data has none of them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.analysis.senses import Senses
from torchelmo.analysis.tagged import TaggedSentence, TaggedWord
from torchelmo.analysis.vectors import Array, Count, choose_layers, unit, with_vectors
from torchelmo.elmo import Elmo, Vectors
from torchelmo.tasks.counts import Counts


class Disambiguation(NamedTuple):
    """An answer is right if it is one of the keys; words without an answer count in recall and not in precision."""

    first_sense: Counts  # WordNet's first sense
    most_frequent: Counts  # the most frequent sense in the training data
    layers: dict[int, Counts]  # the nearest sense by each layer
    n_seen: int  # words of the test data with a sense in the training data; the others get the first sense
    n_senses: int  # of those words, in the training data


class SenseVectors(NamedTuple):
    sums: dict[str, npt.NDArray[np.float64]]  # sense -> (n_chosen_layers, dim): its cosines are those of the mean
    counts: Counter[str]  # sense -> how many vectors it is the sum of


def disambiguate(
    elmo: Elmo,
    train: Iterable[TaggedSentence],
    test: Iterable[TaggedSentence],
    senses: Senses,
    *,
    layers: Sequence[int | str] = ("all",),
    batch_tokens: int = 2048,
    progress: Count | None = None,
) -> Disambiguation:
    """Train on any number of sentences in one pass, then answer for every tagged word of `test`.

    Memory holds a sum for each sense, never the vectors of the text. Only senses that `test` can ask for are summed,
    and only the sentences that have one of them are run: no other sense is ever looked up, so the answers are the same.
    Senses that `senses` does not have (those of another WordNet) are no candidates.
    """
    chosen, test = choose_layers(elmo, layers), list(test)
    train = needed(train, test, senses)
    known = sum_senses(elmo, train, _wanted(test, senses), chosen, batch_tokens=batch_tokens, progress=progress)
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
            candidates = [key for key in inventory if key in known.sums]
            n_seen += bool(candidates)
            answers = [inventory[0]] * len(right)
            if candidates:
                # max and argmax take the first of equals: the order of WordNet decides.
                answers[1] = max(candidates, key=known.counts.__getitem__)
                answers[2:] = nearest(_mean(vectors, word, chosen), candidates, known.sums)
            right += [answer in word.senses for answer in answers]
    counts = [Counts(n_words, found, int(n)) for n in right]
    return Disambiguation(counts[0], counts[1], dict(zip(chosen, counts[2:])), n_seen, len(known.sums))


def needed(train: Iterable[TaggedSentence], test: Iterable[TaggedSentence], senses: Senses) -> Iterator[TaggedSentence]:
    """The sentences of `train` that have a sense of a word that `test` asks for."""
    wanted = _wanted(test, senses)
    return (sentence for sentence in train if any(wanted.intersection(word.senses) for word in sentence.words))


def sum_senses(
    elmo: Elmo,
    train: Iterable[TaggedSentence],
    wanted: set[str],
    layers: list[int],
    *,
    batch_tokens: int = 2048,
    progress: Count | None = None,
) -> SenseVectors:
    """The sum of the vectors of every wanted sense."""
    known = SenseVectors({}, Counter())
    pairs = with_vectors(elmo, train, lambda sentence: sentence.tokens, batch_tokens=batch_tokens, progress=progress)
    for sentence, vectors in pairs:
        for word in sentence.words:
            for key in wanted.intersection(word.senses):
                vector = _mean(vectors, word, layers)
                if key not in known.sums:
                    known.sums[key] = np.zeros_like(vector)
                known.sums[key] += vector
                known.counts[key] += 1
    return known


def nearest(vectors: Array, candidates: Sequence[str], sums: Mapping[str, Array]) -> list[str]:
    """(n_layers, dim) -> for each layer, the candidate with the highest cosine."""
    cosines = np.einsum("ld,sld->ls", unit(vectors), unit(np.stack([sums[key] for key in candidates])))
    return [candidates[i] for i in cosines.argmax(axis=1)]


def _wanted(test: Iterable[TaggedSentence], senses: Senses) -> set[str]:
    words = {word.word for sentence in test for word in sentence.words}
    return {key for word in words for key in senses.get(word, ())}


def _mean(vectors: Vectors, word: TaggedWord, layers: list[int]) -> npt.NDArray[np.float64]:
    """(n_chosen_layers, dim): of the parts of a word, mostly one."""
    mean: npt.NDArray[np.float64] = vectors[layers, word.start : word.end].mean(axis=1, dtype=np.float64)
    return mean
