"""Precision, recall and F1 of entities, counted as conlleval counts them: right are same label, start and end."""

from collections.abc import Sequence

from torchelmo.tasks.counts import Counts, count, table, total
from torchelmo.tasks.spans import spans_of
from torchelmo.tasks.tagging import Tagged, Tags, pairs
from torchelmo.tasks.task import Scores


def count_entities(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> dict[str, Counts]:
    """The counts of every label that is in the data or was predicted, in alphabetical order."""
    return count((set(spans_of(gold)), set(spans_of(predicted))) for gold, predicted in pairs(examples, predictions))


def score(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
    """Over all labels, and `accuracy`: the share of tokens with the right tag."""
    entities = total(count_entities(examples, predictions))
    same = [a == b for pair in pairs(examples, predictions) for a, b in zip(pair.gold, pair.predicted)]
    accuracy = 100.0 * sum(same) / len(same) if same else 0.0
    return {"f1": entities.f1, "precision": entities.precision, "recall": entities.recall, "accuracy": accuracy}


def report(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
    """One line for every label, and one for all."""
    return table("label", count_entities(examples, predictions))
