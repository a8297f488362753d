"""Means of senses and votes of neighbours, on vectors small enough to work out by hand."""

import numpy as np
import pytest
from facts import mentions

from torchelmo.analysis.wsd import SenseMeans, SenseOccurrences
from torchelmo.errors import ConfigError


def known(vectors, kind):
    for sense, some in vectors.items():
        for each in some:
            kind.add(sense, np.array(each))
    return kind


def test_the_nearest_mean_takes_each_layer_alone_and_the_first_of_equals():
    a, b = [[2.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [5.0, 0.0]]
    means = known({"a": [a], "b": [b], "c": [a, a, a], "zero": [np.zeros((2, 2))]}, SenseMeans())
    vectors = np.array([[1.0, 0.1], [1.0, 0.1]])
    assert means.nearest(vectors, ["a", "b"]) == ["a", "b"]
    assert means.nearest(vectors, ["c", "a"]) == ["c", "c"]
    assert means.nearest(vectors, ["a", "c"]) == ["a", "a"]
    assert means.nearest(vectors, ["zero", "b"]) == ["b", "b"]
    assert means.counts == {"a": 1, "b": 1, "c": 3, "zero": 1}


def test_the_nearest_words_vote_layer_by_layer():
    near, middle, far = [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]
    vectors = {"rare": [[near, far]], "usual": [[middle, middle], [middle, far]]}
    x = np.array([[1.0, 0.0], [1.0, 0.0]])
    answers = {k: known(vectors, SenseOccurrences(k)).nearest(x, ["rare", "usual"]) for k in (1, 2, 3, 9)}
    assert answers[1] == ["rare", "usual"]
    assert answers[2] == ["rare", "usual"]  # layer 0: 1 + 1 against 1 + 0.71
    assert answers[3] == answers[9] == ["usual", "usual"]


def test_one_vote_each_goes_to_the_nearer_and_equals_to_the_first():
    x = np.array([[1.0, 0.0]])
    votes = known({"a": [[[1.0, 1.0]]], "b": [[[3.0, 1.0]]], "c": [[[6.0, 2.0]]]}, SenseOccurrences(2))
    assert votes.nearest(x, ["a", "b"]) == ["b"]
    assert votes.nearest(x, ["b", "c"]) == ["b"]
    assert votes.nearest(x, ["c", "b"]) == ["c"]


def test_a_neighbour_on_the_other_side_still_has_a_vote():
    votes = known({"opposite": [[[-1.0, 0.2]]], "none": [[[-1.0, 0.1]]]}, SenseOccurrences(1))
    assert votes.nearest(np.array([[1.0, 0.0]]), ["none", "opposite"]) == ["opposite"]


def test_a_word_of_zeros_gets_the_first_sense_of_equals():
    votes = known({"a": [[[1.0, 0.0]]], "b": [[[0.0, 1.0]]]}, SenseOccurrences(5))
    assert votes.nearest(np.zeros((1, 2)), ["b", "a"]) == ["b"]


def test_no_neighbours_are_refused():
    with pytest.raises(ConfigError, match=mentions("neighbours", 1, 0)):
        SenseOccurrences(0)
