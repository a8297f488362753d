"""Hidden states (n, dim) and targets (n,) → the mean of −log p(target), by sampled, full or adaptive softmax.

    full        log Σ_w exp(s_w) − s_target                              with s = W h + b
    sampled     log(exp(s_target) + Σ_{w ∈ drawn, w ≠ target} exp(s_w) / π_w) − s_target

π_w = 1 − (1 − q_w)^S is the probability that w is among S draws: the sum is that of the full softmax in
expectation. Only weights of the targets and of the drawn words get a gradient.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.bilm.softmax import AdaptiveSoftmax, Cluster, Softmax
from torchelmo.errors import ConfigError, InputError
from torchelmo.train.cross_entropy import cross_entropy


class Negatives(NamedTuple):
    """Words that all tokens of a window share as alternatives to their targets."""

    words: Tensor  # (n,) distinct, rising
    log_inclusion: Tensor  # (n,) log of the probability to be drawn at all


class Sampler:
    """Draws negatives by rank ("log-uniform", for words by falling frequency) or by counts ("unigram")."""

    def __init__(
        self,
        n_words: int,
        n_samples: int,
        *,
        proposal: Literal["log-uniform", "unigram"] = "log-uniform",
        counts: Tensor | None = None,
    ) -> None:
        if n_words < 1 or n_samples < 1:
            raise ConfigError(f"Sampler: expected at least one word and one draw, got {n_words} and {n_samples}.")
        if proposal == "unigram":
            if counts is None or len(counts) != n_words:
                found = "none" if counts is None else len(counts)
                raise ConfigError(f"Sampler: 'unigram' needs the counts of all {n_words} words, got {found}.")
            weights = counts.double().cpu().clamp_min(1.0)  # a word with no count must still be drawn at times
        else:
            weights = torch.log1p(1.0 / torch.arange(1, n_words + 1, dtype=torch.float64))
        share = weights / weights.sum()
        self.n_words, self.n_samples = n_words, n_samples
        self._upto = share.cumsum(0)
        self._log_inclusion = torch.log(-torch.expm1(n_samples * torch.log1p(-share)))

    def draw(self, generator: torch.Generator) -> Negatives:
        """The same generator state gives the same words: on every rank, and after a resumed run."""
        if self.n_samples >= self.n_words:  # then all of them, which is the full softmax
            words = torch.arange(self.n_words)
            return Negatives(words, torch.zeros(self.n_words))
        points = torch.rand(self.n_samples, dtype=torch.float64, generator=generator)
        words = torch.searchsorted(self._upto, points, right=True).clamp_max(self.n_words - 1).unique()
        return Negatives(words, self._log_inclusion[words].float())


def check_softmax(loss: str, softmax: nn.Module | None) -> None:
    """A loss is of one kind of softmax; an error that says which, if it is not this one's."""
    kind, what = (AdaptiveSoftmax, "with") if loss == "adaptive" else (Softmax, "without")
    if not isinstance(softmax, kind):
        raise ConfigError(
            f"The {loss} loss needs another softmax: expected one {what} softmax_cutoffs, got a model with "
            f"{type(softmax).__name__}. Change loss, or the model."
        )


def sampled_loss(softmax: Softmax, hidden: Tensor, targets: Tensor, negatives: Negatives | None) -> Tensor:
    """Only the rows of `touched_rows` get a gradient; it is dense all the same, as fused optimisers need it."""
    check_softmax("sampled", softmax)
    if negatives is None:
        raise InputError("sampled_loss: expected negatives, got None. Draw them with Sampler.draw.")
    return _total(softmax, hidden, targets, negatives) / max(1, len(targets))


def full_loss(softmax: Softmax, hidden: Tensor, targets: Tensor, negatives: Negatives | None = None) -> Tensor:
    """Exact, over all words."""
    check_softmax("full", softmax)
    return _total(softmax, hidden, targets) / max(1, len(targets))


def adaptive_loss(
    softmax: AdaptiveSoftmax, hidden: Tensor, targets: Tensor, negatives: Negatives | None = None
) -> Tensor:
    """Exact: all tokens through the head, each token of a rarer word through the cluster of that word."""
    check_softmax("adaptive", softmax)
    bounds, targets = softmax.bounds, targets.contiguous()
    of_cluster = torch.bucketize(targets, torch.tensor(bounds[:-1], device=targets.device), right=True)
    in_head = torch.where(of_cluster == 0, targets, bounds[0] + of_cluster - 1)
    total: Tensor = _total(softmax.head, hidden, in_head)
    for k, cluster in enumerate(softmax.clusters):
        assert isinstance(cluster, Cluster)
        places = (of_cluster == k + 1).nonzero().squeeze(1)  # maybe none: the cluster still gets a gradient, of 0
        total = total + _total(cluster.softmax, cluster.projection(hidden[places]), targets[places] - bounds[k])
    return total / max(1, len(targets))


def touched_rows(targets: Tensor, negatives: Negatives) -> Tensor:
    """The rows of the softmax that `sampled_loss` gives a gradient, rising; all others have zero."""
    rows: Tensor = torch.cat([targets, negatives.words.to(targets.device)]).unique()
    return rows


Loss = Callable[[Any, Tensor, Tensor, Negatives | None], Tensor]
LOSSES: dict[str, Loss] = {"sampled": sampled_loss, "full": full_loss, "adaptive": adaptive_loss}


def _total(softmax: Softmax, hidden: Tensor, targets: Tensor, negatives: Negatives | None = None) -> Tensor:
    """The sum of −log p(target); against all words where no negatives are given."""
    if hidden.dim() != 2 or targets.shape != hidden.shape[:1]:
        raise InputError(
            f"loss: expected hidden (n, dim) and targets (n,), got {tuple(hidden.shape)} and {tuple(targets.shape)}."
        )
    if negatives is None:
        return cross_entropy(hidden, softmax.weight, softmax.bias, targets)
    words, log_inclusion = (part.to(hidden.device) for part in negatives)
    return cross_entropy(hidden, softmax.weight, softmax.bias, targets, words, log_inclusion)
