"""Softmax over real positions, and what is seen through it: attend(e, v)_i = Σ_j softmax_j(e_ij) v_j."""

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Softmax over `dim` where `mask` (bool, broadcast to `scores`) is true; 0 elsewhere, and all 0 where none is.

    >>> masked_softmax(torch.tensor([1.0, 1.0, 9.0]), torch.tensor([True, True, False])).tolist()
    [0.5, 0.5, 0.0]
    """
    # The lowest number instead of −∞: a row without a real position has weights and gradients of 0, not NaN.
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), dim=dim) * mask


def attend(scores: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """(batch, n, m), (batch, m, dim), mask of the values (batch, m) -> (batch, n, dim)."""
    return masked_softmax(scores, mask.unsqueeze(-2)) @ values


def self_attend(vectors: Tensor, mask: Tensor) -> Tensor:
    """Every position attends to its own sequence: (batch, n, dim), mask (batch, n) -> (batch, n, dim)."""
    return attend(vectors @ vectors.transpose(-2, -1), vectors, mask)
