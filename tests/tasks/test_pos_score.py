"""Accuracy, and the table of errors."""

import pytest
from facts import mentions

from torchelmo.errors import InputError
from torchelmo.tasks.pos import Pos
from torchelmo.tasks.tagging import Tagged

report, score = Pos().report, Pos().score
EXAMPLES = [Tagged(["a", "dog"], ["DET", "NOUN"]), Tagged(["dogs", "bark"], ["NOUN", "VERB"])]
PREDICTIONS = [["DET", "NOUN"], ["NOUN", "NOUN"]]


def test_accuracy_is_over_words_not_sentences():
    assert score(EXAMPLES, PREDICTIONS) == {"accuracy": 75.0, "sentences": 50.0}


def test_nothing_to_count_is_zero():
    assert score([], []) == {"accuracy": 0.0, "sentences": 0.0}
    assert report([], []).splitlines()[0].split() == ["tag", "precision", "recall", "F1", "gold", "found"]


def test_the_report_has_a_line_for_every_tag_and_the_confusions():
    *table, confusion = report(EXAMPLES, PREDICTIONS).splitlines()
    assert [line.split() for line in table[1:]] == [
        ["DET", "100.00", "100.00", "100.00", "1", "1"],
        ["NOUN", "66.67", "100.00", "80.00", "2", "3"],
        ["VERB", "0.00", "0.00", "0.00", "1", "0"],
        ["all", "75.00", "75.00", "75.00", "4", "4"],
    ]
    assert len(set(map(len, table))) == 1
    assert confusion == "gold VERB, predicted NOUN: 1"


def test_a_tag_that_only_the_model_knows_is_in_the_report():
    assert report([Tagged(["a"], ["X"])], [["Y"]]).splitlines()[2].split() == ["Y", "0.00", "0.00", "0.00", "0", "1"]


def test_predictions_of_another_length_are_refused():
    with pytest.raises(InputError, match=mentions(2, "'a dog'", 1)):
        score(EXAMPLES, [["DET"], ["NOUN", "VERB"]])
