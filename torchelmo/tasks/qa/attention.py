"""Trilinear attention, a_ij = w·[h_i; q_j; h_i⊙q_j], between a passage and its question and within the passage."""

import torch
from torch import Tensor, nn

from torchelmo.tasks.layers.attention import masked_softmax


class Trilinear(nn.Module):
    """(batch, n, dim) and (batch, m, dim) -> scores (batch, n, m)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        bound = (3 * dim) ** -0.5  # as nn.Linear(3 * dim, 1) begins
        self.left = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))
        self.right = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))
        self.product = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        # The three parts of w apart, so that no (batch, n, m, dim) tensor of pairs is ever made. q·(w⊙h) + w·q is
        # q·(w⊙h + w'), which leaves one addition over all pairs.
        scores = (left * self.product + self.right) @ right.transpose(1, 2)
        return scores + (left @ self.left).unsqueeze(-1)


class PassageAttention(nn.Module):
    """Passage h and question q, both ways: -> [h; c; h⊙c; c⊙h̄], c what each h_i sees of q, h̄ what q sees of h."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scores = Trilinear(dim)
        self.dim = 4 * dim

    def forward(self, passage: Tensor, passage_mask: Tensor, question: Tensor, question_mask: Tensor) -> Tensor:
        scores = self.scores(passage, question)
        weights = masked_softmax(scores, question_mask.unsqueeze(1))
        seen = weights @ question
        best = scores.masked_fill(~question_mask.unsqueeze(1), torch.finfo(scores.dtype).min).amax(dim=-1)
        summary = masked_softmax(best, passage_mask).unsqueeze(1) @ passage  # (batch, 1, dim)
        return torch.cat((passage, seen, passage * seen, seen * summary), dim=-1)


class SelfAttention(nn.Module):
    """Passage h with itself, no token with its own place: -> [h; c; h⊙c]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scores = Trilinear(dim)
        self.dim = 3 * dim

    def forward(self, passage: Tensor, mask: Tensor) -> Tensor:
        itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        weights = masked_softmax(self.scores(passage, passage), mask.unsqueeze(1) & ~itself)
        seen = weights @ passage
        return torch.cat((passage, seen, passage * seen), dim=-1)
