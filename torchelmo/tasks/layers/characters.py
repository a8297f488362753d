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
        self.filters = nn.Linear(width * char_dim, n_filters)
        bound = math.sqrt(3.0 / char_dim)
        nn.init.uniform_(self.embedding, -bound, bound)
        nn.init.xavier_uniform_(self.filters.weight, gain=nn.init.calculate_gain("relu"))
        nn.init.zeros_(self.filters.bias)

    def forward(self, char_ids: Tensor) -> Tensor:
        real = (char_ids != 0) & (char_ids != PADDING)
        left = (self.width - 1) // 2
        padded = F.pad(char_ids.masked_fill(~real, 0), (left, self.width - 1 - left))
        # Only windows around real characters are computed: most words are far shorter than the longest.
        windows = padded.unfold(1, self.width, 1)[real]  # (n_windows, width)
        embedded = F.embedding(windows, self.embedding) * (windows != 0).unsqueeze(2)
        values = torch.relu(self.filters(embedded.flatten(1)))
        words = real.nonzero()[:, :1].expand_as(values)
        return values.new_zeros(len(char_ids), self.dim).scatter_reduce(0, words, values, "amax")
