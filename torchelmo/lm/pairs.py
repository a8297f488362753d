"""Minimal pairs: does a model give the correct sentence a higher probability than the incorrect one?

The score of a sentence is its log-probability, Σ log p over its tokens and its end. "both" adds the two directions.
"""

from collections.abc import Iterable, Iterator
from itertools import tee
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.bilm.model import BiLM
from torchelmo.errors import short_repr
from torchelmo.files import read_lines, source_name
from torchelmo.lm.predict import Scores, scores
from torchelmo.text.reading import malformed, parse_object
from torchelmo.text.tokenize import tokenizer_for

_ROUNDING = 1e-6  # relative: smaller differences of log-probabilities come from float32
_FORMAT = 'JSON lines of BLiMP: {"sentence_good": "…", "sentence_bad": "…", "UID": "…"}.'


class MinimalPair(NamedTuple):
    """Two sentences that differ in what makes one of them incorrect."""

    good: str
    bad: str
    phenomenon: str


class PairScore(NamedTuple):
    """The log-probabilities of the sentences of a pair, by direction: "forward", "backward" and "both"."""

    pair: MinimalPair
    good: dict[str, float]
    bad: dict[str, float]
    in_vocabulary: bool  # whether the vocabulary has all words in which the sentences differ

    def is_correct(self, direction: str) -> bool:
        """Return whether the correct sentence is more probable. A tie, up to float32 rounding, is an error."""
        return self.good[direction] - self.bad[direction] > _ROUNDING * abs(self.bad[direction])


class Accuracy(NamedTuple):
    """How many pairs of a phenomenon a model gets right."""

    n_pairs: int
    n_correct: dict[str, int]  # by direction
    n_unknown: int  # pairs that differ in a word outside the vocabulary, which is scored as <UNK>

    def share(self, direction: str) -> float:
        """Return the share of pairs that a direction gets right."""
        return self.n_correct[direction] / self.n_pairs


def read_pairs(path: str | Path, by: str = "UID") -> Iterator[MinimalPair]:
    """Read minimal pairs in the format of BLiMP: JSON lines with `sentence_good` and `sentence_bad`.

    Args:
        path: The file; also .gz, .bz2 or .xz. "-" is standard input.
        by: The key that names the phenomenon: "UID", "linguistics_term", "field" or any other. Pairs without it have
            the name of the file.

    Yields:
        The pairs.

    Raises:
        InputError: A line is not a JSON object with two sentences.
    """
    name = source_name(path)
    stem = name if str(path) == "-" else Path(path).name.partition(".")[0]
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        record = parse_object(line, name, number, _FORMAT)
        for key in ("sentence_good", "sentence_bad"):
            if not isinstance(record.get(key), str) or not record[key].strip():
                expected = f"a sentence as {key!r}"
                raise malformed(name, number, expected, short_repr(record.get(key)), _FORMAT)
        yield MinimalPair(record["sentence_good"], record["sentence_bad"], str(record.get(by, stem)))


def judge_pairs(
    bilm: BiLM, pairs: Iterable[MinimalPair], *, lang: str | None = "en", batch_tokens: int = 2048
) -> Iterator[PairScore]:
    """Yield the scores of every pair, in order. Pairs are read as they are needed.

    Args:
        bilm: A model with a softmax.
        pairs: The pairs.
        lang: The language whose rules tokenize the sentences; None if their tokens are separated by spaces.
        batch_tokens: About how many tokens to process at once.

    Raises:
        InputError: The model has no softmax.

    Example:
        >>> import torchelmo
        >>> from torchelmo.lm.pairs import MinimalPair, judge_pairs
        >>> pair = MinimalPair("The keys are here.", "The keys is here.", "agreement")
        >>> [found] = judge_pairs(torchelmo.load(), [pair])
        >>> found.is_correct("both")
        True
    """
    read, kept = tee(pairs)

    def sentences() -> Iterator[list[str]]:
        for pair in read:
            for text in pair[:2]:
                yield text.split() if lang is None else tokenizer_for(lang).tokens(text)

    results = scores(bilm, sentences(), batch_tokens=batch_tokens)
    for pair, good, bad in zip(kept, results, results):
        yield PairScore(pair, _log_probability(good), _log_probability(bad), _differences_known(good, bad))


def measure_accuracy(results: Iterable[PairScore]) -> dict[str, Accuracy]:
    """Return the accuracy of each phenomenon, in the order of the first pairs."""
    found: dict[str, dict[str, Any]] = {}
    for result in results:
        counts = found.setdefault(result.pair.phenomenon, {"pairs": 0, "unknown": 0, **dict.fromkeys(result.good, 0)})
        counts["pairs"] += 1
        counts["unknown"] += not result.in_vocabulary
        for direction in result.good:
            counts[direction] += result.is_correct(direction)
    return {
        name: Accuracy(counts.pop("pairs"), n_unknown=counts.pop("unknown"), n_correct=counts)
        for name, counts in found.items()
    }


def combine_accuracy(parts: Iterable[Accuracy]) -> Accuracy:
    """Return the accuracy over the pairs of several phenomena together."""
    parts = list(parts)
    correct = {direction: sum(part.n_correct[direction] for part in parts) for direction in parts[0].n_correct}
    return Accuracy(sum(part.n_pairs for part in parts), correct, sum(part.n_unknown for part in parts))


def _log_probability(found: Scores) -> dict[str, float]:
    each = {"forward": found.forward, "backward": found.backward}
    sums = {direction: float(values.sum()) for direction, values in each.items() if values is not None}
    return sums | ({"both": sum(sums.values())} if len(sums) == 2 else {})


def _differences_known(good: Scores, bad: Scores) -> bool:
    words = [set(one.tokens) for one in (good, bad)]
    differing = words[0] ^ words[1]
    unknown = {token for one in (good, bad) for token, known in zip(one.tokens, one.known) if not known}
    return not differing & unknown
