"""Minimal pairs: the accuracy by phenomenon and direction, against a sum by hand."""

import json

import pytest
from facts import mentions
from tiny_lm import tiny_lm

from torchelmo.errors import InputError
from torchelmo.lm import perplexity
from torchelmo.lm.pairs import combine_accuracy, judge_pairs, measure_accuracy, read_pairs

PAIRS = [
    ("the bow and arrow.", "the bow and rose.", "a"),
    ("the rose.", "the bow.", "a"),
    ("arrow and rose.", "arrow and quiver.", "b"),
    ("the rose and the arrow", "rose the and the arrow", "b"),
    ("the same.", "the same.", "b"),
]


@pytest.fixture(scope="module")
def bilm():
    return tiny_lm()


@pytest.fixture
def blimp(tmp_path):
    path = tmp_path / "agreement.jsonl"
    keys = ("sentence_good", "sentence_bad", "UID")
    lines = [json.dumps(dict(zip(keys, pair)) | {"field": "syntax", "simple_LM_method": True}) for pair in PAIRS]
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return path


def test_accuracy_is_that_of_a_sum_by_hand(bilm, blimp):
    def loss(text, direction):
        tokens = text.replace(".", " .").split()
        return perplexity(bilm, [tokens]).loss(direction)

    found = measure_accuracy(judge_pairs(bilm, read_pairs(blimp)))
    assert list(found) == ["a", "b"]
    for name, accuracy in found.items():
        pairs = [pair[:2] for pair in PAIRS if pair[2] == name]
        assert accuracy.n_pairs == len(pairs)
        for direction in ("forward", "backward"):
            right = [loss(good, direction) < loss(bad, direction) - 1e-9 for good, bad in pairs]
            assert accuracy.n_correct[direction] == sum(right)
        right = [
            sum(loss(good, d) for d in ("forward", "backward"))
            < sum(loss(bad, d) for d in ("forward", "backward")) - 1e-9
            for good, bad in pairs
        ]
        assert accuracy.share("both") == sum(right) / len(pairs)
    assert found["a"].n_unknown == 0
    assert found["b"].n_unknown == 1  # "quiver"; the pair with "same" does not differ
    whole = combine_accuracy(found.values())
    assert whole.n_pairs == 5
    assert whole.n_correct["both"] == sum(one.n_correct["both"] for one in found.values())


def test_a_tie_is_an_error(bilm, blimp):
    *_, tie = judge_pairs(bilm, read_pairs(blimp))
    assert not any(tie.is_correct(direction) for direction in ("forward", "backward", "both"))


def test_a_model_of_one_direction_has_one_accuracy(blimp):
    found = measure_accuracy(judge_pairs(tiny_lm("backward"), read_pairs(blimp)))
    assert list(found["a"].n_correct) == ["backward"]


def test_tokens_may_be_given(bilm, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"sentence_good": "the bow .", "sentence_bad": "the rose."}), encoding="utf-8")
    [found] = judge_pairs(bilm, read_pairs(path), lang=None)
    assert found.pair.phenomenon == "p"
    assert not found.in_vocabulary  # "rose." is one token
    assert found.good["forward"] == pytest.approx(-perplexity(bilm, [["the", "bow", "."]]).loss("forward"))


@pytest.mark.parametrize("by", ["field", "file"])
def test_the_name_of_a_phenomenon(blimp, by):
    expected = {"field": "syntax", "file": "agreement"}[by]
    assert {pair.phenomenon for pair in read_pairs(blimp, by)} == {expected}


@pytest.mark.parametrize("line", ['{"sentence_good": "a"}', '{"sentence_good": "", "sentence_bad": "b"}', "[]", "a b"])
def test_damaged_lines_are_named(tmp_path, line):
    path = tmp_path / "p.jsonl"
    path.write_text('{"sentence_good": "a", "sentence_bad": "b"}\n' + line, encoding="utf-8")
    with pytest.raises(InputError, match=mentions("p.jsonl", "line 2")):
        list(read_pairs(path))
