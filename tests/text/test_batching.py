"""Batches by length, and windows of a stream."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.text.batching import batches_by_length, scoring_batches, training_batches, windows

LENGTHS = [(7 * i) % 31 + 1 for i in range(500)]


@given(st.lists(st.integers(0, 40)), st.integers(1, 100))
def test_every_position_once_within_the_limit_longest_first(lengths, batch_tokens):
    batches = batches_by_length(lengths, batch_tokens)
    assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= batch_tokens
    longest = [lengths[i] for batch in batches for i in batch]
    assert longest == sorted(longest, reverse=True)


@given(st.lists(st.integers(1, 40)), st.integers(1, 100))
def test_batches_are_full(lengths, batch_tokens):
    batches = batches_by_length(lengths, batch_tokens)
    for batch, following in itertools.pairwise(batches):
        assert (len(batch) + 1) * lengths[batch[0]] > batch_tokens, (batch, following)


def test_a_sentence_above_the_limit_is_alone():
    assert batches_by_length([5, 50, 5], 10) == [[1], [0, 2]]


def test_no_sentences():
    assert batches_by_length([], 10) == []


@given(st.lists(st.integers()), st.integers(1, 7))
def test_windows_are_the_stream_in_order(items, size):
    parts = list(windows(iter(items), size))
    assert list(itertools.chain(*parts)) == items
    assert all(len(part) == size for part in parts[:-1])
    assert all(parts)


def test_windows_read_no_further_than_they_must():
    numbers = itertools.count()
    stream = windows(numbers, 3)
    assert next(stream) == [0, 1, 2]
    assert next(numbers) == 3


@pytest.mark.parametrize("size", [1, 5])
def test_windows_of_nothing(size):
    assert list(windows([], size)) == []


@given(st.lists(st.integers(0, 40), max_size=90), st.integers(1, 9), st.integers(0, 5))
def test_every_example_comes_once(lengths, batch_size, seed):
    for batches in (
        training_batches(lengths, batch_size, seed=seed),
        scoring_batches(lengths, batch_size),
    ):
        assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
        assert all(1 <= len(batch) <= batch_size for batch in batches)
        assert len(batches) == -(-len(lengths) // batch_size)


def test_the_seed_alone_decides_the_order():
    first = training_batches(LENGTHS, 8, seed=1)
    assert training_batches(LENGTHS, 8, seed=1) == first
    assert training_batches(LENGTHS, 8, seed=2) != first


def test_a_batch_has_similar_lengths_and_batches_come_in_no_order():
    batches = training_batches(LENGTHS, 8, seed=1)
    spans = [max(LENGTHS[i] for i in batch) - min(LENGTHS[i] for i in batch) for batch in batches]
    assert sum(spans) / len(spans) < 3
    means = [sum(LENGTHS[i] for i in batch) / len(batch) for batch in batches]
    assert means != sorted(means)


def test_the_longest_examples_are_scored_first():
    assert scoring_batches([2, 9, 5, 9], 2) == [[1, 3], [2, 0]]
