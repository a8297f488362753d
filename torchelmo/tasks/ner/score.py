"""Precision, recall and F1 of entities, counted as conlleval counts them: right are same label, start and end."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from torchelmo.tasks.spans import spans_of
from torchelmo.tasks.tagging import Tagged, Tags, pairs
from torchelmo.tasks.task import Scores


class Counts(NamedTuple):
    """How many entities there are, were found, and were found rightly."""

    gold: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        return 100.0 * self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return 100.0 * self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        return 200.0 * self.right / (self.gold + self.found) if self.right else 0.0


def count_entities(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> dict[str, Counts]:
    """The counts of every label that is in the data or was predicted, in alphabetical order."""
    gold: Counter[str] = Counter()
    found: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for pair in pairs(examples, predictions):
        is_there, predicted = set(spans_of(pair.gold)), set(spans_of(pair.predicted))
        gold.update(span.label for span in is_there)
        found.update(span.label for span in predicted)
        right.update(span.label for span in is_there & predicted)
    return {label: Counts(gold[label], found[label], right[label]) for label in sorted(gold | found)}


def score(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
    """Over all labels, and `accuracy`: the share of tokens with the right tag."""
    total = _total(count_entities(examples, predictions))
    same = [a == b for pair in pairs(examples, predictions) for a, b in zip(pair.gold, pair.predicted)]
    accuracy = 100.0 * sum(same) / len(same) if same else 0.0
    return {"f1": total.f1, "precision": total.precision, "recall": total.recall, "accuracy": accuracy}


def report(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
    """One line for every label, and one for all."""
    counts = count_entities(examples, predictions)
    width = max(5, *map(len, counts)) if counts else 5
    lines = [f"{'label':<{width}}  precision  recall      F1    gold   found"]
    for label, row in [*counts.items(), ("all", _total(counts))]:
        shares = f"{row.precision:9.2f}  {row.recall:6.2f}  {row.f1:6.2f}"
        lines.append(f"{label:<{width}}  {shares}  {row.gold:6d}  {row.found:6d}")
    return "\n".join(lines)


def _total(counts: dict[str, Counts]) -> Counts:
    return Counts(*(sum(row[i] for row in counts.values()) for i in range(3)))
