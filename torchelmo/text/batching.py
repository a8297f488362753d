"""Batches of sentences or examples of similar length, and random shares of examples, all reproducible."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

T = TypeVar("T")
_POOL = 50  # batches that are sorted by length together: enough for little padding, few enough for a random order


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Group positions so that each group, padded to its longest sentence, has at most `batch_tokens` tokens.

    The longest come first, so that a lack of memory shows at once. A sentence longer than `batch_tokens` is a batch of
    its own.

    >>> batches_by_length([3, 9, 4, 1], batch_tokens=10)
    [[1], [2, 0], [3]]
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    for position in order:
        # The first sentence of a batch is its longest: the others are padded to its length.
        if batches and (len(batches[-1]) + 1) * max(lengths[batches[-1][0]], 1) <= batch_tokens:
            batches[-1].append(position)
        else:
            batches.append([position])
    return batches


def windows(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield consecutive lists of `size` items; the last may be shorter. The memory is bounded."""
    iterator = iter(items)
    while window := list(islice(iterator, size)):
        yield window


def training_batches(lengths: Sequence[int], batch_size: int, *, seed: int) -> list[list[int]]:
    """Return the batches of one epoch, as positions of examples: similar lengths together, in random order.

    >>> training_batches([5, 1, 4, 2], 2, seed=1)
    [[1, 3], [2, 0]]
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(lengths))
    batches = []
    for start in range(0, len(order), batch_size * _POOL):
        pool = sorted(order[start : start + batch_size * _POOL].tolist(), key=lambda i: lengths[i])
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def scoring_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Return batches of all examples, the longest first, so that a lack of memory shows at once."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def draw_share(items: Sequence[T], share: float, *, seed: int) -> list[T]:
    """Return a random share of items, at least one, in their order. A smaller share is a part of a larger one.

    >>> draw_share("abcdefgh", 0.5, seed=1)
    ['a', 'b', 'e', 'f']
    """
    order = np.random.default_rng(seed).permutation(len(items))
    return [items[i] for i in sorted(order[: max(1, round(share * len(items)))].tolist())]
