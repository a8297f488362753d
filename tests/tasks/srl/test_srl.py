"""Scores of arguments, on cases worked out by hand from the rules of srl-eval.pl."""

import pytest
from facts import mentions

from torchelmo.errors import InputError
from torchelmo.tasks.srl import Argument, Srl, arguments_of
from torchelmo.tasks.srl.data import Proposition

report, score = Srl().report, Srl().score


def proposition(tags):
    tags = tags.split()
    return Proposition(tuple("abcdefgh"[: len(tags)]), 0, tags, (0,))


def scores(*pairs):
    gold, predicted = zip(*pairs)
    return score([proposition(tags) for tags in gold], [tags.split() for tags in predicted])


def test_a_continuation_is_part_of_the_last_argument_of_its_role():
    assert arguments_of("B-A1 B-V B-C-A1 I-C-A1 B-A1 B-C-A1".split()) == [
        Argument("A1", ((0, 1), (2, 4))),
        Argument("A1", ((4, 5), (5, 6))),
    ]


def test_a_continuation_of_nothing_is_an_argument():
    assert arguments_of("B-C-A1 B-V B-A1 B-C-A0".split()) == [
        Argument("A1", ((0, 1),)),
        Argument("A1", ((2, 3),)),
        Argument("A0", ((3, 4),)),
    ]


def test_a_continuation_of_a_continuation_joins_the_same_argument():
    assert arguments_of("B-C-A1 O B-C-A1".split()) == [Argument("A1", ((0, 1), (2, 3)))]


def test_the_predicate_is_not_counted_with_any_of_its_pieces():
    assert arguments_of("B-V O B-C-V B-R-A1".split()) == [Argument("R-A1", ((3, 4),))]


def test_role_and_both_ends_must_be_right():
    # gold: A0, A1, AM-TMP. Found: A0 as it is, A1 one token short, AM-LOC for AM-TMP, and an A2: one of 4 is right.
    gold = "B-A0 I-A0 B-V B-A1 I-A1 B-AM-TMP O"
    found = "B-A0 I-A0 B-V B-A1 O B-AM-LOC B-A2"
    result = scores((gold, found))
    assert result["precision"] == pytest.approx(100 / 4)
    assert result["recall"] == pytest.approx(100 / 3)
    assert result["f1"] == pytest.approx(200 / 7)
    assert result["perfect"] == 0.0


def test_a_wrong_predicate_costs_nothing():
    result = scores(("B-A0 B-V O B-C-V", "B-A0 O B-V O"))
    assert result == {"f1": 100.0, "precision": 100.0, "recall": 100.0, "perfect": 100.0}


def test_an_argument_in_pieces_is_right_only_as_a_whole():
    gold = "B-A1 B-V B-C-A1"
    assert scores((gold, gold))["f1"] == 100.0
    # One argument in the data; the first piece alone is one wrong argument, not half a right one.
    assert scores((gold, "B-A1 B-V O")) == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "perfect": 0.0}
    # Two arguments found, none of them right.
    assert scores((gold, "B-A1 B-V B-A1"))["f1"] == 0.0
    assert scores(("B-A1 I-A1 I-A1", "B-A1 I-A1 B-C-A1"))["f1"] == 0.0


def test_a_stray_continuation_counts_as_the_role_itself():
    assert scores(("B-V B-A1", "B-V B-C-A1"))["f1"] == 100.0


def test_counts_are_summed_over_propositions_and_perfect_ones_counted():
    # 2 of 2 found of 2, 0 of 1 found of 3, and a proposition without arguments: P = 2/3, R = 2/5.
    result = scores(("B-A0 B-V B-A1", "B-A0 B-V B-A1"), ("B-A0 B-V B-A1 B-A2", "I-A3 B-V O O"), ("B-V", "B-V"))
    assert result["precision"] == pytest.approx(200 / 3)
    assert result["recall"] == pytest.approx(200 / 5)
    assert result["f1"] == pytest.approx(100 * 2 * 2 / (3 + 5))
    assert result["perfect"] == pytest.approx(200 / 3)


def test_no_propositions_and_no_arguments_are_zero_not_an_error():
    assert score([], []) == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "perfect": 0.0}
    assert scores(("B-V O", "B-V O")) == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "perfect": 100.0}


def test_the_report_has_a_line_for_every_role():
    examples = [proposition("B-A0 B-V B-R-AM-TMP O")]
    lines = report(examples, ["B-A0 B-V O B-A1".split()]).splitlines()
    assert lines == [
        "role      precision  recall      F1    gold   found",
        "A0           100.00  100.00  100.00       1       1",
        "A1             0.00    0.00    0.00       0       1",
        "R-AM-TMP       0.00    0.00    0.00       1       0",
        "all           50.00   50.00   50.00       2       2",
    ]


def test_predictions_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=mentions(1, 0)):
        score([proposition("B-V")], [])
    with pytest.raises(InputError, match=mentions(1, "'a'", 2)):
        score([proposition("B-V")], [["B-V", "O"]])
    with pytest.raises(InputError, match=mentions(1, "'a'")):
        score([proposition("B-V")._replace(tags=None)], [["B-V"]])
