"""The language model's softmax: which word comes next (or came before). Words are numbered by falling frequency.

full        p(w | h) = softmax(W h + b)_w
adaptive    p(w | h) = softmax_head(h)_w for the frequent words, softmax_head(h)_k · softmax_k(P_k h)_w for the
            others, which stand in clusters k with ever smaller projections P_k (Grave et al. 2017)
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchelmo.bilm.encoder import normal_
from torchelmo.errors import ConfigError

_SHRINK = 4  # each cluster of rarer words has a fourth of the dimensions of the one before


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

    def start_from_counts(self, counts: Tensor) -> None:
        """Set the bias so that hidden states of 0 predict the words' frequencies; a count of 0 is taken as 1."""
        with torch.no_grad():
            self.bias.copy_(_log_shares(counts))


class AdaptiveSoftmax(nn.Module):
    """As `Softmax`, cheaper for many words: `cutoffs` are the first words of the clusters after the head."""

    def __init__(self, n_words: int, dim: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        if cutoffs[-1] >= n_words:
            raise ConfigError(f"softmax_cutoffs must be below softmax_words = {n_words}, got {list(cutoffs)}.")
        self.bounds = (*cutoffs, n_words)  # cluster k holds the words from bounds[k] to bounds[k + 1]
        self.head = Softmax(cutoffs[0] + len(cutoffs), dim)
        self.clusters = nn.ModuleList(
            Cluster(last - first, dim, max(1, dim // _SHRINK ** (k + 1)))
            for k, (first, last) in enumerate(zip(self.bounds, self.bounds[1:]))
        )

    def forward(self, hidden: Tensor) -> Tensor:
        words, clusters = self.head(hidden).split([self.bounds[0], len(self.clusters)], dim=-1)
        parts = [
            of_cluster.unsqueeze(-1) + cluster(hidden)
            for of_cluster, cluster in zip(clusters.unbind(-1), self.clusters)
        ]
        return torch.cat([words, *parts], dim=-1)

    def start_from_counts(self, counts: Tensor) -> None:
        """As in `Softmax`."""
        frequent, *rare = counts.clamp_min(1).tensor_split(self.bounds[:-1])
        self.head.start_from_counts(torch.cat([frequent, torch.stack([part.sum() for part in rare])]))
        for cluster, part in zip(self.clusters, rare):
            assert isinstance(cluster, Cluster)
            cluster.softmax.start_from_counts(part)


class Cluster(nn.Module):
    """(..., dim) -> (..., n_words): the words of one cluster, given that the word is in it."""

    def __init__(self, n_words: int, dim: int, inner_dim: int) -> None:
        super().__init__()
        self.projection = nn.Linear(dim, inner_dim, bias=False)
        self.softmax = Softmax(n_words, inner_dim)

    def forward(self, hidden: Tensor) -> Tensor:
        log_probabilities: Tensor = self.softmax(self.projection(hidden))
        return log_probabilities


def _log_shares(counts: Tensor) -> Tensor:
    shares = counts.double().clamp_min(1.0)
    return (shares / shares.sum()).log()
