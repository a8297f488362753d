"""Batches of examples: of like length, in an order that seed and epoch alone decide."""

from collections.abc import Sequence

import numpy as np

_POOL = 50  # batches that are sorted by length together: enough for little padding, few enough to stay random


def training_batches(lengths: Sequence[int], batch_size: int, *, seed: int, epoch: int) -> list[list[int]]:
    """The examples of one epoch, by their numbers.

    >>> training_batches([5, 1, 4, 2], 2, seed=1, epoch=1)
    [[1, 3], [2, 0]]
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    batches = []
    for start in range(0, len(order), batch_size * _POOL):
        pool = sorted(order[start : start + batch_size * _POOL].tolist(), key=lambda i: lengths[i])
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def scoring_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """All examples once, longest first, so that a batch too large for the memory shows at once."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
