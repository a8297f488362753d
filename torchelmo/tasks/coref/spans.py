"""All spans of a document as a grid: row t, column w is the span of tokens t to t + w.

g = [x*_start; x*_end; Σ a_t x_t; φ(width)], where a = softmax over the span of FFNN_α(x*_t) finds its head word.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.tasks.coref.data import Mention
from torchelmo.tasks.coref.pieces import in_pieces
from torchelmo.tasks.layers.feed_forward import FeedForward


class Tokens(NamedTuple):
    """A document without its sentences: one row for every token."""

    context: Tensor  # (tokens, context_dim), x*: the states of the biLSTM
    words: Tensor  # (tokens, word_dim), x: what the biLSTM read
    heads: Tensor  # (tokens,) FFNN_α(x*)


class SpanEncoder(nn.Module):
    """The representation g of some spans, and the first layer over it of all spans."""

    def __init__(self, context_dim: int, word_dim: int, *, max_width: int, feature_dim: int, dropout: float) -> None:
        super().__init__()
        self.parts = [context_dim, context_dim, word_dim, feature_dim]
        self.dim, self.max_width = sum(self.parts), max_width
        self.width = nn.Embedding(max_width, feature_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tokens, starts: Tensor, ends: Tensor) -> Tensor:
        """(spans,) the first token of each and the one after its last -> (spans, dim)."""
        steps = torch.arange(self.max_width, device=starts.device)
        places = starts.unsqueeze(1) + steps
        inside = places < ends.unsqueeze(1)  # (spans, max_width)
        places = places.clamp_max(len(tokens.heads) - 1)
        attention = tokens.heads[places].masked_fill(~inside, -torch.inf).softmax(dim=1)
        head = torch.einsum("sw,swd->sd", attention, tokens.words[places])
        width = self.dropout(self.width.weight)[ends - starts - 1]
        return torch.cat([tokens.context[starts], tokens.context[ends - 1], head, width], dim=1)

    def first_layer(self, tokens: Tokens, linear: nn.Linear) -> Tensor:
        """`linear`(g) of every span in the grid: (tokens, max_width, linear.out_features).

        Each part of g is multiplied by its own columns of the weight before the parts are put together: once for
        every token, not once for every span that it is in.
        """
        start, end, head, width = linear.weight.split(self.parts, dim=1)
        by_start = F.linear(tokens.context, start, linear.bias)
        by_end = F.linear(tokens.context, end)
        by_width = F.linear(self.dropout(self.width.weight), width)
        words = windows(F.linear(tokens.words, head), self.max_width)
        within = torch.ones(self.max_width, self.max_width, dtype=torch.bool, device=words.device).tril()
        logits = windows(tokens.heads.unsqueeze(1), self.max_width).transpose(1, 2)
        attention = logits.masked_fill(~within, -torch.inf).softmax(dim=2)  # (tokens, widths, places)
        return by_start.unsqueeze(1) + windows(by_end, self.max_width) + attention @ words + by_width


class MentionScorer(nn.Module):
    """s_m = FFNN_m(g) of every span in the grid, about `at_once` of them at a time; `n_scores` of each."""

    def __init__(
        self, encoder: SpanEncoder, *, hidden_dim: int, n_layers: int, dropout: float, at_once: int, n_scores: int = 1
    ) -> None:
        super().__init__()
        self.at_once = at_once
        self.first = initialised(nn.Linear(encoder.dim, hidden_dim))
        self.rest = FeedForward([*[hidden_dim] * n_layers, n_scores], dropout=dropout, last_linear=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, encoder: SpanEncoder, tokens: Tokens) -> Tensor:
        """(tokens, max_width, n_scores); of the spans that end beyond their sentence too, which mean nothing."""

        def score(rows: slice) -> Tensor:
            reach = slice(rows.start, rows.stop + encoder.max_width - 1)  # the last spans need the tokens after them
            hidden = encoder.first_layer(Tokens(*(part[reach] for part in tokens)), self.first)
            scores: Tensor = self.rest(self.dropout(torch.relu(hidden[: rows.stop - rows.start])))
            return scores

        return in_pieces(score, len(tokens.heads), max(1, self.at_once // encoder.max_width))


def initialised(linear: nn.Linear) -> nn.Linear:
    """A first layer that is taken apart begins as the layers of a `FeedForward` do."""
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def span_grid(lengths: Sequence[int], max_width: int, device: torch.device | str | None = None) -> Tensor:
    """(tokens, max_width) bool: which spans lie within one sentence, of these lengths.

    >>> span_grid([2, 1], max_width=2).int().tolist()
    [[1, 1], [1, 0], [1, 0]]
    """
    left = [length - place for length in lengths for place in range(length)]
    return torch.arange(max_width, device=device) < torch.tensor(left, device=device).unsqueeze(1)


def windows(x: Tensor, width: int) -> Tensor:
    """(tokens, dim) -> (tokens, width, dim): every token and those after it, 0 beyond the last."""
    padded = F.pad(x, (0, 0, 0, width - 1))
    return torch.stack([padded[step : step + len(x)] for step in range(width)], dim=1)


def prune(scores: Tensor, grid: Tensor, n_spans: int) -> list[Mention]:
    """The best `n_spans` spans, none of which crosses a better one; in the order of the text."""
    n_tokens, max_width = grid.shape
    order = scores.masked_fill(~grid, -torch.inf).flatten().argsort(descending=True, stable=True)
    longest = list(range(n_tokens))  # by first token: the last token of the longest span taken there
    earliest = list(range(n_tokens))  # by last token: the first token of the longest span taken there
    taken: list[Mention] = []
    for place in order[: int(grid.sum())].tolist():
        if len(taken) == n_spans:
            break
        first = place // max_width
        last = first + place % max_width
        begins_inside = any(longest[t] > last for t in range(first + 1, last + 1))
        if begins_inside or any(earliest[t] < first for t in range(first, last)):
            continue  # one of the two ends lies within a span that was taken, the other does not
        longest[first] = max(longest[first], last)
        earliest[last] = min(earliest[last], first)
        taken.append(Mention(first, last + 1))
    return sorted(taken)
