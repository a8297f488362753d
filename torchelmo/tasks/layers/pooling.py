"""One vector for a sequence: (batch, tokens, dim), mask (batch, tokens) -> (batch, dim). Padding is never seen.

A sequence without tokens gives 0.
"""

import torch
from torch import Tensor, nn

from torchelmo.tasks.layers.attention import masked_softmax


def max_pool(vectors: Tensor, mask: Tensor) -> Tensor:
    """The largest value of every dimension."""
    real = mask.unsqueeze(-1)
    highest = vectors.masked_fill(~real, -torch.inf).amax(dim=1)
    return highest.masked_fill(~real.any(dim=1), 0.0)


def min_pool(vectors: Tensor, mask: Tensor) -> Tensor:
    """The smallest value of every dimension."""
    return -max_pool(-vectors, mask)


def mean_pool(vectors: Tensor, mask: Tensor) -> Tensor:
    """The average over real tokens."""
    real = mask.unsqueeze(-1)
    return vectors.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1).clamp_min(1)


class SelfAttentivePool(nn.Module):
    """Σ_t softmax_t(v·x_t + d) x_t, with learned v and d."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        weights = masked_softmax(self.score(vectors).squeeze(-1), mask)  # (batch, tokens)
        return (weights.unsqueeze(-2) @ vectors).squeeze(-2)
