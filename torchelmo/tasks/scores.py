"""Precision, recall and F1. An item (an entity, an argument, a word) is correct if every field matches."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeAlias

Item: TypeAlias = tuple[Any, ...]  # its label first


class Counts(NamedTuple):
    """The numbers of gold, predicted and correct items."""

    n_gold: int
    n_predicted: int
    n_correct: int

    @property
    def precision(self) -> float:
        """Correct items among the predicted ones, in percent."""
        return 100.0 * self.n_correct / self.n_predicted if self.n_predicted else 0.0

    @property
    def recall(self) -> float:
        """Correct items among the gold ones, in percent."""
        return 100.0 * self.n_correct / self.n_gold if self.n_gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, in percent."""
        return 200.0 * self.n_correct / (self.n_gold + self.n_predicted) if self.n_correct else 0.0


def count_items(pairs: Iterable[tuple[Set[Item], Set[Item]]]) -> dict[str, Counts]:
    """Count the (gold, predicted) items of all examples.

    Returns:
        The counts of every label, in alphabetical order.
    """
    n_gold: Counter[str] = Counter()
    n_predicted: Counter[str] = Counter()
    n_correct: Counter[str] = Counter()
    for gold, predicted in pairs:
        n_gold.update(label for label, *_ in gold)
        n_predicted.update(label for label, *_ in predicted)
        n_correct.update(label for label, *_ in gold & predicted)
    labels = sorted(n_gold | n_predicted)
    return {label: Counts(n_gold[label], n_predicted[label], n_correct[label]) for label in labels}


def sum_counts(counts: Mapping[str, Counts]) -> Counts:
    """Add up the counts of all labels."""
    return Counts(*(sum(row[i] for row in counts.values()) for i in range(3)))


def percentage(correct: Sequence[bool]) -> float:
    """Return the percentage of true values, 0 for an empty list."""
    return 100.0 * sum(correct) / len(correct) if correct else 0.0


def format_table(heading: str, counts: Mapping[str, Counts]) -> str:
    """Return a text table with one line for every label and one for all of them."""
    width = max(len(heading), *map(len, counts)) if counts else len(heading)
    lines = [f"{heading:<{width}}  precision  recall      F1    gold   found"]
    for label, row in [*counts.items(), ("all", sum_counts(counts))]:
        scores = f"{row.precision:9.2f}  {row.recall:6.2f}  {row.f1:6.2f}"
        lines.append(f"{label:<{width}}  {scores}  {row.n_gold:6d}  {row.n_predicted:6d}")
    return "\n".join(lines)
