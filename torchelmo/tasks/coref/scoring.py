"""Score spans as mentions, and pairs of spans as mention and antecedent (Lee et al. 2017).

s(i, j) = s_m(i) + s_m(j) + FFNN_a([g_i; g_j; g_i ⊙ g_j; φ(i, j)])        s(i, ε) = 0: no antecedent
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torchelmo.tasks.coref.data import Mention
from torchelmo.tasks.layers.basic import FeedForward

CHUNK_SIZE = 16384  # spans or pairs that are scored together: bounds the memory, does not change results
_BUCKETS = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # the smallest distance of each bucket


class Tokens(NamedTuple):
    """The token vectors of a document."""

    context: Tensor  # (tokens, context_dim), x*: the states of the biLSTM
    words: Tensor  # (tokens, word_dim), x: the input of the biLSTM
    heads: Tensor  # (tokens,), FFNN_α(x*): scores of tokens as the head of a span


class SpanEncoder(nn.Module):
    """Compute the representation g = [x*_start; x*_end; head; width] of spans."""

    def __init__(self, context_dim: int, word_dim: int, *, max_width: int, feature_dim: int, dropout: float) -> None:
        super().__init__()
        self.parts = [context_dim, context_dim, word_dim, feature_dim]
        self.dim, self.max_width = sum(self.parts), max_width
        self.width = nn.Embedding(max_width, feature_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tokens, starts: Tensor, ends: Tensor) -> Tensor:
        """Return g of some spans: starts and ends (spans,) -> (spans, dim). An end is the token after the last."""
        steps = torch.arange(self.max_width, device=starts.device)
        places = starts.unsqueeze(1) + steps
        inside = places < ends.unsqueeze(1)  # (spans, max_width)
        places = places.clamp_max(len(tokens.heads) - 1)
        attention = tokens.heads[places].masked_fill(~inside, -torch.inf).softmax(dim=1)
        head = torch.einsum("sw,swd->sd", attention, tokens.words[places])
        width = self.dropout(self.width.weight)[ends - starts - 1]
        return torch.cat([tokens.context[starts], tokens.context[ends - 1], head, width], dim=1)

    def first_layer(self, tokens: Tokens, linear: nn.Linear) -> Tensor:
        """Return `linear`(g) of all spans: (tokens, max_width, linear.out_features).

        Each part of g is multiplied by its columns of the weight before the parts are added: once for every token,
        not once for every span that contains it.
        """
        start, end, head, width = linear.weight.split(self.parts, dim=1)
        by_start = F.linear(tokens.context, start, linear.bias)
        by_end = F.linear(tokens.context, end)
        by_width = F.linear(self.dropout(self.width.weight), width)
        words = shift_windows(F.linear(tokens.words, head), self.max_width)
        within = torch.ones(self.max_width, self.max_width, dtype=torch.bool, device=words.device).tril()
        logits = shift_windows(tokens.heads.unsqueeze(1), self.max_width).transpose(1, 2)
        attention = logits.masked_fill(~within, -torch.inf).softmax(dim=2)  # (tokens, widths, positions)
        return by_start.unsqueeze(1) + shift_windows(by_end, self.max_width) + attention @ words + by_width


class MentionScorer(nn.Module):
    """Score all spans as mentions: s_m = FFNN_m(g), with `n_scores` scores for each span."""

    def __init__(
        self,
        encoder: SpanEncoder,
        *,
        hidden_dim: int,
        n_layers: int,
        dropout: float,
        n_scores: int = 1,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        super().__init__()
        self.chunk_size = chunk_size
        self.first = _initialized(nn.Linear(encoder.dim, hidden_dim))
        self.rest = FeedForward([*[hidden_dim] * n_layers, n_scores], dropout=dropout, last_linear=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, encoder: SpanEncoder, tokens: Tokens) -> Tensor:
        """Return the scores (tokens, max_width, n_scores); those of spans beyond their sentence are meaningless."""

        def score(rows: slice) -> Tensor:
            needed = slice(rows.start, rows.stop + encoder.max_width - 1)  # the last spans contain tokens after `rows`
            hidden = encoder.first_layer(Tokens(*(part[needed] for part in tokens)), self.first)
            scores: Tensor = self.rest(self.dropout(torch.relu(hidden[: rows.stop - rows.start])))
            return scores

        return map_in_chunks(score, len(tokens.heads), max(1, self.chunk_size // encoder.max_width))


def span_grid(lengths: Sequence[int], max_width: int, device: torch.device | str | None = None) -> Tensor:
    """Return which spans lie within one sentence of these lengths: (tokens, max_width) bool.

    >>> span_grid([2, 1], max_width=2).int().tolist()
    [[1, 1], [1, 0], [1, 0]]
    """
    remaining = [length - position for length in lengths for position in range(length)]
    return torch.arange(max_width, device=device) < torch.tensor(remaining, device=device).unsqueeze(1)


def shift_windows(x: Tensor, width: int) -> Tensor:
    """Return every token and those after it, 0 beyond the last: (tokens, dim) -> (tokens, width, dim)."""
    padded = F.pad(x, (0, 0, 0, width - 1))
    return torch.stack([padded[step : step + len(x)] for step in range(width)], dim=1)


def prune(scores: Tensor, grid: Tensor, n_spans: int) -> list[Mention]:
    """Return the best `n_spans` spans that do not cross a better one, in the order of the text."""
    n_tokens, max_width = grid.shape
    order = scores.masked_fill(~grid, -torch.inf).flatten().argsort(descending=True, stable=True)
    longest = list(range(n_tokens))  # by first token: the last token of the longest kept span
    earliest = list(range(n_tokens))  # by last token: the first token of the longest kept span
    kept: list[Mention] = []
    for index in order[: int(grid.sum())].tolist():
        if len(kept) == n_spans:
            break
        first = index // max_width
        last = first + index % max_width
        starts_inside = any(longest[t] > last for t in range(first + 1, last + 1))
        if starts_inside or any(earliest[t] < first for t in range(first, last)):
            continue  # it crosses a kept span: one end lies inside, the other outside
        longest[first] = max(longest[first], last)
        earliest[last] = min(earliest[last], first)
        kept.append(Mention(first, last + 1))
    return sorted(kept)


class AntecedentScorer(nn.Module):
    """Score every span with each of the `n_antecedents` spans before it.

    The features φ are the distance in spans, whether the speaker is the same, and the genre.
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
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        super().__init__()
        self.n_antecedents, self.chunk_size = n_antecedents, chunk_size
        self.parts = [span_dim, span_dim, span_dim, feature_dim, feature_dim, feature_dim]
        self.distance = nn.Embedding(len(_BUCKETS), feature_dim)
        self.speaker = nn.Embedding(3, feature_dim)  # unknown, another one, the same
        self.genre = nn.Embedding(n_genres + 1, feature_dim)  # 0: unknown
        if n_genres:  # the row of unknown genres may get no training, so it must not keep its random values
            with torch.no_grad():
                self.genre.weight[0].zero_()
        self.dropout = nn.Dropout(dropout)
        self.first = _initialized(nn.Linear(sum(self.parts), hidden_dim))
        self.rest = FeedForward([*[hidden_dim] * n_layers, 1], dropout=dropout, last_linear=True)

    def forward(self, spans: Tensor, mention_scores: Tensor, speakers: Tensor, genre: int) -> Tensor:
        """Return the scores (spans, 1 + antecedents): column 0 is ε, column k the span k before, -inf if there is none.

        Args:
            spans: (spans, span_dim), their representations.
            mention_scores: (spans,).
            speakers: (spans,), the number of each speaker, 0 for an unknown one.
            genre: The number of the genre, 0 for an unknown one.
        """
        n_spans = len(spans)
        n_antecedents = min(self.n_antecedents, n_spans - 1)
        if not n_antecedents:
            return 0.0 * mention_scores.unsqueeze(1)  # keeps the graph, so that a loss of 0 has gradients
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
            """Return s_a of some rows: (rows, antecedents). Only g_i ⊙ g_j is computed for every pair."""
            flat, shape = antecedents[rows].flatten(), (rows.stop - rows.start, n_antecedents, -1)
            pairs = spans[rows].unsqueeze(1) * spans.index_select(0, flat).view(shape)
            hidden = F.linear(pairs, product) + of_anaphor[rows].unsqueeze(1) + by_distance
            hidden = hidden + of_antecedent.index_select(0, flat).view(shape)
            same = _speaker_feature(speakers[rows], speakers[antecedents[rows]])
            hidden = hidden + of_speaker.index_select(0, same.flatten()).view(shape)
            scores: Tensor = self.rest(self.dropout(torch.relu(hidden))).squeeze(2)
            return scores

        scores = map_in_chunks(score, n_spans, max(1, self.chunk_size // n_antecedents))
        scores = scores + mention_scores.unsqueeze(1) + mention_scores[antecedents]
        return F.pad(scores.masked_fill(missing, -torch.inf), (1, 0))


def distance_buckets(distances: Tensor) -> Tensor:
    """Map the distances 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63 and 64 or more to 0, …, 8.

    >>> distance_buckets(torch.tensor([1, 4, 7, 8, 64, 900])).tolist()
    [0, 3, 4, 5, 8, 8]
    """
    return torch.bucketize(distances, torch.tensor(_BUCKETS, device=distances.device), right=True) - 1


def marginal_loss(scores: Tensor, clusters: Tensor) -> Tensor:
    """Return -Σ_i log Σ_{j ∈ gold(i)} P(j | i). All antecedents of the same cluster are correct, or ε if there is none.

    Args:
        scores: The scores of `AntecedentScorer`.
        clusters: (spans,), the number of the gold cluster of each span, -1 if it is no mention.
    """
    n_antecedents = scores.shape[1] - 1
    distances = torch.arange(1, n_antecedents + 1, device=scores.device)
    antecedents = torch.arange(len(scores), device=scores.device).unsqueeze(1) - distances
    same = (clusters[antecedents.clamp_min(0)] == clusters.unsqueeze(1)) & (clusters >= 0).unsqueeze(1)
    gold = same & (antecedents >= 0)
    gold = torch.cat([~gold.any(dim=1, keepdim=True), gold], dim=1)
    return (scores.logsumexp(dim=1) - scores.masked_fill(~gold, -torch.inf).logsumexp(dim=1)).sum()


def best_antecedents(scores: Tensor) -> list[int]:
    """Return the index of the best antecedent of every span, or its own index if it has none (ε)."""
    indices: list[int] = (torch.arange(len(scores)) - scores.argmax(dim=1).cpu()).tolist()
    return indices


def _speaker_feature(of_anaphors: Tensor, of_antecedents: Tensor) -> Tensor:
    known = (of_anaphors > 0).unsqueeze(1) & (of_antecedents > 0)
    return torch.where(known, 1 + (of_anaphors.unsqueeze(1) == of_antecedents).long(), 0)


def map_in_chunks(function: Callable[[slice], Tensor], n_rows: int, chunk_size: int) -> Tensor:
    """Return `function` of all rows, computed for `chunk_size` rows at a time.

    With gradients, each chunk keeps only its result and is computed again in the backward pass.
    """
    if n_rows <= chunk_size:
        return function(slice(0, n_rows))
    chunks = [slice(start, min(start + chunk_size, n_rows)) for start in range(0, n_rows, chunk_size)]
    if not torch.is_grad_enabled():
        return torch.cat([function(chunk) for chunk in chunks])
    return torch.cat([checkpoint(function, chunk, use_reentrant=False) for chunk in chunks])


def _initialized(linear: nn.Linear) -> nn.Linear:
    """Initialize a linear layer like those of `FeedForward`."""
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
