"""s(i, j) = s_m(i) + s_m(j) + FFNN_a([g_i; g_j; g_i ⊙ g_j; φ(i, j)]), and 0 for the dummy ε: no antecedent."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torchelmo.tasks.coref.data import Mention
from torchelmo.tasks.layers.basic import FeedForward


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


_BUCKETS = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # the least distance of each


class AntecedentScorer(nn.Module):
    """Scores of every span with each of the `n_antecedents` before it.

    φ tells the distance in spans, whether the speaker is the same, and the genre. About `at_once` pairs are computed
    at a time, which bounds the memory.
    """

    def __init__(
        self,
        span_dim: int,
        *,
        n_antecedents: int,
        hidden_dim: int,
        n_layers: int,
        feature_dim: int,
        n_genres: int,
        dropout: float,
        at_once: int,
    ) -> None:
        super().__init__()
        self.n_antecedents, self.at_once = n_antecedents, at_once
        self.parts = [span_dim, span_dim, span_dim, feature_dim, feature_dim, feature_dim]
        self.distance = nn.Embedding(len(_BUCKETS), feature_dim)
        self.speaker = nn.Embedding(3, feature_dim)  # not known, another one, the same
        self.genre = nn.Embedding(n_genres + 1, feature_dim)  # 0: not known
        if n_genres:  # then no document may be without one in training, and random numbers would stay in that row
            with torch.no_grad():
                self.genre.weight[0].zero_()
        self.dropout = nn.Dropout(dropout)
        self.first = initialised(nn.Linear(sum(self.parts), hidden_dim))
        self.rest = FeedForward([*[hidden_dim] * n_layers, 1], dropout=dropout, last_linear=True)

    def forward(self, spans: Tensor, mention_scores: Tensor, speakers: Tensor, genre: int) -> Tensor:
        """(spans, span_dim), (spans,), (spans,) numbers, 0 for not known -> (spans, 1 + antecedents).

        Column 0 is ε, column k the antecedent k spans before, -inf where there is none.
        """
        n_spans = len(spans)
        n_antecedents = min(self.n_antecedents, n_spans - 1)
        if not n_antecedents:
            return 0.0 * mention_scores.unsqueeze(1)  # a loss of 0, with a gradient
        distances = torch.arange(1, n_antecedents + 1, device=spans.device)
        antecedents = torch.arange(n_spans, device=spans.device).unsqueeze(1) - distances
        missing, antecedents = antecedents < 0, antecedents.clamp_min(0)
        as_anaphor, as_antecedent, product, *features = self.first.weight.split(self.parts, dim=1)
        of_distance, of_speaker, of_genre = (
            F.linear(self.dropout(table.weight), weight)
            for table, weight in zip((self.distance, self.speaker, self.genre), features)
        )
        of_anaphor = F.linear(spans, as_anaphor, self.first.bias) + of_genre[genre]
        of_antecedent = F.linear(spans, as_antecedent)
        by_distance = of_distance[distance_buckets(distances)]

        def score(rows: slice) -> Tensor:
            """s_a of some rows: (rows, antecedents). Only g_i ⊙ g_j is multiplied for every pair."""
            flat, shape = antecedents[rows].flatten(), (rows.stop - rows.start, n_antecedents, -1)
            pairs = spans[rows].unsqueeze(1) * spans.index_select(0, flat).view(shape)
            hidden = F.linear(pairs, product) + of_anaphor[rows].unsqueeze(1) + by_distance
            hidden = hidden + of_antecedent.index_select(0, flat).view(shape)
            same = _speaker_feature(speakers[rows], speakers[antecedents[rows]])
            hidden = hidden + of_speaker.index_select(0, same.flatten()).view(shape)
            scores: Tensor = self.rest(self.dropout(torch.relu(hidden))).squeeze(2)
            return scores

        scores = in_pieces(score, n_spans, max(1, self.at_once // n_antecedents))
        scores = scores + mention_scores.unsqueeze(1) + mention_scores[antecedents]
        return F.pad(scores.masked_fill(missing, -torch.inf), (1, 0))


def distance_buckets(distances: Tensor) -> Tensor:
    """1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64 and more -> 0 to 8.

    >>> distance_buckets(torch.tensor([1, 4, 7, 8, 64, 900])).tolist()
    [0, 3, 4, 5, 8, 8]
    """
    return torch.bucketize(distances, torch.tensor(_BUCKETS, device=distances.device), right=True) - 1


def marginal_loss(scores: Tensor, clusters: Tensor) -> Tensor:
    """-Σ_i log Σ_{j ∈ gold(i)} P(j | i): any antecedent of the same cluster is right, and ε where there is none.

    `scores` as of `AntecedentScorer`; `clusters` (spans,) numbers the gold cluster of each, -1 for no mention.
    """
    n_antecedents = scores.shape[1] - 1
    distances = torch.arange(1, n_antecedents + 1, device=scores.device)
    antecedents = torch.arange(len(scores), device=scores.device).unsqueeze(1) - distances
    same = (clusters[antecedents.clamp_min(0)] == clusters.unsqueeze(1)) & (clusters >= 0).unsqueeze(1)
    gold = same & (antecedents >= 0)
    gold = torch.cat([~gold.any(dim=1, keepdim=True), gold], dim=1)
    return (scores.logsumexp(dim=1) - scores.masked_fill(~gold, -torch.inf).logsumexp(dim=1)).sum()


def best_antecedents(scores: Tensor) -> list[int]:
    """The place of every span's best antecedent; its own where that is ε."""
    places: list[int] = (torch.arange(len(scores)) - scores.argmax(dim=1).cpu()).tolist()
    return places


def _speaker_feature(of_anaphors: Tensor, of_antecedents: Tensor) -> Tensor:
    known = (of_anaphors > 0).unsqueeze(1) & (of_antecedents > 0)
    return torch.where(known, 1 + (of_anaphors.unsqueeze(1) == of_antecedents).long(), 0)
