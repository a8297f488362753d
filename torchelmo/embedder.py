"""Sentences → one NumPy array each, in order and in bounded memory: the work behind `Elmo.embed`.

tokenize → token vectors → layers → choose
"""

import contextlib
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import KW_ONLY, dataclass
from functools import cache, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.bilm.fast.encoder import TokenVectorCache
from torchelmo.bilm.fast.inference import State
from torchelmo.bilm.fast.products import Kernels, Precision
from torchelmo.bilm.model import BiLM
from torchelmo.errors import ConfigError, InputError, WeightsError, short_repr
from torchelmo.mix import ScalarMix
from torchelmo.progress import progress as show_progress
from torchelmo.text.batching import batches_by_length
from torchelmo.text.characters import check_tokens
from torchelmo.text.tokenize import tokenizer_for
from torchelmo.text.vocabulary import BEGIN, END

Sentence = Sequence[str] | str
Layers = Literal["all", "top", "average", "sum", "concat", "mix"] | int
Vectors = npt.NDArray[np.float32]
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
B = TypeVar("B")
log = logging.getLogger(__name__)
_LAYERS = ("all", "top", "average", "sum", "concat", "mix")
_CHOICES = {
    "precision": ("float32", "float16", "int8"),
    "kernels": ("measured", "fixed"),
    "state": ("reset", "carry"),
    "pool": (None, "mean", "max"),
}
BLOCKS_PER_CACHE = 64  # blocks that share token vectors: a resumed run encodes the words of fewer blocks again
_WINDOW = 4  # batches that are sorted by length together: more would sort better but hold more in memory


@dataclass(frozen=True)
class EmbedSettings:
    """The settings of `Elmo.embed` and `Elmo.stream`; see there for their meaning."""

    layers: Layers = "all"
    _: KW_ONLY
    batch_tokens: int = 2048
    precision: Precision = "float32"
    kernels: Kernels = "measured"
    state: Literal["reset", "carry"] = "reset"
    lang: str | None = None
    pool: Literal["mean", "max"] | None = None
    progress: bool | Callable[[int], object] = False

    def __post_init__(self) -> None:
        number = self.batch_tokens
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < 1:
            raise ConfigError(f"batch_tokens: expected a whole number of at least 1, got {number!r}.")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                expected = " or ".join(map(repr, known))
                raise ConfigError(f"{name}: expected {expected}, got {getattr(self, name)!r}.")

    def check_layers(self, n_layers: int) -> None:
        """Raise a ConfigError if `layers` is not a choice that a model with this many layers has."""
        layers = self.layers
        index = isinstance(layers, (int, np.integer)) and not isinstance(layers, bool)
        if not (index and -n_layers <= int(layers) < n_layers) and layers not in _LAYERS:
            names = ", ".join(map(repr, _LAYERS))
            raise ConfigError(f"layers: expected {names} or an index from 0 to {n_layers - 1}, got {layers!r}.")


def settings_as_arguments(
    settings: Callable[P, EmbedSettings],
) -> Callable[
    [Callable[[S, Iterable[Sentence], EmbedSettings], R]], Callable[Concatenate[S, Iterable[Sentence], P], R]
]:
    """Turn a method of (sentences, EmbedSettings) into one of (sentences, and the fields of EmbedSettings).

    So the settings and their defaults are declared once.
    """

    def decorate(
        method: Callable[[S, Iterable[Sentence], EmbedSettings], R],
    ) -> Callable[Concatenate[S, Iterable[Sentence], P], R]:
        @wraps(method)
        def call(self: S, sentences: Iterable[Sentence], *args: P.args, **kwargs: P.kwargs) -> R:
            return method(self, sentences, settings(*args, **kwargs))

        signature = inspect.signature(method)
        own = [signature.parameters[name] for name in ("self", "sentences")]
        fields = inspect.signature(settings).parameters.values()
        call.__signature__ = signature.replace(parameters=[*own, *fields])  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]  # mypy wants `sentences` to be positional only

    return decorate


class Embedder:
    """Compute the vectors of sentences with one model and fixed settings.

    Args:
        bilm: The model.
        mix: The mix that `layers="mix"` uses.
        cache: Token vectors of earlier calls.
        settings: What to compute.

    Raises:
        ConfigError: The model does not have the layer.
    """

    def __init__(self, bilm: BiLM, mix: ScalarMix, cache: TokenVectorCache, settings: EmbedSettings) -> None:
        settings.check_layers(bilm.config.n_layers + 1)
        self.bilm, self.mix, self.cache, self.settings = bilm, mix, cache, settings

    def __call__(self, sentences: Iterable[Sentence]) -> Iterator[Vectors]:
        """Yield one array for each sentence, in order, while the input is read."""
        state: State | None = None
        with _progress(self.settings.progress, sentences) as advance:
            for window in self._tokenize(sentences):
                parts = [part for item in window for part in item]
                if self.settings.state == "carry":
                    vectors, state = self._run_in_order(parts, state)
                else:
                    vectors = self._run_by_length(parts)
                remaining = iter(vectors)
                for item in window:
                    yield self._join([next(remaining) for _ in item])
                    advance(1)

    def fill_cache(self, sentences: Iterable[Sentence]) -> None:
        """Leave the cache as a call with these sentences would leave it, at a fraction of the cost.

        The last digits of a token vector can depend on the words that it is encoded with, so a program that continues
        an earlier one needs the same cache to get the same bits.
        """
        if self.bilm.config.input == "words":
            return
        for window in self._tokenize(sentences):
            parts = [part for item in window for part in item]
            for batch in self._batches(parts):
                self._token_vectors([word for i in batch for word in (BEGIN, *parts[i], END)])

    def resume_blocks(
        self, blocks: Iterable[B], n_done: int, sentences_of: Callable[[B], Iterable[Sentence]]
    ) -> Iterator[B]:
        """Yield the blocks of sentences that are not done yet. Call the embedder with each before asking for the next.

        Equal vectors, bit for bit, need equal batches, also of the words that are not in the cache. So the cache is
        emptied every few blocks, and after an interruption it is filled as it was: a resumed run gives the same bits.

        Args:
            blocks: All blocks, the finished ones included.
            n_done: The number of blocks that an earlier run finished.
            sentences_of: Returns the sentences of a block.
        """
        for number, block in enumerate(blocks):
            if number % BLOCKS_PER_CACHE == 0:
                self.cache.clear()
            if number >= n_done:
                yield block
            elif number >= n_done - n_done % BLOCKS_PER_CACHE:
                self.fill_cache(sentences_of(block))

    def _batches(self, parts: list[Sequence[str]]) -> list[list[int]]:
        if self.settings.state == "carry":
            return [[i] for i in range(len(parts))]
        return batches_by_length([len(part) + 2 for part in parts], self.settings.batch_tokens)

    def _tokenize(self, sentences: Iterable[Sentence]) -> Iterator[list[list[Sequence[str]]]]:
        """Yield a few batches of inputs at a time, each input as its non-empty sentences."""
        window: list[list[Sequence[str]]] = []
        n_tokens = 0
        lang = self.settings.lang or self.bilm.lang or "en"
        single_words = True  # so far, every input is a string without a space
        for position, sentence in enumerate(sentences):
            if isinstance(sentence, str):
                window.append([*split_text(sentence, position, lang)])
                single_words = single_words and len(sentence.split()) == 1
            else:
                check_tokens(sentence, position, expected="a string or a list of tokens")
                window.append([sentence] if len(sentence) else [])
                single_words = False
            n_tokens += 1 + sum(len(part) + 2 for part in window[-1])
            if n_tokens >= _WINDOW * self.settings.batch_tokens:
                yield window
                window, n_tokens, single_words = [], 0, False
        if single_words and len(window) > 1:
            _warn_of_single_words()
        if window:
            yield window

    def _run_by_length(self, parts: list[Sequence[str]]) -> list[Vectors]:
        results: dict[int, Vectors] = {}
        for batch in self._batches(parts):
            vectors, _ = self._run([parts[i] for i in batch], None)
            results.update(zip(batch, vectors, strict=True))
        return [results[i] for i in range(len(parts))]

    def _run_in_order(self, parts: list[Sequence[str]], state: State | None) -> tuple[list[Vectors], State | None]:
        results = []
        for part in parts:
            vectors, state = self._run([part], state)
            results += vectors
        return results, state

    @torch.no_grad()
    def _run(self, parts: list[Sequence[str]], state: State | None) -> tuple[list[Vectors], State]:
        """Return the vectors of a batch of non-empty sentences, and the state after them."""
        words = [word for part in parts for word in (BEGIN, *part, END)]
        lengths = [len(part) + 2 for part in parts]
        x = self._token_vectors(words)
        layers, state = self.bilm.fast.run(
            x, lengths, state, precision=self.settings.precision, kernels=self.settings.kernels
        )
        chosen = self._choose(layers, lengths).to("cpu", torch.float32)
        if not math.isfinite(float(chosen.sum())) and not bool(torch.isfinite(chosen).all()):
            raise WeightsError(f"{self.bilm.source}: the vectors are NaN or infinite. The weights are damaged.")
        array = chosen.numpy()
        ends = np.cumsum(lengths)
        # Copies, not views: a sentence that is kept should not keep its whole batch in memory.
        return [array[..., end - n + 1 : end - 1, :].copy() for n, end in zip(lengths, ends, strict=True)], state

    def _token_vectors(self, words: list[str]) -> Tensor:
        if self.bilm.config.input == "words":
            return self.bilm.fast.encode(self.bilm.token_ids([words])[0])
        return self.bilm.fast.token_vectors(words, self.cache, precision=self.settings.precision)

    def _choose(self, layers: Tensor, lengths: list[int]) -> Tensor:
        """(n_layers + 1, n_tokens, dim) -> (n_layers + 1, n_tokens, dim) for "all", else (n_tokens, …)."""
        choice = self.settings.layers
        if choice == "all":
            return layers
        if choice == "average":
            return layers.mean(dim=0)
        if choice == "sum":
            return layers.sum(dim=0)
        if choice == "concat":
            return layers.transpose(0, 1).flatten(1)
        if choice == "mix":
            # A layer norm is computed over the tokens that it is given, so it needs one sentence at a time.
            parts = layers.split(lengths, dim=1) if self.mix.layer_norm else [layers]
            return torch.cat([self.mix(part.unsqueeze(1))[0] for part in parts])
        return layers[-1 if choice == "top" else choice]

    def _join(self, vectors: list[Vectors]) -> Vectors:
        """Join the sentences of one input, and pool its tokens if that was asked for."""
        joined = np.concatenate(vectors, axis=-2) if len(vectors) > 1 else vectors[0] if vectors else self._empty()
        if self.settings.pool is None:
            return joined
        if not joined.shape[-2]:  # the pooled vector of no tokens is 0
            joined = np.zeros((*joined.shape[:-2], 1, joined.shape[-1]), dtype=np.float32)
        pooled: Vectors = joined.mean(axis=-2) if self.settings.pool == "mean" else joined.max(axis=-2)
        return pooled

    def _empty(self) -> Vectors:
        """Return the vectors of an input without tokens."""
        n_layers, dim = self.bilm.config.n_layers + 1, self.bilm.config.dim
        shapes: dict[Any, tuple[int, ...]] = {"all": (n_layers, 0, dim), "concat": (0, n_layers * dim)}
        return np.zeros(shapes.get(self.settings.layers, (0, dim)), dtype=np.float32)


def check_sentences(sentences: Any, caller: str) -> None:
    """Raise an InputError if `sentences` is not a list, or another ordered collection, of sentences."""
    if isinstance(sentences, (str, bytes)):
        raise InputError(f"{caller}: expected a list of sentences, got one string. Pass [text] for a single text.")
    if type(sentences).__name__ == "DataFrame":  # iterating over it gives the names of its columns
        raise InputError(f"{caller}: expected a list of sentences, got a DataFrame. Pass one column: df['text'].")
    if not isinstance(sentences, Iterable) or isinstance(sentences, (Mapping, Set)):
        raise InputError(f"{caller}: expected a list of sentences, got {short_repr(sentences)}.")


def split_text(text: str, position: int, lang: str) -> list[list[str]]:
    """Split a string of raw text into sentences of tokens. An error names the position of the string in its list."""
    try:
        text.encode()  # the tokenizer would replace lone surrogates without a message
    except UnicodeEncodeError as error:
        raise InputError(
            f"Sentence {position}: expected text, found a lone surrogate ({error.object[error.start : error.end]!a}) "
            "in it. Decode the text as UTF-8, or remove such characters."
        ) from None
    # Looked up for every text: a stream may be continued by another thread, and each thread has its own.
    return tokenizer_for(lang).sentences(text)


@contextlib.contextmanager
def _progress(show: bool | Callable[[int], object], sentences: Iterable[Any]) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the number of finished sentences: the user's, a progress bar's, or none."""
    if callable(show):
        yield show
    elif show:
        with show_progress("embed", len(sentences) if isinstance(sentences, Sized) else None) as advance:
            yield advance
    else:
        yield lambda n: None


@cache  # once per process
def _warn_of_single_words() -> None:
    log.warning(
        "embed: every input is a single word, and each is embedded as a separate sentence. "
        "To embed one tokenized sentence, pass a list that contains it: embed([tokens])."
    )
