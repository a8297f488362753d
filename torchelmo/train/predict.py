"""What the language model expects at every place of a sentence: the vectors that go into its softmax.

forward   p(w_k | w_1 … w_{k−1}), also of </S> at the end
backward  p(w_k | w_{k+1} … w_n), also of <S> at the beginning
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.bilm.model import BiLM
from torchelmo.bilm.softmax import AdaptiveSoftmax, Softmax
from torchelmo.elmo import check_tokens, token_ids
from torchelmo.errors import ConfigError, InputError
from torchelmo.text.batching import batches_by_length, windows
from torchelmo.text.vocabulary import BEGIN, END, Vocabulary

Sentence: TypeAlias = Sequence[str]
State: TypeAlias = Literal["reset", "carry"]
T = TypeVar("T")

_LOGITS = 1 << 23  # at most so many at once: 32 MB


class Contexts(NamedTuple):
    """For a sentence of n tokens; a direction that the model lacks is None."""

    forward: Tensor | None  # (n + 1, projection_dim): row k − 1 expects w_k, row n expects </S>
    backward: Tensor | None  # (n + 1, projection_dim): row 0 expects <S>, row k expects w_k


class Scores(NamedTuple):
    """The log-probability of every target of a sentence, in the order of its contexts."""

    tokens: Sentence
    known: npt.NDArray[np.bool_]  # (n,): whether the vocabulary has the token; if not, it was scored as <UNK>
    forward: Tensor | None  # (n + 1,) float64: of w_1 … w_n </S>
    backward: Tensor | None  # (n + 1,) float64: of <S> w_1 … w_n


def contexts(
    bilm: BiLM, sentences: Iterable[Sentence], *, state: State = "reset", batch_tokens: int = 2048
) -> Iterator[tuple[Sentence, Contexts]]:
    """Every sentence that has a token, in order, and its contexts; sentences are read as they are needed.

    `state="reset"` starts every sentence from zero, so that it depends on itself alone. `state="carry"` reads
    one running text, as training does: each direction goes on from where the sentence before ended.
    """
    runs = {"reset": _from_zero, "carry": _running}
    if state not in runs:
        raise ConfigError(f"state: expected 'reset' or 'carry', got {state!r}.")
    return runs[state](bilm, _checked(sentences), batch_tokens)


def language_model(bilm: BiLM) -> tuple[Softmax | AdaptiveSoftmax, Vocabulary]:
    """The softmax and its words; an error that says what to do for models without."""
    if bilm.softmax is None:
        raise InputError(
            f"{bilm.origin}: expected a model with a softmax over words, but this one has only the layers. "
            "Give it one with `torchelmo fine-tune` first."
        )
    if bilm.vocabulary is None:
        raise InputError(
            f"{bilm.origin}: expected the words of the model's softmax, but it came without a vocabulary. "
            "Put its vocab.txt into the model folder."
        )
    return bilm.softmax, bilm.vocabulary


def scores(
    bilm: BiLM, sentences: Iterable[Sentence], *, state: State = "reset", batch_tokens: int = 2048
) -> Iterator[Scores]:
    """Log-probabilities by the exact softmax for every sentence that has a token, in order."""
    softmax, vocabulary = language_model(bilm)
    rows = max(1, min(batch_tokens, _LOGITS // bilm.config.softmax_words))
    found = contexts(bilm, sentences, state=state, batch_tokens=batch_tokens)
    for group in _by_tokens(found, lambda item: len(item[0]) + 1, rows):
        ids = [torch.from_numpy(vocabulary.ids([BEGIN, *sentence, END])) for sentence, _ in group]
        parts = []
        for direction, start in (("forward", 1), ("backward", 0)):
            vectors = [getattr(vectors, direction) for _, vectors in group]
            if vectors[0] is None:
                parts.append([None] * len(group))
                continue
            targets = torch.cat([some[start : len(some) - 1 + start] for some in ids]).to(vectors[0].device)
            with torch.no_grad():
                log_p = _target_log_probabilities(softmax, torch.cat(vectors), targets, rows)
            parts.append(list(log_p.split([len(some) - 1 for some in ids])))
        for (sentence, _), some, forward, backward in zip(group, ids, *parts):
            yield Scores(sentence, (some[1:-1] != vocabulary.unknown_id).numpy(), forward, backward)


def _target_log_probabilities(
    softmax: Softmax | AdaptiveSoftmax, vectors: Tensor, targets: Tensor, rows: int
) -> Tensor:
    pieces = zip(vectors.split(rows), targets.split(rows))
    found = [softmax(some).gather(-1, wanted.unsqueeze(-1)).squeeze(-1) for some, wanted in pieces]
    return torch.cat(found).double().cpu()


def _checked(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    for i, sentence in enumerate(sentences):
        check_tokens(sentence, i)
        if len(sentence):
            yield sentence


def _from_zero(bilm: BiLM, sentences: Iterator[Sentence], batch_tokens: int) -> Iterator[tuple[Sentence, Contexts]]:
    for window in windows(sentences, 1024):
        found: dict[int, Contexts] = {}
        for places in batches_by_length([len(sentence) + 2 for sentence in window], batch_tokens):
            with torch.no_grad():
                top = bilm(token_ids(bilm, [window[i] for i in places])).layers[-1]
            for row, i in enumerate(places):
                forward, backward = _directions(bilm, top[row])
                n = len(window[i])
                # The forward LSTM has read <S> … w_{k−1} at place k − 1, the backward one </S> … w_{k+1} at k + 1.
                found[i] = Contexts(
                    None if forward is None else forward[: n + 1],
                    None if backward is None else backward[1 : n + 2],
                )
        yield from ((window[i], found[i]) for i in range(len(window)))


def _running(bilm: BiLM, sentences: Iterator[Sentence], batch_tokens: int) -> Iterator[tuple[Sentence, Contexts]]:
    """As the batch stream reads: the forward LSTM never reads </S>, the backward one never <S>."""
    forward_state = backward_state = None
    for window in _by_tokens(sentences, lambda sentence: len(sentence) + 1, batch_tokens):
        with torch.no_grad():
            text = list(chain.from_iterable([BEGIN, *sentence] for sentence in window))
            ahead = bilm(token_ids(bilm, [text]), forward_state, boundaries=False)
            # The backward LSTM reads a row from its end, so the first sentence stands last.
            text = list(chain.from_iterable([*sentence, END] for sentence in reversed(window)))
            back = bilm(token_ids(bilm, [text]), backward_state, boundaries=False)
        forward_state, backward_state = ahead.state, back.state
        forward, _ = _directions(bilm, ahead.layers[-1][0])
        _, backward = _directions(bilm, back.layers[-1][0])
        ends = np.cumsum([0, *(len(sentence) + 1 for sentence in window)]).tolist()
        for sentence, (start, end) in zip(window, pairwise(ends)):
            yield (
                sentence,
                Contexts(
                    None if forward is None else forward[start:end],
                    None if backward is None else backward[ends[-1] - end : ends[-1] - start],
                ),
            )


def _by_tokens(items: Iterable[T], size_of: Callable[[T], int], size: int) -> Iterator[list[T]]:
    """Lists of consecutive items, each just large enough to have `size` in sum."""
    window: list[T] = []
    total = 0
    for item in items:
        window.append(item)
        total += size_of(item)
        if total >= size:
            yield window
            window, total = [], 0
    if window:
        yield window


def _directions(bilm: BiLM, top: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """A layer (tokens, dim) -> its forward and backward part."""
    halves = dict(zip(bilm.config.directions, top.split(bilm.config.projection_dim, dim=-1)))
    return halves.get("forward"), halves.get("backward")
