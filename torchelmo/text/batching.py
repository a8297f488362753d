"""Batches of sentences of like length, and results back in input order."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

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
