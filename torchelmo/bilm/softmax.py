"""The language model's softmax: which word comes next (or came before)."""

import math

import torch
from torch import Tensor, nn

from torchelmo.bilm.initialise import normal_


class Softmax(nn.Module):
    """(..., projection_dim) -> (..., n_words) log-probabilities, shared by the two directions."""

    def __init__(self, n_words: int, dim: int, weight: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_words, dim)) if weight is None else weight
        self.bias = nn.Parameter(torch.zeros(n_words))
        if weight is None:
            normal_(self.weight, 1.0 / math.sqrt(dim))

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.log_softmax(nn.functional.linear(hidden, self.weight, self.bias), dim=-1)
