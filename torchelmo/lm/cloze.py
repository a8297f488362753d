"""Predict words from the words on both sides: substitutes, pseudo-perplexity.

A masked model predicts a word that is hidden from it. Any other biLM combines its two directions:
p(w | both sides) ∝ p(w | words before) · p(w | words after) / p(w), where p(w) is the softmax of a zero vector.

Everything uses the exact softmax. A token outside the vocabulary is scored as `<UNK>`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.bilm.model import BiLM
from torchelmo.errors import ConfigError, InputError
from torchelmo.lm.predict import LOGITS, Sentence, WordLogP, by_tokens, checked, contexts, exp_loss, language_model
from torchelmo.text.batching import batches_by_length, windows
from torchelmo.text.vocabulary import BEGIN, END, UNKNOWN


def both_sides(
    bilm: BiLM,
    sentences: Iterable[Sentence],
    *,
    spacing: int | None = None,
    positions: Sequence[int] | None = None,
    batch_tokens: int = 2048,
) -> Iterator[tuple[Sentence, Tensor]]:
    """Yield every sentence with the vectors from which its tokens are predicted, in order.

    Args:
        bilm: A model with a softmax.
        sentences: Sentences, each a list of tokens; empty ones are skipped.
        spacing: For a masked model, the distance of tokens that are hidden at once. Default: every token is hidden
            alone, so that all others can be seen.
        positions: The tokens of each sentence that are needed; the vectors of others may be undefined. Default: all.
        batch_tokens: About how many tokens to process at once.

    Yields:
        Sentences, and vectors (n_tokens, n_directions, projection_dim), or (n_tokens, 1, dim) of a masked model.
    """
    language_model(bilm, from_both_sides=True)
    if bilm.config.objective == "masked":
        yield from _with_hidden_tokens(bilm, checked(sentences), spacing, positions, batch_tokens)
        return
    for sentence, (forward, backward) in contexts(bilm, sentences, batch_tokens=batch_tokens):
        # Row k expects token k forward (counted from 0); backward, row 0 expects <S>.
        n = len(sentence)
        rows = [x[first : first + n] for x, first in ((forward, 0), (backward, 1)) if x is not None]
        yield sentence, torch.stack(rows, dim=1)


def _with_hidden_tokens(
    bilm: BiLM,
    sentences: Iterator[Sentence],
    spacing: int | None,
    positions: Sequence[int] | None,
    batch_tokens: int,
) -> Iterator[tuple[Sentence, Tensor]]:
    """Read copies of every sentence. Copy i hides the tokens i, i + spacing, …, and predicts them."""
    for window in windows(sentences, 256):
        copies = []  # the number of a sentence, and the tokens to hide
        for i, sentence in enumerate(window):
            step = spacing or len(sentence)
            firsts = range(min(step, len(sentence))) if positions is None else sorted({k % step for k in positions})
            copies += [(i, range(first, len(sentence), step)) for first in firsts]
        found: dict[int, Tensor] = {}
        for places in batches_by_length([len(window[i]) + 2 for i, _ in copies], batch_tokens):
            chosen = [copies[place] for place in places]
            distinct = sorted({i for i, _ in chosen})
            with torch.no_grad():
                ids = bilm.token_ids([window[i] for i in distinct])
                ids, mask = bilm.add_boundaries(ids, bilm.token_mask(ids))
                rows = torch.tensor([distinct.index(i) for i, _ in chosen], device=ids.device)
                x = bilm.encode_tokens(ids, mask)[rows]  # every sentence is encoded once
                masked = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
                for row, (_, tokens) in enumerate(chosen):
                    masked[row, [k + 1 for k in tokens]] = True
                top = bilm.run_layers(bilm.mask_tokens(x, masked), mask[rows]).layers[-1]
            for row, (i, tokens) in enumerate(chosen):
                vectors = found.setdefault(i, top.new_zeros(len(window[i]), 1, top.shape[-1]))
                vectors[list(tokens), 0] = top[row, [k + 1 for k in tokens]]
        yield from ((sentence, found[i]) for i, sentence in enumerate(window))


def _word_scores(word_log_p: WordLogP, vectors: Tensor) -> Tensor:
    """Return log p(w | both sides) + constant: vectors of `both_sides` (..., n, width) -> (..., n_words) in float64."""
    n_directions, width = vectors.shape[-2:]
    scores = word_log_p(vectors.reshape(-1, width)).view(*vectors.shape[:-1], -1).double().sum(dim=-2).cpu()
    if n_directions > 1:
        scores -= word_log_p(vectors.new_zeros(1, width))[0].double().cpu() * (n_directions - 1)
    return scores


class PseudoScores(NamedTuple):
    """The log-probability of every token of a sentence, given all other tokens."""

    tokens: Sentence
    known: npt.NDArray[np.bool_]  # (n,): whether the vocabulary has the token; if not, it was scored as <UNK>
    log_p: Tensor  # (n,) float64


def pseudo_scores(
    bilm: BiLM, sentences: Iterable[Sentence], *, spacing: int | None = None, batch_tokens: int = 2048
) -> Iterator[PseudoScores]:
    """Yield the log-probability of every token given the tokens on both sides, sentence by sentence, in order.

    The arguments are those of `pseudo_perplexity`.
    """
    softmax, vocabulary = language_model(bilm, from_both_sides=True)
    if spacing is not None and spacing < 1:
        raise ConfigError(f"spacing: expected at least 1, got {spacing}.")
    word_log_p = WordLogP(softmax)
    rows = max(1, LOGITS // (2 * bilm.config.softmax_words))
    found = both_sides(bilm, sentences, spacing=spacing, batch_tokens=batch_tokens)
    for group in by_tokens(found, lambda item: len(item[0]), min(rows, batch_tokens)):
        ids = [torch.from_numpy(vocabulary.ids(sentence)) for sentence, _ in group]
        vectors = torch.cat([vectors for _, vectors in group])
        log_p = torch.cat(
            [
                _word_scores(word_log_p, some).log_softmax(dim=-1).gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
                for some, wanted in zip(vectors.split(rows), torch.cat(ids).split(rows))
            ]
        )
        for (sentence, _), own, values in zip(group, ids, log_p.split([len(own) for own in ids])):
            yield PseudoScores(sentence, (own != vocabulary.unknown_id).numpy(), values)


class PseudoPerplexity(NamedTuple):
    """The pseudo-perplexity of a text."""

    pseudo_perplexity: float
    n_tokens: int  # without the marks
    n_sentences: int
    oov_rate: float  # share of the tokens that are outside the vocabulary

    @property
    def loss(self) -> float:
        """The sum of −log p over the tokens; sums of several texts can be added."""
        return math.log(self.pseudo_perplexity) * self.n_tokens


def pseudo_perplexity(
    bilm: BiLM,
    sentences: Iterable[Sentence],
    *,
    spacing: int | None = None,
    batch_tokens: int = 2048,
    progress: Callable[[int], object] | None = None,
) -> PseudoPerplexity:
    """Return the pseudo-perplexity of sentences: exp of the mean of −log p(token | all other tokens of its sentence).

    It is not comparable with perplexity, which predicts a token from one side. It can be compared between models with
    the same vocabulary, masked or not.

    Args:
        bilm: A model with a softmax. A masked model reads a sentence of n tokens n times, each time with one token
            hidden; another model combines its directions, as `substitutes` does.
        sentences: Sentences, each a list of tokens; empty ones are skipped.
        spacing: Hide every `spacing`-th token at once, so that a masked model reads a sentence only `spacing` times.
            Fewer tokens can then be seen. Default: hide one token at a time.
        batch_tokens: About how many tokens to process at once.
        progress: Called with the number of tokens that were just processed.

    Returns:
        The pseudo-perplexity over all tokens; the marks are not predicted.

    Raises:
        InputError: The model has no softmax, or there is no token.

    >>> import torchelmo
    >>> pseudo_perplexity(torchelmo.load(), [["I", "took", "a", "bow", "."]]).n_tokens
    5
    """
    loss, n_tokens, n_sentences, n_known = 0.0, 0, 0, 0
    for found in pseudo_scores(bilm, sentences, spacing=spacing, batch_tokens=batch_tokens):
        loss -= float(found.log_p.sum())
        n_sentences += 1
        n_tokens += len(found.tokens)
        n_known += int(found.known.sum())
        if progress is not None:
            progress(len(found.tokens))
    if not n_tokens:
        raise InputError("pseudo_perplexity: expected sentences with tokens, got none.")
    return PseudoPerplexity(exp_loss(loss / n_tokens), n_tokens, n_sentences, 1 - n_known / n_tokens)


def combine(results: Sequence[PseudoPerplexity]) -> PseudoPerplexity:
    """Return the pseudo-perplexity of several texts together, as if they had been measured as one."""
    tokens, sentences = (sum(getattr(one, name) for one in results) for name in ("n_tokens", "n_sentences"))
    unknown = sum(one.oov_rate * one.n_tokens for one in results)
    return PseudoPerplexity(exp_loss(sum(one.loss for one in results) / tokens), tokens, sentences, unknown / tokens)


class Substitute(NamedTuple):
    """A word that could appear at a position."""

    word: str
    probability: float  # over the words of the vocabulary, without the marks and the token at the position


def substitutes(
    bilm: BiLM, sentence: Sentence, positions: Sequence[int] | None = None, *, top: int = 10
) -> list[list[Substitute]]:
    """Return the words that both directions expect at positions of a sentence, other than the token there.

    The words are ranked by p(w | words before) · p(w | words after) / p(w). Both factors contain the frequency of the
    word, so it is divided out once; p(w) is what the softmax predicts from a zero vector, its biases alone. A model of
    one direction ranks them by that direction, and a masked model by p(w | both sides), with the token hidden.

    Args:
        bilm: A model with a softmax.
        sentence: A list of tokens.
        positions: Positions, counted from 0; default: all.
        top: How many words to return for each position.

    Returns:
        For each position, the most probable words, the most probable first.

    Raises:
        InputError: The model has no softmax, or a position is outside the sentence.

    >>> import torchelmo
    >>> [found] = substitutes(torchelmo.load(), "He was very happy to see her .".split(), [3], top=3)
    >>> [substitute.word for substitute in found]
    ['glad', 'sorry', 'pleased']
    """
    softmax, vocabulary = language_model(bilm, from_both_sides=True)
    first: object = sentence[0] if len(sentence) else ""
    if isinstance(first, (list, tuple)):
        raise InputError(f"substitutes: expected one sentence as a list of tokens, got {len(sentence)} lists.")
    if top < 1:
        raise ConfigError(f"top: expected at least 1, got {top}.")
    wanted = list(range(len(sentence))) if positions is None else list(positions)
    for position in wanted:
        if not 0 <= position < len(sentence):
            raise InputError(
                f"substitutes: expected a position from 0 to {len(sentence) - 1}, got {position}: "
                f"the sentence has {len(sentence)} tokens."
            )
    if not wanted:
        return []
    [(_, vectors)] = both_sides(bilm, [sentence], positions=wanted)
    marks = torch.from_numpy(vocabulary.ids([BEGIN, END, UNKNOWN]))
    tokens = torch.from_numpy(vocabulary.ids(sentence))
    word_log_p, found = WordLogP(softmax), []
    for position in wanted:
        joint = _word_scores(word_log_p, vectors[position])
        joint[marks] = joint[tokens[position]] = -torch.inf
        best = torch.softmax(joint, dim=0).topk(min(top, len(joint)))
        found.append([Substitute(vocabulary[i], p) for p, i in zip(*(x.tolist() for x in best)) if p > 0])
    return found


class Expectation(NamedTuple):
    """The words that one direction expects at a position, the most probable first."""

    ids: list[int]  # in the vocabulary
    words: list[str]
    log_p: list[float]  # natural logarithms


def substitutes_by_direction(
    bilm: BiLM, sentence: Sentence, positions: Sequence[int], *, top: int = 10
) -> list[dict[str, Expectation]]:
    """Return the words that each direction expects at positions of a sentence, other than the token there.

    A masked model has no directions to tell apart: its one entry is "masked".

    Args:
        bilm: A model with a softmax.
        sentence: A list of tokens.
        positions: Positions in the sentence, counted from 0.
        top: How many words to return for each position and direction.

    Raises:
        InputError: The model has no softmax.

    >>> import torchelmo
    >>> [found] = substitutes_by_direction(torchelmo.load(), "He was very happy to see her .".split(), [3])
    >>> sorted(found), len(found["forward"].words)
    (['backward', 'forward'], 10)
    """
    softmax, vocabulary = language_model(bilm, from_both_sides=True)
    if not positions:
        return []
    [(_, vectors)] = both_sides(bilm, [sentence], positions=positions)
    marks = torch.from_numpy(vocabulary.ids([BEGIN, END, UNKNOWN]))
    tokens = torch.from_numpy(vocabulary.ids(sentence))
    found: list[dict[str, Expectation]] = [{} for _ in positions]
    for d, direction in enumerate(bilm.config.predictions):
        for one, position in zip(found, positions):
            with torch.no_grad():
                log_p = softmax(vectors[position, d]).double().cpu()
            log_p[marks] = log_p[tokens[position]] = -torch.inf
            best = log_p.topk(min(top, len(log_p)))
            ids = [i for i, value in zip(best.indices.tolist(), best.values.tolist()) if value > -math.inf]
            one[direction] = Expectation(ids, [vocabulary[i] for i in ids], log_p[ids].tolist())
    return found
