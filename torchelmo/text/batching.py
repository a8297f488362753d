"""Batches of examples: of like length, in an order that seed and epoch alone decide."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Positions grouped so that each group, padded to its longest, has at most `batch_tokens` tokens.

    Longest first: the batch that needs the most memory comes at the start, not after an hour. A sentence
    longer than `batch_tokens` is a batch of its own.

    >>> batches_by_length([3, 9, 4, 1], batch_tokens=10)
    [[1], [2, 0], [3]]
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    for position in order:
        # The first of a batch is its longest: all others are padded to its length.
        if batches and (len(batches[-1]) + 1) * max(lengths[batches[-1][0]], 1) <= batch_tokens:
            batches[-1].append(position)
        else:
            batches.append([position])
    return batches


def windows(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of `size` items (the last may be shorter): a stream in bounded memory."""
    iterator = iter(items)
    while window := list(islice(iterator, size)):
        yield window


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
