"""Rows of a batch do not depend on each other: each core takes its share of them, longest first, without padding."""

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

_LEAST_ROWS = 16  # for a core of its own: with fewer, the products of a step are too thin


class Share(NamedTuple):
    """The rows that one core takes. Their tokens are packed: of every step the rows that reach it, step after step."""

    sizes: list[int]  # how many rows reach each step
    starts: list[int]  # the first token of each step
    step: Tensor  # (n_tokens,)
    row: Tensor  # (n_tokens,): which of the share's rows each token belongs to
    batch_row: Tensor  # (n_tokens,): which of the batch's rows that is
    places: Tensor  # (n_tokens,): where the token stands in the padded batch


def share_rows(lengths: Tensor, n_steps: int) -> list[Share]:
    """Shares of rows of these lengths, about equally long, for a batch that is padded to `n_steps`."""
    order = lengths.argsort(descending=True, stable=True)
    n_shares = _number_of_shares(len(lengths), lengths.device)
    return [_share(order[first::n_shares], lengths, n_steps) for first in range(n_shares)]


def _number_of_shares(n_rows: int, device: torch.device) -> int:
    return max(1, min(torch.get_num_threads(), n_rows // _LEAST_ROWS)) if device.type == "cpu" else 1


def _share(rows: Tensor, lengths: Tensor, n_steps: int) -> Share:
    reaches = torch.arange(n_steps, device=rows.device).unsqueeze(1) < lengths[rows]  # (steps, rows)
    sizes = [size for size in reaches.sum(dim=1).tolist() if size]
    step, row = reaches.nonzero(as_tuple=True)
    return Share(sizes, [0, *accumulate(sizes)][:-1], step, row, rows[row], rows[row] * n_steps + step)
