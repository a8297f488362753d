"""Word sense disambiguation with the vectors of each layer (Table 5 of the paper).

A sense is represented by the mean vector of its words in the training data. A word of the test data gets the sense of
its lemma and part of speech with the highest cosine. Alternatively, the k nearest words of the training data vote.
Lemmas without training data get WordNet's first sense.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from torchelmo.analysis.senses import SenseInventory, TaggedSentence, TaggedWord
from torchelmo.analysis.similarity import Array, ProgressCallback, choose_layers, embed_items, l2_normalize
from torchelmo.elmo import Elmo
from torchelmo.embedder import Vectors
from torchelmo.errors import ConfigError
from torchelmo.tasks.task import Counts


class Disambiguation(NamedTuple):
    """Scores on the test data.

    An answer is correct if it is one of the word's sense keys. Words whose lemma is not in the sense inventory get no
    answer; they lower the recall but not the precision.
    """

    first_sense: Counts  # baseline: WordNet's first sense
    most_frequent: Counts  # baseline: the most frequent sense in the training data
    layers: dict[int, Counts]  # the scores of each layer
    n_seen: int  # test words with at least one sense in the training data
    n_senses: int  # senses of the test lemmas in the training data
    correct: list[list[bool]]  # of each test word: the first sense, the most frequent sense, then the layers


def disambiguate(
    elmo: Elmo,
    train: Iterable[TaggedSentence],
    test: Iterable[TaggedSentence],
    senses: SenseInventory,
    *,
    layers: Sequence[int | str] = ("all",),
    neighbours: int | None = None,
    batch_tokens: int = 2048,
    progress: ProgressCallback | None = None,
) -> Disambiguation:
    """Find the senses of the tagged words of `test`, and score the answers of each layer.

    The training data is read once and may have any size. Only senses of lemmas in `test` are collected, and only
    sentences with such senses are embedded. Sense keys that `senses` does not contain, such as those of another
    version of WordNet, are ignored.

    Args:
        elmo: The model.
        train: Sentences tagged with senses, see `read_tagged`.
        test: Sentences tagged with the correct senses.
        senses: The sense inventory, see `read_senses`.
        layers: Indices of layers (0 is the token layer), "top" or "all".
        neighbours: Let this number of nearest training words vote. None compares with the mean vector of each sense.
        batch_tokens: The number of tokens that are computed at a time. Smaller values need less memory.
        progress: A function that is called with the number of training sentences that were just finished.

    Returns:
        The scores of each layer, and of two baselines.

    Raises:
        ConfigError: A layer does not exist, or `neighbours` is less than 1.

    Example::

        scores = disambiguate(
            elmo,
            read_tagged("semcor.jsonl"),
            read_tagged("semeval2007.data.xml", "semeval2007.gold.key.txt"),
            read_senses("index.sense"),
        )
        print(scores.layers[2].f1)
    """
    chosen, test = choose_layers(elmo, layers), list(test)
    classifier: SenseClassifier = CentroidClassifier() if neighbours is None else KNNClassifier(neighbours)
    relevant = relevant_sentences(train, test, senses)
    keys = _candidate_keys(test, senses)
    collect_senses(classifier, elmo, relevant, keys, chosen, batch_tokens=batch_tokens, progress=progress)
    # One entry per method: the first sense, the most frequent sense, then the layers.
    n_methods = 2 + len(chosen)
    correct: list[list[bool]] = []
    n_answered = n_seen = 0
    for sentence, vectors in embed_items(elmo, test, lambda sentence: sentence.tokens, batch_tokens=batch_tokens):
        for word in sentence.words:
            inventory = senses.get(word.lemma)
            if not inventory:
                correct.append([False] * n_methods)
                continue
            n_answered += 1
            candidates = [key for key in inventory if key in classifier.counts]
            n_seen += bool(candidates)
            answers = [inventory[0]] * n_methods
            if candidates:
                # max and argmax return the first of equal values, so WordNet's order breaks ties.
                answers[1] = max(candidates, key=classifier.counts.__getitem__)
                answers[2:] = classifier.predict(_word_vectors(vectors, word, chosen), candidates)
            correct.append([answer in word.senses for answer in answers])
    n_correct = [sum(column) for column in zip(*correct)] or [0] * n_methods
    first, most_frequent, *of_layers = (Counts(len(correct), n_answered, n) for n in n_correct)
    return Disambiguation(first, most_frequent, dict(zip(chosen, of_layers)), n_seen, len(classifier.counts), correct)


def relevant_sentences(
    train: Iterable[TaggedSentence], test: Iterable[TaggedSentence], senses: SenseInventory
) -> Iterator[TaggedSentence]:
    """Return the sentences of `train` that have a sense of a lemma in `test`."""
    keys = _candidate_keys(test, senses)
    return (sentence for sentence in train if any(keys.intersection(word.senses) for word in sentence.words))


def collect_senses(
    classifier: "SenseClassifier",
    elmo: Elmo,
    train: Iterable[TaggedSentence],
    keys: set[str],
    layers: list[int],
    *,
    batch_tokens: int = 2048,
    progress: ProgressCallback | None = None,
) -> None:
    """Add the vectors of every word of `train` that has one of the sense keys `keys`."""
    pairs = embed_items(elmo, train, lambda sentence: sentence.tokens, batch_tokens=batch_tokens, progress=progress)
    for sentence, vectors in pairs:
        for word in sentence.words:
            for key in keys.intersection(word.senses):
                classifier.add(key, _word_vectors(vectors, word, layers))


class SenseClassifier(Protocol):
    """Choose the sense of a word, separately for each layer."""

    counts: Counter[str]  # sense key -> number of vectors added

    def add(self, sense: str, vectors: Array) -> None:
        """Add the vectors of a training word, (n_layers, dim)."""

    def predict(self, vectors: Array, candidates: Sequence[str]) -> list[str]:
        """Return the best candidate for each layer of a word, (n_layers, dim). The first one wins ties."""


class CentroidClassifier:
    """Compare with the mean vector of each sense, as in the paper. Stores one sum per sense."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.sums: dict[str, npt.NDArray[np.float64]] = {}  # have the same cosines as the means

    def add(self, sense: str, vectors: Array) -> None:
        if sense not in self.sums:
            self.sums[sense] = np.zeros(vectors.shape)
        self.sums[sense] += vectors
        self.counts[sense] += 1

    def predict(self, vectors: Array, candidates: Sequence[str]) -> list[str]:
        centroids = l2_normalize(np.stack([self.sums[sense] for sense in candidates]))
        cosines = np.einsum("ld,sld->ls", l2_normalize(vectors), centroids)
        return [candidates[i] for i in cosines.argmax(axis=1)]


class KNNClassifier:
    """Let the k nearest training words vote, so that frequent senses count for more. Stores every vector.

    A vote has the weight 1 + cosine, which is never negative. Among equal numbers of votes, the nearer ones win.
    """

    def __init__(self, n_neighbours: int) -> None:
        if n_neighbours < 1:
            raise ConfigError(
                f"neighbours: expected at least 1, or None for the mean vector of each sense; got {n_neighbours}."
            )
        self.n_neighbours = n_neighbours
        self.counts: Counter[str] = Counter()
        self._vectors: dict[str, list[npt.NDArray[np.float32]]] = {}

    def add(self, sense: str, vectors: Array) -> None:
        self._vectors.setdefault(sense, []).append(l2_normalize(vectors).astype(np.float32))
        self.counts[sense] += 1

    def predict(self, vectors: Array, candidates: Sequence[str]) -> list[str]:
        stored = np.stack([each for sense in candidates for each in self._vectors[sense]])
        senses = np.repeat(np.arange(len(candidates)), [self.counts[sense] for sense in candidates])
        # The token vectors of a word are the same in all sentences. Rounding makes their cosines exactly equal, so
        # that WordNet's order breaks the tie and not the last digit.
        cosines = np.einsum("ld,nld->ln", l2_normalize(vectors), stored).round(5)
        answers = []
        for row in cosines:
            voters = np.argsort(-row, kind="stable")[: self.n_neighbours]
            votes = np.bincount(senses[voters], weights=1 + row[voters])
            answers.append(candidates[int(votes.argmax())])
        return answers


def _candidate_keys(test: Iterable[TaggedSentence], senses: SenseInventory) -> set[str]:
    lemmas = {word.lemma for sentence in test for word in sentence.words}
    return {key for lemma in lemmas for key in senses.get(lemma, ())}


def _word_vectors(vectors: Vectors, word: TaggedWord, layers: list[int]) -> npt.NDArray[np.float64]:
    """Average the vectors of the tokens of a word: (n_chosen_layers, dim)."""
    mean: npt.NDArray[np.float64] = vectors[layers, word.start : word.end].mean(axis=1, dtype=np.float64)
    return mean
