"""Precision, recall and F1 of arguments, counted as srl-eval.pl of CoNLL-2005 counts them.

What is counted, proposition by proposition:

- An argument is a span with its role. A span C-X is no argument of its own: it belongs to the last X before it (itself
  perhaps joined already), and the two are one argument in pieces. A C-X without an X before it counts as an X.
- Right are arguments with the same role and the same pieces, all of them. An X in one piece is wrong where the data has
  X and C-X, and the other way round, as a whole.
- R-X is a role of its own. V, with its C-V, is not counted at all.
- Counts are summed over all propositions: precision = right / found, recall = right / gold. `perfect` is the share of
  propositions without a wrong or missing argument.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torchelmo.tasks.counts import count, table, total
from torchelmo.tasks.spans import spans_of
from torchelmo.tasks.srl.data import Proposition
from torchelmo.tasks.tagging import Tags, pairs
from torchelmo.tasks.task import Scores

_NOT_COUNTED = "V"
_CONTINUES = "C-"


class Argument(NamedTuple):
    role: str
    pieces: tuple[tuple[int, int], ...]  # start and end of each, in order


def arguments_of(tags: Sequence[str]) -> list[Argument]:
    """The arguments of a proposition with their continuations, V left out.

    >>> arguments_of(["B-A1", "B-V", "B-C-A1", "B-R-A0"])
    [Argument(role='A1', pieces=((0, 1), (2, 3))), Argument(role='R-A0', pieces=((3, 4),))]
    """
    found: list[Argument] = []
    last: dict[str, int] = {}  # the place in `found` of the last argument with a role
    for label, start, end in spans_of(tags):
        role = label.removeprefix(_CONTINUES)
        if role != label and role in last:
            before = found[last[role]]
            found[last[role]] = before._replace(pieces=(*before.pieces, (start, end)))
        else:
            last[role] = len(found)
            found.append(Argument(role, ((start, end),)))
    return [argument for argument in found if argument.role != _NOT_COUNTED]


def score(examples: Sequence[Proposition], predictions: Sequence[Tags]) -> Scores:
    both = _arguments(examples, predictions)
    arguments = total(count(both))
    perfect = 100.0 * sum(there == found for there, found in both) / len(both) if both else 0.0
    return {"f1": arguments.f1, "precision": arguments.precision, "recall": arguments.recall, "perfect": perfect}


def report(examples: Sequence[Proposition], predictions: Sequence[Tags]) -> str:
    """One line for every role, and one for all."""
    return table("role", count(_arguments(examples, predictions)))


def _arguments(
    examples: Sequence[Proposition], predictions: Sequence[Tags]
) -> list[tuple[set[Argument], set[Argument]]]:
    """The gold and the predicted ones of every proposition."""
    return [(set(arguments_of(gold)), set(arguments_of(tags))) for gold, tags in pairs(examples, predictions)]
