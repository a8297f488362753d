"""The softmax of the language model, p(w | h) = softmax(W h + b)_w. Words are ordered by decreasing frequency."""

import math

import torch
from torch import Tensor, nn

from torchelmo.bilm.encoder import normal_


class Softmax(nn.Module):
    """Log-probabilities of words, shared by both directions: (..., projection_dim) -> (..., n_words)."""

    def __init__(self, n_words: int, dim: int, weight: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_words, dim)) if weight is None else weight
        self.bias = nn.Parameter(torch.zeros(n_words))
        if weight is None:
            normal_(self.weight, 1.0 / math.sqrt(dim))

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., projection_dim) -> (..., n_words)."""
        return torch.log_softmax(nn.functional.linear(hidden, self.weight, self.bias), dim=-1)

    def start_from_counts(self, counts: Tensor) -> None:
        """Set the bias so that hidden states of 0 predict the words' frequencies; a count of 0 is taken as 1."""
        with torch.no_grad():
            shares = counts.double().clamp_min(1.0)
            self.bias.copy_((shares / shares.sum()).log())
