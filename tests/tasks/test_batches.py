"""Batches of like lengths, and the moving average of weights."""

import pytest
import torch
from facts import mentions
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchelmo.errors import ConfigError
from torchelmo.runs.config import TaskOptimConfig
from torchelmo.runs.optim import MovingAverage
from torchelmo.tasks.config import CharactersConfig, TaskConfig, WordsConfig
from torchelmo.text.batching import scoring_batches, training_batches

LENGTHS = [(7 * i) % 31 + 1 for i in range(500)]


@given(st.lists(st.integers(0, 40), max_size=90), st.integers(1, 9), st.integers(0, 5), st.integers(1, 5))
def test_every_example_comes_once(lengths, batch_size, seed, epoch):
    for batches in (
        training_batches(lengths, batch_size, seed=seed, epoch=epoch),
        scoring_batches(lengths, batch_size),
    ):
        assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
        assert all(1 <= len(batch) <= batch_size for batch in batches)
        assert len(batches) == -(-len(lengths) // batch_size)


def test_seed_and_epoch_alone_decide_the_order():
    first = training_batches(LENGTHS, 8, seed=1, epoch=1)
    assert training_batches(LENGTHS, 8, seed=1, epoch=1) == first
    assert training_batches(LENGTHS, 8, seed=1, epoch=2) != first
    assert training_batches(LENGTHS, 8, seed=2, epoch=1) != first


def test_a_batch_has_like_lengths_and_batches_come_in_no_order():
    batches = training_batches(LENGTHS, 8, seed=1, epoch=1)
    spans = [max(LENGTHS[i] for i in batch) - min(LENGTHS[i] for i in batch) for batch in batches]
    assert sum(spans) / len(spans) < 3
    means = [sum(LENGTHS[i] for i in batch) / len(batch) for batch in batches]
    assert means != sorted(means)


def test_the_longest_examples_are_scored_first():
    assert scoring_batches([2, 9, 5, 9], 2) == [[1, 3], [2, 0]]


def test_the_moving_average_is_the_written_one():
    """a ← d·a + (1 − d)·w with d = min(decay, (1 + n) / (10 + n)), by hand."""
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    average = MovingAverage(model, 0.25)
    expected = model.weight.detach().clone()
    for n in range(1, 6):
        with torch.no_grad():
            model.weight.add_(torch.randn(2, 3))
        average.update(model)
        decay = min(0.25, (1 + n) / (10 + n))
        assert decay < 0.25 or n > 1  # both of them are tried
        expected = decay * expected + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.tensors["weight"], expected)
    assert "bias" not in average.tensors


def test_the_model_has_the_average_inside_the_block_only():
    model = nn.Linear(3, 2)
    average = MovingAverage(model, 0.9)
    with torch.no_grad():
        model.weight.add_(1.0)
    before = model.weight.detach().clone()
    with average.in_place(model):
        assert torch.equal(model.weight, average.tensors["weight"])
        assert not torch.equal(model.weight, before)
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: task(epochs=0), ("epochs", 0)),
        (lambda: task(batch_size=0), ("batch_size", 0)),
        (lambda: task(seed=-1), ("seed", -1)),
        (lambda: task(clip=-1.0), ("clip", -1.0)),
        (lambda: task(ema=1.0), ("ema", 1.0)),
        (lambda: task(checkpoint_every="soon"), ("checkpoint_every", "'soon'")),
        (lambda: WordsConfig(dim=-1), ("dim", -1)),
        (lambda: CharactersConfig(n_filters=-1), ("n_filters", -1)),
        (lambda: CharactersConfig(width=0), ("width", 0)),
        (lambda: TaskOptimConfig(halve_after=-1), ("halve_after", -1)),
        (lambda: TaskOptimConfig(lr=0.0), ("lr", 0.0)),
    ],
)
def test_settings_out_of_range_are_refused(build, words):
    with pytest.raises(ConfigError, match=mentions(*words)):
        build()


def task(**settings):
    return TaskConfig(**{"task": "pos", "train": "a", "dev": "b", "out": "c", **settings})
