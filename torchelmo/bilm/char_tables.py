"""A convolution over an embedding is a sum of table rows: T_k = E W_k, one table for each place k in the window.

    y_p = b + Σ_k T_k[c_{p+k}]        then the maximum over all windows p

Words are taken shortest first and cut after their first window of nothing but padding: those that follow are
equal to it, and cannot change the maximum.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

# Values that are worked on at once: few enough for the cache, enough to outweigh the calls.
_CHUNK_VALUES = 1 << 18


class Words(NamedTuple):
    """Words as characters, shortest first."""

    ids: Tensor  # (n, max_characters)
    lengths: list[int]  # where the run of equal characters at the end of each word begins
    order: Tensor  # (n,) their places in the input


def make_tables(embedding: Tensor, weight: Tensor) -> Tensor:
    """(width, n_characters, count): what each character adds to each filter, at each place of the window."""
    return torch.matmul(embedding, weight.permute(2, 1, 0))


def join_tables(tables: Sequence[Tensor]) -> Tensor:
    """The tables of all widths as one: (widest, n_characters + 1, n_filters), so that one sum of rows serves them all.

    A narrow filter adds nothing at the places that it has not. The character that is new stands after the last id of
    a word: −∞ for every filter that reaches it, whose maximum then leaves such windows out.
    """
    widest, n_characters = max(map(len, tables)), tables[0].shape[1]
    joined = tables[0].new_zeros(widest, n_characters + 1, sum(table.shape[2] for table in tables))
    for table, columns in zip(tables, joined.split([table.shape[2] for table in tables], dim=2)):
        columns[: len(table), :-1] = table
        columns[: len(table), -1] = -torch.inf
    return joined


def sum_rows(tables: Tensor, ids: Tensor) -> Tensor:
    """Windows of characters (words, windows, width) -> (words, windows, count)."""
    width, n_characters, _ = tables.shape
    rows = ids + torch.arange(0, width * n_characters, n_characters, device=ids.device)
    sums = F.embedding_bag(rows.flatten(0, 1), tables.flatten(0, 1), mode="sum")
    return sums.view(*ids.shape[:2], -1)


def shortest_first(ids: Tensor) -> Words:
    same = (ids == ids[:, -1:]).flip(1).long().cumprod(dim=1).sum(dim=1)
    lengths, order = torch.sort(ids.shape[1] - same, stable=True)
    return Words(ids[order], lengths.tolist(), order)


def chunks(words: Words, tables: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of a few words of like length, and their windows (words, windows, width) of characters."""
    width, _, count = tables.shape
    n, longest = words.ids.shape
    start = 0
    while start < n:
        end = min(n, start + max(1, _CHUNK_VALUES // (count * (words.lengths[start] + 1))))
        windows = min(words.lengths[end - 1] + 1, longest - width + 1)
        yield slice(start, end), words.ids[start:end, : windows + width - 1].unfold(1, width, 1)
        start = end
