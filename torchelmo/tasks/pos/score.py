"""Accuracy over words, and where the errors are."""

from collections import Counter
from collections.abc import Sequence

from torchelmo.tasks.counts import count, table
from torchelmo.tasks.tagging import Tagged, Tags, pairs
from torchelmo.tasks.task import Scores

_N_CONFUSIONS = 10


def score(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
    """`accuracy`: the share of words with the right tag; `sentences`: of sentences without an error."""
    counted = list(pairs(examples, predictions))
    words = [a == b for pair in counted for a, b in zip(pair.gold, pair.predicted)]
    return {"accuracy": _share(words), "sentences": _share([pair.gold == pair.predicted for pair in counted])}


def report(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
    """Precision, recall and F1 of every tag, and the confusions that cost most."""
    words = [word for pair in pairs(examples, predictions) for word in zip(pair.gold, pair.predicted)]
    lines = [table("tag", count(({(gold,)}, {(found,)}) for gold, found in words))]
    errors = Counter(word for word in words if word[0] != word[1])
    for (tag, predicted), n_words in errors.most_common(_N_CONFUSIONS):
        lines.append(f"{tag} taken for {predicted}: {n_words}")
    return "\n".join(lines)


def _share(right: list[bool]) -> float:
    return 100.0 * sum(right) / len(right) if right else 0.0
