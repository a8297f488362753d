"""A word type is encoded once: the distinct rows of a batch of character ids."""

from functools import cache

import torch
from torch import Tensor


def unique_rows(ids: Tensor) -> tuple[Tensor, Tensor]:
    """(n, width) -> its distinct rows (m, width), and for every row its place among them (n,).

    Rows are told apart by a 64-bit hash, and the result is checked against the rows themselves: sorting
    single numbers is many times faster than sorting rows of fifty.
    """
    if ids.dim() != 2 or len(ids) == 0:
        return ids, torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
    hashes = (ids * _multipliers(ids.shape[1]).to(ids.device)).sum(dim=1)
    distinct, place = torch.unique(hashes, return_inverse=True)
    example = torch.empty_like(distinct).scatter_(0, place, torch.arange(len(ids), device=ids.device))
    rows = ids[example]
    if not torch.equal(rows[place], ids):  # two words share a hash: once in about 2^64 pairs
        rows, place = torch.unique(ids, dim=0, return_inverse=True)
    return rows, place


@cache
def _multipliers(width: int) -> Tensor:
    """Fixed odd numbers; sums of products wrap around, which is what a hash wants."""
    generator = torch.Generator().manual_seed(2018)
    return torch.randint(-(2**62), 2**62, (width,), generator=generator) * 2 + 1
