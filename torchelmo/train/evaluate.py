"""Perplexity: exp of the mean −log p over all targets, by the exact softmax.

Targets are every token and the closing mark: </S> forward, <S> backward. A token outside the vocabulary counts
as <UNK>, so a figure means something only beside its OOV rate and its vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torchelmo.bilm.model import BiLM
from torchelmo.errors import InputError
from torchelmo.train.predict import Sentence, State, scores


class Perplexity(NamedTuple):
    forward: float | None  # None for a direction that the model lacks
    backward: float | None
    average: float  # the mean of the two perplexities, as published figures are
    n_tokens: int  # without the marks
    n_sentences: int
    oov_rate: float  # share of the tokens that the vocabulary lacks

    @property
    def n_targets(self) -> int:
        return self.n_tokens + self.n_sentences

    def loss(self, direction: str) -> float:
        """The sum of −log p over the targets of a direction that the model has: what adds up over texts."""
        return math.log(getattr(self, direction)) * self.n_targets


def perplexity(
    bilm: BiLM,
    sentences: Iterable[Sentence],
    *,
    state: State = "reset",
    batch_tokens: int = 2048,
    progress: Callable[[int], object] | None = None,
) -> Perplexity:
    """Token-weighted over all sentences, each from zero; `state="carry"` reads them as one running text.

    The batch size and the order of the sentences do not change the result of `state="reset"`. `progress` is
    called with the number of tokens just done.
    """
    losses = dict.fromkeys(bilm.config.directions, 0.0)
    n_tokens = n_sentences = n_known = 0
    for found in scores(bilm, sentences, state=state, batch_tokens=batch_tokens):
        for direction in losses:
            losses[direction] -= float(getattr(found, direction).sum())
        n_sentences += 1
        n_tokens += len(found.tokens)
        n_known += int(found.known.sum())
        if progress is not None:
            progress(len(found.tokens))
    if not n_tokens:
        raise InputError("perplexity: expected sentences with tokens, got none.")
    each = {direction: _exp(loss / (n_tokens + n_sentences)) for direction, loss in losses.items()}
    average = sum(each.values()) / len(each)
    return Perplexity(each.get("forward"), each.get("backward"), average, n_tokens, n_sentences, 1 - n_known / n_tokens)


def combine(results: Sequence[Perplexity]) -> Perplexity:
    """Of several texts together, as if they had been measured as one."""
    tokens, sentences = (sum(getattr(one, name) for one in results) for name in ("n_tokens", "n_sentences"))
    each = {}
    for direction in ("forward", "backward"):
        if all(getattr(one, direction) is not None for one in results):
            each[direction] = _exp(sum(one.loss(direction) for one in results) / (tokens + sentences))
    unknown = sum(one.oov_rate * one.n_tokens for one in results)
    average = sum(each.values()) / len(each)
    return Perplexity(each.get("forward"), each.get("backward"), average, tokens, sentences, unknown / tokens)


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
