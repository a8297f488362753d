"""Use a biLM as a language model: perplexity of text, surprisal of tokens.

Both use the exact softmax. A token outside the vocabulary is scored as `<UNK>`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.bilm.fast.products import Product, Tuning, choose_product
from torchelmo.bilm.model import BiLM, Softmax
from torchelmo.errors import ConfigError, InputError
from torchelmo.text.batching import batches_by_length, windows
from torchelmo.text.characters import check_tokens
from torchelmo.text.vocabulary import BEGIN, END, Vocabulary

Sentence: TypeAlias = Sequence[str]
State: TypeAlias = Literal["reset", "carry"]
T = TypeVar("T")
LOGITS = 1 << 22  # logits at once: 16 MB, for which the system does not fetch new pages every time
_PACK_FROM = 512  # vectors: packing the weights of the softmax takes as long as multiplying them with some 200


class Contexts(NamedTuple):
    """The vectors from which a sentence of n tokens is predicted; None for a direction that the model does not have."""

    forward: Tensor | None  # (n + 1, projection_dim): row k − 1 expects w_k, row n expects </S>
    backward: Tensor | None  # (n + 1, projection_dim): row 0 expects <S>, row k expects w_k


class Scores(NamedTuple):
    """The log-probability of every target of a sentence, in the order of the rows of `Contexts`."""

    tokens: Sentence
    known: npt.NDArray[np.bool_]  # (n,): whether the vocabulary has the token; if not, it was scored as <UNK>
    forward: Tensor | None  # (n + 1,) float64: of w_1 … w_n </S>
    backward: Tensor | None  # (n + 1,) float64: of <S> w_1 … w_n
    ranks: Mapping[str, Tensor] = {}  # by direction, (n + 1,): 1 if no other word is more probable than the target
    entropies: Mapping[str, Tensor] = {}  # by direction, (n + 1,) float64, in nats: of the predicted distributions


def contexts(
    bilm: BiLM, sentences: Iterable[Sentence], *, state: State = "reset", batch_tokens: int = 2048
) -> Iterator[tuple[Sentence, Contexts]]:
    """Yield every sentence with its contexts, in order. Sentences are read as they are needed.

    Args:
        bilm: A model with a softmax.
        sentences: Sentences, each a list of tokens; empty ones are skipped.
        state: "reset" starts every sentence from zero state, so it depends on itself alone. "carry" reads one running
            text, as training does: each direction continues from the end of the previous sentence.
        batch_tokens: About how many tokens to process at once.
    """
    runs = {"reset": _from_zero, "carry": _running}
    if state not in runs:
        raise ConfigError(f"state: expected 'reset' or 'carry', got {state!r}.")
    language_model(bilm)
    return runs[state](bilm, checked(sentences), batch_tokens)


def language_model(bilm: BiLM, *, from_both_sides: bool = False) -> tuple[Softmax, Vocabulary]:
    """Return the softmax of a model and its words.

    Args:
        bilm: The model.
        from_both_sides: Whether words are predicted from both sides, which masked models can do, too.

    Raises:
        InputError: The model has no softmax, or no vocabulary, or it is a masked model.
    """
    if bilm.config.objective == "masked" and not from_both_sides:
        raise InputError(
            f"{bilm.source}: expected a model that predicts a word from the words before it or after it, but this one "
            "was trained with objective = 'masked': it predicts hidden words from both sides, so it has no perplexity "
            "and no surprisal. Measure `pseudo_perplexity` (`torchelmo perplexity --pseudo`), or use another model."
        )
    if bilm.softmax is None:
        if bilm.config.input == "characters+words":
            advice = "Models of ELMoForManyLangs give vectors only: use another model."
        else:
            advice = "Give it one with `torchelmo fine-tune` first."
        raise InputError(
            f"{bilm.source}: expected a model with a softmax over words, but this one has only the layers. {advice}"
        )
    if bilm.vocabulary is None:
        raise InputError(
            f"{bilm.source}: expected the words of the model's softmax, but it came without a vocabulary. "
            "Put its vocab.txt into the model folder."
        )
    return bilm.softmax, bilm.vocabulary


def scores(
    bilm: BiLM,
    sentences: Iterable[Sentence],
    *,
    state: State = "reset",
    batch_tokens: int = 2048,
    rank: bool = False,
    entropy: bool = False,
) -> Iterator[Scores]:
    """Yield the log-probabilities of every sentence, in order.

    The arguments are those of `contexts`. `rank` and `entropy` also compute the ranks of the targets and the entropies
    of the distributions.
    """
    softmax, vocabulary = language_model(bilm)
    word_log_p = WordLogP(softmax)
    rows = max(1, min(batch_tokens, LOGITS // bilm.config.softmax_words))
    found = contexts(bilm, sentences, state=state, batch_tokens=batch_tokens)
    for group in by_tokens(found, lambda item: len(item[0]) + 1, rows):
        ids = [torch.from_numpy(vocabulary.ids([BEGIN, *sentence, END])) for sentence, _ in group]
        lengths = [len(some) - 1 for some in ids]
        found_by: dict[str, dict[str, Sequence[Tensor]]] = {"log_p": {}, "rank": {}, "entropy": {}}
        for direction, start in (("forward", 1), ("backward", 0)):
            vectors = [getattr(vectors, direction) for _, vectors in group]
            if vectors[0] is None:
                continue
            targets = torch.cat([some[start : len(some) - 1 + start] for some in ids]).to(vectors[0].device)
            measured = _measure_targets(word_log_p, torch.cat(vectors), targets, rows, rank=rank, entropy=entropy)
            for name, values in measured.items():
                found_by[name][direction] = values.split(lengths)
        for i, ((sentence, _), some) in enumerate(zip(group, ids)):
            log_p, ranks, entropies = (
                {direction: values[i] for direction, values in part.items()} for part in found_by.values()
            )
            known = (some[1:-1] != vocabulary.unknown_id).numpy()
            yield Scores(sentence, known, log_p.get("forward"), log_p.get("backward"), ranks, entropies)


class WordLogP:
    """The log-probabilities of all words, as `Softmax` returns them. For many vectors, its weights are packed.

    Args:
        softmax: The softmax. Its weights must not change.
    """

    def __init__(self, softmax: Softmax) -> None:
        self.softmax = softmax
        self._n_vectors = 0
        self._product: Product | None = None

    def __call__(self, vectors: Tensor) -> Tensor:
        """(n, projection_dim), or (n, dim) for a masked model -> (n, n_words)."""
        self._n_vectors += len(vectors)
        with torch.no_grad():
            if self._product is None and self._n_vectors >= _PACK_FROM:
                self._product = choose_product(self.softmax.weight.detach().T, "float32", Tuning())
            if self._product is None:
                log_p: Tensor = self.softmax(vectors)
                return log_p
            return self._product(self.softmax.project(vectors), self.softmax.bias).log_softmax(dim=-1)


def _measure_targets(
    word_log_p: WordLogP, vectors: Tensor, targets: Tensor, rows: int, *, rank: bool, entropy: bool
) -> dict[str, Tensor]:
    """Return the log-probability of each target, and if asked for, its rank and the entropy of the distribution."""
    found: dict[str, list[Tensor]] = {"log_p": [], "rank": [], "entropy": []}
    for some, wanted in zip(vectors.split(rows), targets.split(rows)):
        log_p = word_log_p(some)
        of_target = log_p.gather(-1, wanted.unsqueeze(-1))
        found["log_p"].append(of_target.squeeze(-1).double().cpu())
        if rank:
            found["rank"].append(((log_p > of_target).sum(-1) + 1).cpu())
        if entropy:
            found["entropy"].append(-(log_p.exp() * log_p).sum(-1, dtype=torch.float64).cpu())
    return {name: torch.cat(parts) for name, parts in found.items() if parts}


def checked(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """Yield the sentences that have a token; check that each is a list of tokens."""
    for i, sentence in enumerate(sentences):
        check_tokens(sentence, i)
        if len(sentence):
            yield sentence


def _from_zero(bilm: BiLM, sentences: Iterator[Sentence], batch_tokens: int) -> Iterator[tuple[Sentence, Contexts]]:
    for window in windows(sentences, 1024):
        found: dict[int, Contexts] = {}
        for places in batches_by_length([len(sentence) + 2 for sentence in window], batch_tokens):
            with torch.no_grad():
                top = bilm(bilm.token_ids([window[i] for i in places])).layers[-1]
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
    """Read as in training: the forward LSTM never reads </S>, the backward LSTM never reads <S>."""
    forward_state = backward_state = None
    for window in by_tokens(sentences, lambda sentence: len(sentence) + 1, batch_tokens):
        with torch.no_grad():
            text = list(chain.from_iterable([BEGIN, *sentence] for sentence in window))
            ahead = bilm(bilm.token_ids([text]), forward_state, boundaries=False)
            # The backward LSTM reads a row from its end, so the first sentence comes last.
            text = list(chain.from_iterable([*sentence, END] for sentence in reversed(window)))
            back = bilm(bilm.token_ids([text]), backward_state, boundaries=False)
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


def by_tokens(items: Iterable[T], size_of: Callable[[T], int], size: int) -> Iterator[list[T]]:
    """Yield lists of consecutive items with sizes that sum to at least `size`."""
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
    """Split a layer, (tokens, dim), into its forward and backward part."""
    halves = dict(zip(bilm.config.directions, top.split(bilm.config.projection_dim, dim=-1)))
    return halves.get("forward"), halves.get("backward")


class Perplexity(NamedTuple):
    """The perplexity of a text."""

    forward: float | None  # None for a direction that the model does not have
    backward: float | None
    average: float  # the mean of the two perplexities, as published figures are
    n_tokens: int  # without the marks
    n_sentences: int
    oov_rate: float  # share of the tokens that are outside the vocabulary

    @property
    def n_targets(self) -> int:
        """The number of targets: all tokens and sentence ends."""
        return self.n_tokens + self.n_sentences

    def loss(self, direction: str) -> float:
        """Return the sum of −log p over the targets of a direction; sums of several texts can be added."""
        return math.log(getattr(self, direction)) * self.n_targets


def perplexity(
    bilm: BiLM,
    sentences: Iterable[Sentence],
    *,
    state: State = "reset",
    batch_tokens: int = 2048,
    progress: Callable[[int], object] | None = None,
) -> Perplexity:
    """Return the perplexity of sentences, over all their tokens and sentence ends.

    Args:
        bilm: A model with a softmax.
        sentences: Sentences, each a list of tokens; empty ones are skipped.
        state: "reset" starts every sentence from zero state, so it depends on itself alone. "carry" reads one running
            text, as training does: each direction continues from the end of the previous sentence.
        batch_tokens: About how many tokens to process at once.
        progress: Called with the number of tokens that were just processed.

    Returns:
        The perplexity of each direction, and their average.

    Raises:
        InputError: The model has no softmax, or there is no token.

    >>> import torchelmo
    >>> perplexity(torchelmo.load(), [["I", "took", "a", "bow", "."]]).n_tokens
    5
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
    each = {direction: exp_loss(loss / (n_tokens + n_sentences)) for direction, loss in losses.items()}
    average = sum(each.values()) / len(each)
    return Perplexity(each.get("forward"), each.get("backward"), average, n_tokens, n_sentences, 1 - n_known / n_tokens)


def combine(results: Sequence[Perplexity]) -> Perplexity:
    """Return the perplexity of several texts together, as if they had been measured as one."""
    tokens, sentences = (sum(getattr(one, name) for one in results) for name in ("n_tokens", "n_sentences"))
    each = {}
    for direction in ("forward", "backward"):
        if all(getattr(one, direction) is not None for one in results):
            each[direction] = exp_loss(sum(one.loss(direction) for one in results) / (tokens + sentences))
    unknown = sum(one.oov_rate * one.n_tokens for one in results)
    average = sum(each.values()) / len(each)
    return Perplexity(each.get("forward"), each.get("backward"), average, tokens, sentences, unknown / tokens)


def exp_loss(loss: float) -> float:
    """Return the perplexity of a mean loss; infinite if it is too large for a number."""
    return math.exp(loss) if loss < 700 else math.inf


class Surprisal(NamedTuple):
    """The bits of each of the n tokens of a sentence; None for a direction that the model does not have."""

    tokens: Sentence
    forward: npt.NDArray[np.float64] | None  # (n,): given the tokens before it
    backward: npt.NDArray[np.float64] | None  # (n,): given the tokens after it
    in_vocabulary: npt.NDArray[np.bool_]  # (n,): if false, the bits are those of <UNK>


def surprisal(
    bilm: BiLM, sentences: Iterable[Sentence], *, state: State = "reset", batch_tokens: int = 2048
) -> Iterator[Surprisal]:
    """Yield the surprisal −log₂ p of every token, sentence by sentence. Sentences are read as they are needed.

    Args:
        bilm: A model with a softmax.
        sentences: Sentences, each a list of tokens; empty ones are skipped.
        state: "reset" starts every sentence from zero state, so it depends on itself alone. "carry" reads one running
            text, as training does: each direction continues from the end of the previous sentence.
        batch_tokens: About how many tokens to process at once.

    Yields:
        One result for every sentence that has a token, in order.

    Raises:
        InputError: The model has no softmax.

    >>> import torchelmo
    >>> [found] = surprisal(torchelmo.load(), [["I", "took", "a", "bow", "."]])
    >>> found.forward.shape
    (5,)
    """
    for found in scores(bilm, sentences, state=state, batch_tokens=batch_tokens):
        # The sentence end is not a token: </S> is last in the forward direction, <S> first in the backward one.
        yield Surprisal(found.tokens, _bits(found.forward, 0), _bits(found.backward, 1), found.known)


def _bits(log_p: Tensor | None, first: int) -> npt.NDArray[np.float64] | None:
    if log_p is None:
        return None
    bits: npt.NDArray[np.float64] = -log_p[first : len(log_p) - 1 + first].numpy() / math.log(2)
    return bits
