"""s(i, j) = s_m(i) + s_m(j) + FFNN_a([g_i; g_j; g_i ⊙ g_j; φ(i, j)]), and 0 for the dummy ε: no antecedent."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.tasks.coref.pieces import in_pieces
from torchelmo.tasks.coref.spans import initialised
from torchelmo.tasks.layers.feed_forward import FeedForward

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
