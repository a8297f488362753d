"""Long documents in bounded memory."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def in_pieces(function: Callable[[slice], Tensor], n_rows: int, at_once: int) -> Tensor:
    """`function` of all rows, computed for `at_once` of them at a time.

    Where gradients are wanted, a piece keeps only its result, and is computed once more on the way back.
    """
    if n_rows <= at_once:
        return function(slice(0, n_rows))
    pieces = [slice(start, min(start + at_once, n_rows)) for start in range(0, n_rows, at_once)]
    if not torch.is_grad_enabled():
        return torch.cat([function(piece) for piece in pieces])
    return torch.cat([checkpoint(function, piece, use_reentrant=False) for piece in pieces])
