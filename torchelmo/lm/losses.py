"""The training objectives, with one softmax for both directions.

bilm      −½ (log p(→) + log p(←)) per token
masked    −log p(word | the words on both sides) per predicted word, in the manner of Masked ELMo (Senay & Salin 2020)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.bilm.fast.training import run_masked, run_training
from torchelmo.bilm.model import BiLM, BiLMState, Softmax
from torchelmo.errors import ConfigError, InputError


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    words: Tensor | None = None,
    log_inclusion: Tensor | None = None,
) -> Tensor:
    """Return the sum of −log p(target): (n, dim), (n_words, dim), (n_words,), (n,) -> a scalar.

    Args:
        hidden: The vectors that predict a word.
        weight: The softmax weights.
        bias: The softmax bias.
        targets: The word that each vector should predict.
        words: The words that compete with the targets, in ascending order; default: all words.
        log_inclusion: For each of `words`, the log of the probability that it was drawn.
    """
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
        # On CPUs, converting the scores takes longer than a product in bfloat16 saves.
        autocast = kind != "cpu" and torch.is_autocast_enabled(kind)
        product = torch.get_autocast_dtype(kind) if autocast else weight.dtype
        with torch.autocast(kind, enabled=False):
            rows, offset = weight, bias
            if words is not None and log_inclusion is not None:
                rows, offset = weight[words], bias[words] - log_inclusion.to(bias)
            own = _Targets(weight[targets], bias[targets], _find(targets, words))
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


class _Targets(NamedTuple):
    """The targets of n tokens."""

    rows: Tensor  # (n, dim)
    offset: Tensor  # (n,)
    place: Tensor  # (n,) index among the alternatives; −1 if the target is not one of them

    def part(self, some: slice) -> "_Targets":
        return _Targets(*(tensor[some] for tensor in self))


class _Result(NamedTuple):
    total: Tensor
    d_hidden: Tensor  # (n, dim)
    d_rows: Tensor  # (n_alternatives, dim)
    d_offset: Tensor  # (n_alternatives,)
    d_own: Tensor  # (n,) of the targets' scores


def _run(
    hidden: Tensor, rows: Tensor, offset: Tensor, own: _Targets, product: torch.dtype, with_gradients: bool
) -> _Result:
    """Compare each target with the alternatives `rows`; matrix products are computed in the dtype `product`."""

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
    # Rows start at multiples of 64 bytes, which makes the product 1.5 times as fast.
    space = rows.new_empty(min(size, len(hidden)), n + -n % 16)[:, :n]
    for start in range(0, len(hidden), size):
        some = slice(start, start + size)
        h, mine = hidden[some], own.part(some)
        scores = multiply(h, rows.T, out=space[: len(h)]).add_(offset)
        hits = (mine.place >= 0).nonzero().squeeze(1)
        scores[hits, mine.place[hits]] = -torch.inf  # the target is not its own alternative
        score = (h * mine.rows).sum(dim=1) + mine.offset
        top = torch.maximum(score, scores.amax(dim=1))
        exp_scores = scores.sub_(top.unsqueeze(1)).exp_()
        exp_target = (score - top).exp()
        sums = exp_scores.sum(dim=1) + exp_target
        result.total.add_((sums.log() + top - score).sum())
        if with_gradients:
            shares = exp_scores.div_(sums.unsqueeze(1))
            result.d_own[some] = share = exp_target / sums - 1.0
            multiply(shares, rows, out=result.d_hidden[some]).addcmul_(share.unsqueeze(1), mine.rows)
            result.d_rows.add_(multiply(shares.T, h, out=d_rows))
            result.d_offset.add_(shares.sum(dim=0))
    return result


def _find(targets: Tensor, words: Tensor | None) -> Tensor:
    """Return the index of each target in the ascending `words` (None: all words), or −1."""
    if words is None:
        return targets
    place = torch.searchsorted(words, targets).clamp_max(len(words) - 1)
    return torch.where(words[place] == targets, place, -1)


def _tokens_at_once(n_alternatives: int) -> int:
    """Return how many tokens to process at once: scores of about 8 MB fit the cache; at most 200 MB are used."""
    return max(1, min(max(_CACHED // n_alternatives, 512), _MOST // n_alternatives))


_CACHED, _MOST = 1 << 21, 50_000_000  # values


class Negatives(NamedTuple):
    """Words that all tokens of a window share as alternatives to their targets."""

    words: Tensor  # (n,) distinct, ascending
    log_inclusion: Tensor  # (n,) log of the probability of being drawn at least once


class Sampler:
    """Draw negatives by rank, log-uniformly; words are numbered by falling frequency."""

    def __init__(self, n_words: int, n_samples: int) -> None:
        if n_words < 1 or n_samples < 1:
            raise ConfigError(f"Sampler: expected at least one word and one draw, got {n_words} and {n_samples}.")
        weights = torch.log1p(1.0 / torch.arange(1, n_words + 1, dtype=torch.float64))
        share = weights / weights.sum()
        self.n_words, self.n_samples = n_words, n_samples
        self._upto = share.cumsum(0)
        self._log_inclusion = torch.log(-torch.expm1(n_samples * torch.log1p(-share)))

    def draw(self, generator: torch.Generator) -> Negatives:
        """Draw the words of a window. The same generator state gives the same words on every rank."""
        if self.n_samples >= self.n_words:  # all words: the full softmax
            words = torch.arange(self.n_words)
            return Negatives(words, torch.zeros(self.n_words))
        points = torch.rand(self.n_samples, dtype=torch.float64, generator=generator)
        words = torch.searchsorted(self._upto, points, right=True).clamp_max(self.n_words - 1).unique()
        return Negatives(words, self._log_inclusion[words].float())


def sampled_loss(softmax: Softmax, hidden: Tensor, targets: Tensor, negatives: Negatives | None) -> Tensor:
    """Return the mean of −log p(target) against the negatives. Only the rows of `touched_rows` get a gradient.

    The gradient tensor is dense anyway, because fused optimizers need a dense one.
    """
    if negatives is None:
        raise InputError("sampled_loss: expected negatives, got None. Draw them with Sampler.draw.")
    return _total(softmax, hidden, targets, negatives) / max(1, len(targets))


def full_loss(softmax: Softmax, hidden: Tensor, targets: Tensor, negatives: Negatives | None = None) -> Tensor:
    """Return the exact mean of −log p(target), over all words."""
    return _total(softmax, hidden, targets) / max(1, len(targets))


def touched_rows(targets: Tensor, negatives: Negatives) -> Tensor:
    """Return the rows of the softmax that get a gradient from `sampled_loss`, in ascending order."""
    rows: Tensor = torch.cat([targets, negatives.words.to(targets.device)]).unique()
    return rows


Loss = Callable[[Any, Tensor, Tensor, Negatives | None], Tensor]
LOSSES: dict[str, Loss] = {"sampled": sampled_loss, "full": full_loss}


def _total(softmax: Softmax, hidden: Tensor, targets: Tensor, negatives: Negatives | None = None) -> Tensor:
    """Return the sum of −log p(target), against the negatives or, without negatives, against all words."""
    if hidden.dim() != 2 or targets.shape != hidden.shape[:1]:
        raise InputError(
            f"loss: expected hidden (n, dim) and targets (n,), got {tuple(hidden.shape)} and {tuple(targets.shape)}."
        )
    if negatives is None:
        return cross_entropy(hidden, softmax.weight, softmax.bias, targets)
    words, log_inclusion = (part.to(hidden.device) for part in negatives)
    return cross_entropy(hidden, softmax.weight, softmax.bias, targets, words, log_inclusion)


class Batch(NamedTuple):
    """A window of the stream on the device of the model; None for a direction that the model does not have."""

    forward: Tensor | None  # (batch, unroll)
    forward_targets: Tensor | None
    backward: Tensor | None
    backward_targets: Tensor | None
    starts: Tensor  # (batch,): true for rows whose window starts with a new sentence

    def inputs(self) -> Tensor:
        """Return the inputs of both directions, flat: (n,)."""
        return _flat(self.forward, self.backward)

    def targets(self) -> Tensor:
        """Return the targets of both directions, flat: (n,)."""
        return _flat(self.forward_targets, self.backward_targets)


class ObjectiveOutput(NamedTuple):
    """The losses of a window and the state after it."""

    loss: Tensor  # the mean over the directions
    forward: Tensor | None  # −log p per token, detached
    backward: Tensor | None
    state: BiLMState  # for the next window
    masked: Tensor | None = None  # −log p per predicted word of a masked model, detached


class Objective(nn.Module):
    """The loss of a window as a module, so that DistributedDataParallel can wrap it."""

    def __init__(
        self,
        bilm: BiLM,
        loss: Loss,
        characters: Tensor | None,
        *,
        dropout: float = 0.0,
        bfloat16: bool = False,
    ) -> None:
        super().__init__()
        self.bilm, self.loss, self.dropout = bilm, loss, dropout
        self.in_bfloat16 = bfloat16  # matrix products only; sums and weights stay in float32
        self.characters = characters  # not a buffer, so that DistributedDataParallel does not send it

    def forward(self, batch: Batch, state: BiLMState, negatives: Negatives | None) -> ObjectiveOutput:
        with torch.autocast(state.hidden.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            out = run_training(
                self.bilm,
                batch.forward,
                batch.backward,
                state,
                dropout=self.dropout,
                characters=self.characters,
            )
            losses = {
                name: self.loss(self.bilm.softmax, hidden.flatten(0, 1), targets.flatten(), negatives)
                for name, hidden, targets in (
                    ("forward", out.forward, batch.forward_targets),
                    ("backward", out.backward, batch.backward_targets),
                )
                if hidden is not None and targets is not None
            }
        seen = {name: loss.detach() for name, loss in losses.items()}
        mean = torch.stack(list(losses.values())).mean()
        carried = BiLMState(*(part.to(before.dtype) for part, before in zip(out.state, state)))
        return ObjectiveOutput(mean, seen.get("forward"), seen.get("backward"), carried)


class MaskedBatch(NamedTuple):
    """Copies of the sentences of a window, each with other words to predict. A rank has a share of the copies."""

    ids: Tensor  # (rows, tokens): <S>, words and </S>, some words replaced by others
    lengths: Tensor  # (rows,): the tokens of each sentence, its marks included
    masked: Tensor  # (rows, tokens): the words that are hidden
    predicted: Tensor  # (rows, tokens): the words that are predicted
    words: Tensor  # (n,): their softmax ids, row by row
    weight: Tensor  # a number: the share of this rank in the predicted words, times the number of ranks
    window: Tensor  # (n_sentences, longest): the ids of the sentences, the same on all ranks
    window_words: Tensor  # (n,): the softmax ids of the predicted words of all ranks

    def inputs(self) -> Tensor:
        """Return all ids of the window, flat: (n,)."""
        return self.window.flatten()

    def targets(self) -> Tensor:
        """Return the targets of all ranks: (n,)."""
        return self.window_words


# Shares of the predicted words, as for BERT. The others are hidden. No word is hidden when the vectors are used, so the
# model must also be trained on words that are not.
_KEPT, _REPLACED = 0.1, 0.1


def draw_masks(
    ids: Tensor,
    words: Tensor,
    lengths: Tensor,
    *,
    share: float,
    n_masks: int,
    seed: int,
    rank: int = 0,
    n_ranks: int = 1,
) -> MaskedBatch:
    """Choose the words of a window that are predicted.

    Of every sentence there are `n_masks` copies. Each predicts about `share` of the words, chosen at random, and never
    those of another copy. A predicted word is hidden, or kept, or replaced by a random word of the window. Copies that
    predict no word are left out.

    Args:
        ids: Ids (n_sentences, tokens) of `<S>`, the words and `</S>` of each sentence.
        words: Their softmax ids.
        lengths: (n_sentences,), the number of tokens of each sentence, its marks included.
        share: The share of the words that a copy predicts.
        n_masks: The number of copies.
        seed: Determines the choice.
        rank: The rank of this process, which gets every n_ranks-th copy.
        n_ranks: The number of processes.
    """
    generator = torch.Generator().manual_seed(seed)
    step = torch.arange(ids.shape[1])
    is_word = (step > 0) & (step < lengths.unsqueeze(1) - 1)
    point = torch.rand(ids.shape, generator=generator)
    chosen = [is_word & (point >= i * share) & (point < (i + 1) * share) for i in range(n_masks)]
    predicted = torch.cat(chosen)
    rows = predicted.any(dim=1).nonzero().squeeze(1)
    missing = max(0, n_ranks - len(rows))  # every rank gets a row, if necessary one without a word to predict
    predicted = nn.functional.pad(predicted[rows], (0, 0, 0, missing))
    sentence = nn.functional.pad(rows % len(ids), (0, missing))
    batch, n = ids[sentence], int(predicted.sum())
    fate = torch.rand(n, generator=generator)
    masked = predicted.clone()
    masked[predicted] = fate >= _KEPT + _REPLACED
    pool = ids[is_word]
    drawn = pool[torch.randint(len(pool), (n,), generator=generator)]
    batch[predicted] = torch.where(fate < _REPLACED, drawn, batch[predicted])
    whole = batch, lengths[sentence], masked, predicted, words[sentence]
    batch, lengths, masked, own, targets = (tensor[rank::n_ranks] for tensor in whole)
    weight = torch.tensor(int(own.sum()) * n_ranks / max(1, n))
    return MaskedBatch(batch, lengths, masked, own, targets[own], weight, ids, words[sentence][predicted])


class MaskedObjective(Objective):
    """The loss of a window of sentences for a masked model. There is no state: every sentence starts from zero."""

    def forward(self, batch: MaskedBatch, state: BiLMState, negatives: Negatives | None) -> ObjectiveOutput:  # type: ignore[override]
        softmax, characters = self.bilm.softmax, self.characters
        assert softmax is not None
        with torch.autocast(state.hidden.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            top = run_masked(
                self.bilm, batch.ids, batch.lengths, batch.masked, dropout=self.dropout, characters=characters
            )
            loss = self.loss(softmax, softmax.project(top[batch.predicted]), batch.words, negatives)
        loss = loss * batch.weight  # so the mean over ranks is the mean over all words
        return ObjectiveOutput(loss, None, None, state, loss.detach())


OBJECTIVES: dict[str, type[Objective]] = {"bilm": Objective, "masked": MaskedObjective}


def _flat(*parts: Tensor | None) -> Tensor:
    return torch.cat([part.flatten() for part in parts if part is not None])
