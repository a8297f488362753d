"""A word's characters → its vector: y_f = relu(max_p (b_f + Σ_k W_fk · e(c_{p+k}))), p over the word alone."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.text.characters import PADDING


class TokenCharCNN(nn.Module):
    """(n_words, n_characters) ids in the layout of `CharacterEncoder` -> (n_words, n_filters), trained with the task.

    Windows reach over the word's ends as if zeros stood there: any width suits any word, and padding changes nothing.
    """

    def __init__(self, *, char_dim: int = 16, n_filters: int = 128, width: int = 3) -> None:
        super().__init__()
        self.dim, self.width = n_filters, width
        self.embedding = nn.Parameter(torch.empty(PADDING + 1, char_dim))
        self.convolution = nn.Conv1d(char_dim, n_filters, width)
        bound = math.sqrt(3.0 / char_dim)
        nn.init.uniform_(self.embedding, -bound, bound)
        nn.init.xavier_uniform_(self.convolution.weight, gain=nn.init.calculate_gain("relu"))
        assert self.convolution.bias is not None
        nn.init.zeros_(self.convolution.bias)

    def forward(self, char_ids: Tensor) -> Tensor:
        real = (char_ids != 0) & (char_ids != PADDING)
        longest = int(real.sum(dim=1).max()) if real.numel() else 0
        if not longest:
            return self.embedding.new_zeros(len(char_ids), self.dim)
        real = real[:, :longest]
        embedded = F.embedding(char_ids[:, :longest], self.embedding).masked_fill(~real.unsqueeze(2), 0.0)
        left = (self.width - 1) // 2
        windows = self.convolution(F.pad(embedded.transpose(1, 2), (left, self.width - 1 - left)))
        return torch.relu(windows.masked_fill(~real.unsqueeze(1), -torch.inf).amax(dim=2))
