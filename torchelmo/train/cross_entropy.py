"""The sum of log Σ_w exp(s_w) − s_target over tokens, with s = W h + b, in little memory.

The gradients are formed on the way forward, a part of the tokens at a time, so that no scores are kept. The sum may
go over some words only, each weighted by one over its probability to be among them (see losses.py).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    words: Tensor | None = None,
    log_inclusion: Tensor | None = None,
) -> Tensor:
    """(n, dim), (n_words, dim), (n_words,), (n,) -> a scalar. `words` (rising) are the alternatives to the targets."""
    total: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets.contiguous(), words, log_inclusion, torch.is_grad_enabled()
    )
    return total


class _CrossEntropy(torch.autograd.Function):
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

    def multiply(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        if product == out.dtype:
            return torch.mm(a, b, out=out)
        return out.copy_(torch.mm(a.to(product), b.to(product)))

    result = _Result(
        rows.new_zeros(()),
        torch.empty_like(hidden),
        torch.zeros_like(rows),
        torch.zeros_like(offset),
        rows.new_empty(len(hidden)),
    )
    d_rows, size, n = torch.empty_like(rows), _tokens_at_once(len(rows)), len(rows)
    # Rows that begin at multiples of 64 bytes: the product is half as fast again as on rows that do not.
    space = rows.new_empty(min(size, len(hidden)), n + -n % 16)[:, :n]
    for start in range(0, len(hidden), size):
        some = slice(start, start + size)
        h, mine = hidden[some], own.part(some)
        scores = multiply(h, rows.T, out=space[: len(h)]).add_(offset)
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
            multiply(shares, rows, out=result.d_hidden[some]).addcmul_(share.unsqueeze(1), mine.rows)
            result.d_rows.add_(multiply(shares.T, h, out=d_rows))
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
