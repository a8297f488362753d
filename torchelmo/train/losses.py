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


def sampled_loss(softmax: nn.Module, hidden: Tensor, targets: Tensor, negatives: Negatives | None) -> Tensor:
    """Only the rows of `touched_rows` get a gradient; it is dense all the same, as fused optimisers need it."""
    if not isinstance(softmax, Softmax):
        raise ConfigError(_UNFIT.format("sampled", "one without softmax_cutoffs", type(softmax).__name__))
    if negatives is None:
        raise InputError("sampled_loss: expected negatives, got None. Draw them with Sampler.draw.")
    return _total(softmax, hidden, targets, negatives) / max(1, len(targets))


def full_loss(softmax: nn.Module, hidden: Tensor, targets: Tensor, negatives: Negatives | None = None) -> Tensor:
    """Exact, over all words."""
    if not isinstance(softmax, Softmax):
        raise ConfigError(_UNFIT.format("full", "one without softmax_cutoffs", type(softmax).__name__))
    return _total(softmax, hidden, targets) / max(1, len(targets))


def adaptive_loss(softmax: nn.Module, hidden: Tensor, targets: Tensor, negatives: Negatives | None = None) -> Tensor:
    """Exact: all tokens through the head, each token of a rarer word through the cluster of that word."""
    if not isinstance(softmax, AdaptiveSoftmax):
        raise ConfigError(_UNFIT.format("adaptive", "one with softmax_cutoffs", type(softmax).__name__))
    bounds, targets = softmax.bounds, targets.contiguous()
    of_cluster = torch.bucketize(targets, torch.tensor(bounds[:-1], device=targets.device), right=True)
    in_head = torch.where(of_cluster == 0, targets, bounds[0] + of_cluster - 1)
    total = _total(softmax.head, hidden, in_head)
    for k, cluster in enumerate(softmax.clusters):
        assert isinstance(cluster, Cluster)
        places = (of_cluster == k + 1).nonzero().squeeze(1)  # maybe none: the cluster still gets a gradient, of 0
        total = total + _total(cluster.softmax, cluster.projection(hidden[places]), targets[places] - bounds[k])
    mean: Tensor = total / max(1, len(targets))
    return mean


def touched_rows(targets: Tensor, negatives: Negatives) -> Tensor:
    """The rows of the softmax that `sampled_loss` gives a gradient, rising; all others have zero."""
    return torch.cat([targets, negatives.words.to(targets.device)]).unique()


Loss = Callable[[Any, Tensor, Tensor, Negatives | None], Tensor]
LOSSES: dict[str, Loss] = {"sampled": sampled_loss, "full": full_loss, "adaptive": adaptive_loss}

_UNFIT = "The {} loss needs another softmax: expected {}, got a model with {}. Change loss, or [model]."


def _total(softmax: Softmax, hidden: Tensor, targets: Tensor, negatives: Negatives | None = None) -> Tensor:
    """The sum of −log p(target); against all words where no negatives are given."""
    if hidden.dim() != 2 or targets.shape != hidden.shape[:1]:
        raise InputError(
            f"loss: expected hidden (n, dim) and targets (n,), got {tuple(hidden.shape)} and {tuple(targets.shape)}."
        )
    words = None if negatives is None else negatives.words.to(hidden.device)
    log_inclusion = None if negatives is None else negatives.log_inclusion.to(hidden.device)
    total: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, softmax.weight, softmax.bias, targets.contiguous(), words, log_inclusion, torch.is_grad_enabled()
    )
    return total


class _CrossEntropy(torch.autograd.Function):
    """The gradients are formed on the way forward, a part of the tokens at a time: no logits are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        words: Tensor | None,
        log_inclusion: Tensor | None,
        with_gradients: bool,
    ) -> Tensor:
        kind = hidden.device.type
        product = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        with torch.autocast(kind, enabled=False):
            rows, offset = weight, bias
            if words is not None and log_inclusion is not None:
                rows, offset = weight[words], bias[words] - log_inclusion.to(bias)
            own = _Own(weight[targets], bias[targets], _find(targets, words))
            result = _run(hidden.to(weight), rows, offset, own, product, with_gradients)
        ctx.shape = weight.shape
        if with_gradients:
            ctx.save_for_backward(*result[1:], hidden, targets, *([] if words is None else [words]))
        return result.total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_rows, d_offset, d_own, hidden, targets, *words = ctx.saved_tensors
        d_own = d_own * gradient
        if words:
            d_weight, d_bias = d_rows.new_zeros(ctx.shape), d_rows.new_zeros(ctx.shape[0])
            d_weight.index_copy_(0, words[0], d_rows * gradient)
            d_bias.index_copy_(0, words[0], d_offset * gradient)
        else:
            d_weight, d_bias = d_rows * gradient, d_offset * gradient
        d_weight.index_add_(0, targets, hidden.to(d_own) * d_own.unsqueeze(1))
        d_bias.index_add_(0, targets, d_own)
        return (d_hidden * gradient).to(hidden.dtype), d_weight, d_bias, None, None, None, None


class _Own(NamedTuple):
    """The targets of n tokens."""

    rows: Tensor  # (n, dim)
    offset: Tensor  # (n,)
    place: Tensor  # (n,) among the alternatives; −1 where the target is not one of them

    def part(self, some: slice) -> "_Own":
        return _Own(*(tensor[some] for tensor in self))


class _Result(NamedTuple):
    total: Tensor
    d_hidden: Tensor  # (n, dim)
    d_rows: Tensor  # (n_alternatives, dim)
    d_offset: Tensor  # (n_alternatives,)
    d_own: Tensor  # (n,) of the targets' scores


def _run(
    hidden: Tensor, rows: Tensor, offset: Tensor, own: _Own, product: torch.dtype, with_gradients: bool
) -> _Result:
    """Each target against the alternatives `rows`; the products are taken in the type `product`."""

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return torch.mm(a.to(product), b.to(product)).to(rows.dtype)

    result = _Result(
        rows.new_zeros(()),
        torch.empty_like(hidden),
        torch.zeros_like(rows),
        torch.zeros_like(offset),
        rows.new_empty(len(hidden)),
    )
    size = _tokens_at_once(len(rows))
    for start in range(0, len(hidden), size):
        some = slice(start, start + size)
        h, mine = hidden[some], own.part(some)
        scores = multiply(h, rows.T).add_(offset)
        hits = (mine.place >= 0).nonzero().squeeze(1)
        scores[hits, mine.place[hits]] = -torch.inf  # the target is not its own alternative
        score = (h * mine.rows).sum(dim=1) + mine.offset
        top = torch.maximum(score, scores.amax(dim=1))
        powers = scores.sub_(top.unsqueeze(1)).exp_()
        power = (score - top).exp()
        sums = powers.sum(dim=1) + power
        result.total.add_((sums.log() + top - score).sum())
        if with_gradients:
            shares = powers.div_(sums.unsqueeze(1))
            result.d_own[some] = share = power / sums - 1.0
            result.d_hidden[some] = multiply(shares, rows).addcmul_(share.unsqueeze(1), mine.rows)
            result.d_rows.add_(multiply(shares.T, h))
            result.d_offset.add_(shares.sum(dim=0))
    return result


def _find(targets: Tensor, words: Tensor | None) -> Tensor:
    """Where each target stands among the rising `words` (None: all there are), −1 where it does not."""
    if words is None:
        return targets
    place = torch.searchsorted(words, targets).clamp_max(len(words) - 1)
    return torch.where(words[place] == targets, place, -1)


def _tokens_at_once(n_alternatives: int) -> int:
    """Scores of about 8 MB stay in the cache; many words need more tokens for a fast product, up to 200 MB."""
    return max(1, min(max(_CACHED // n_alternatives, 512), _MOST // n_alternatives))


_CACHED, _MOST = 1 << 21, 50_000_000  # values
