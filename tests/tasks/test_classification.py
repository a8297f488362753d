"""Accuracy and the table by label."""

import pytest

from torchelmo.tasks.classification import Prediction
from torchelmo.tasks.nli import LABELS, Nli, NliExample

TASK = Nli()
GOLD = ["entailment", "entailment", "neutral", "contradiction"]
FOUND = ["entailment", "neutral", "neutral", "entailment"]


def examples(labels: list[str]) -> list[NliExample]:
    return [NliExample(("a",), ("b",), label) for label in labels]


def predictions(labels: list[str]) -> list[Prediction]:
    return [Prediction(label, dict.fromkeys(LABELS, 1 / 3)) for label in labels]


@pytest.mark.parametrize(("found", "accuracy"), [(GOLD, 100.0), (FOUND, 50.0), (["neutral"] * 4, 25.0)])
def test_accuracy_is_the_share_of_right_labels_in_percent(found, accuracy):
    assert TASK.score(examples(GOLD), predictions(found)) == {"accuracy": accuracy}


def test_the_metric_is_among_the_scores():
    assert TASK.metric in TASK.score(examples(GOLD), predictions(FOUND))


def test_the_report_counts_every_label():
    assert TASK.report(examples(GOLD), predictions(FOUND)).splitlines() == [
        "label          precision  recall      F1    gold   found",
        "entailment         50.00   50.00   50.00       2       2",
        "neutral            50.00  100.00   66.67       1       2",
        "contradiction       0.00    0.00    0.00       1       0",
        "all                50.00   50.00   50.00       4       4",
    ]


def test_the_report_names_gold_labels_that_the_model_does_not_know():
    assert TASK.report(examples(["odd"]), predictions(["neutral"])).splitlines()[-2].split()[0] == "odd"
