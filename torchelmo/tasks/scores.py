"""Precision, recall and F1 of labelled things (entities, roles, words): right are those that are the same in all."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple, TypeAlias

Labelled: TypeAlias = tuple[Any, ...]  # its label first


class Counts(NamedTuple):
    """How many there are, were found, and were found rightly."""

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


def count(pairs: Iterable[tuple[Set[Labelled], Set[Labelled]]]) -> dict[str, Counts]:
    """What there is and what was found, example by example -> the counts of every label, in alphabetical order."""
    gold: Counter[str] = Counter()
    found: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for there, predicted in pairs:
        gold.update(label for label, *_ in there)
        found.update(label for label, *_ in predicted)
        right.update(label for label, *_ in there & predicted)
    return {label: Counts(gold[label], found[label], right[label]) for label in sorted(gold | found)}


def total(counts: Mapping[str, Counts]) -> Counts:
    """Of all labels together."""
    return Counts(*(sum(row[i] for row in counts.values()) for i in range(3)))


def table(heading: str, counts: Mapping[str, Counts]) -> str:
    """One line for every label, and one for all."""
    width = max(len(heading), *map(len, counts)) if counts else len(heading)
    lines = [f"{heading:<{width}}  precision  recall      F1    gold   found"]
    for label, row in [*counts.items(), ("all", total(counts))]:
        shares = f"{row.precision:9.2f}  {row.recall:6.2f}  {row.f1:6.2f}"
        lines.append(f"{label:<{width}}  {shares}  {row.gold:6d}  {row.found:6d}")
    return "\n".join(lines)
