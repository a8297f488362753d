"""From scores for every start and end to the best span, and to the loss of the right ones."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class BestSpans(NamedTuple):
    first: Tensor  # (batch,): token
    last: Tensor  # (batch,): token, `first` or later
    score: Tensor  # (batch,): start score of `first` + end score of `last`


def best_spans(start: Tensor, end: Tensor, max_span: int) -> BestSpans:
    """The span of at most `max_span` tokens with the highest sum of scores; start and end (batch, tokens).

    >>> best_spans(torch.tensor([[1.0, 0.0, 3.0]]), torch.tensor([[9.0, 1.0, 0.0]]), 2).first.tolist()
    [0]
    """
    # Row i holds the ends i, i + 1, …, i + max_span − 1.
    ends = F.pad(end, (0, max_span - 1), value=-torch.inf).unfold(1, max_span, 1)
    score, place = (start.unsqueeze(-1) + ends).flatten(1).max(dim=1)
    first = place // max_span
    return BestSpans(first, first + place % max_span, score)


def boundary_loss(scores: Tensor, right: Tensor) -> Tensor:
    """−log of the probability that the softmax of `scores` gives to the `right` (bool) tokens together: (batch,).

    Scores are −∞ at padding; every row has a right token.
    """
    return scores.logsumexp(dim=1) - scores.masked_fill(~right, -torch.inf).logsumexp(dim=1)
