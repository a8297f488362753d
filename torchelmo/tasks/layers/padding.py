"""Rows of different lengths as one tensor, the real values first."""

from collections.abc import Sequence

import torch
from torch import Tensor


def lengths_mask(lengths: Sequence[int] | Tensor, device: torch.device | str | None = None) -> Tensor:
    """(n,) lengths -> (n, longest) bool, true at the real positions of each row.

    >>> lengths_mask([2, 0, 1]).int().tolist()
    [[1, 1], [0, 0], [1, 0]]
    """
    lengths = torch.as_tensor(lengths, dtype=torch.long, device=device)
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)


def pad_ids(rows: Sequence[Sequence[int]], value: int = 0, device: torch.device | str | None = None) -> Tensor:
    """(n, longest) int64, `value` after the end of each row.

    >>> pad_ids([[5, 6], [7]]).tolist()
    [[5, 6], [7, 0]]
    """
    longest = max(map(len, rows), default=0)
    padded = [[*row, *[value] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long, device=device).view(len(rows), longest)
