"""Sentences in, one NumPy array each out, in order, in bounded memory: what `Elmo.embed` runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.bilm.fast.cache import WordVectors
from torchelmo.bilm.fast.products import Precision
from torchelmo.bilm.model import BiLM, BiLMState
from torchelmo.errors import ConfigError, InputError
from torchelmo.mix import ScalarMix
from torchelmo.text.batching import batches_by_length
from torchelmo.text.characters import CharacterEncoder
from torchelmo.text.tokenize import tokenizer_for
from torchelmo.text.vocabulary import BEGIN, END

Sentence = Sequence[str] | str
Layers = Literal["all", "top", "average", "mix"] | int
Vectors = npt.NDArray[np.float32]
_WINDOW = 4  # batches that are sorted by length together: more would sort better and hold more in memory


@dataclass(frozen=True)
class Embedding:
    """How sentences become vectors; call it with the sentences."""

    bilm: BiLM
    mix: ScalarMix
    words: WordVectors
    layers: Layers = "all"
    batch_tokens: int = 2048
    precision: Precision = "float32"
    state: Literal["reset", "carry"] = "reset"
    lang: str = "en"

    def __post_init__(self) -> None:
        n_layers = self.bilm.config.n_layers + 1
        named = self.layers in ("all", "top", "average", "mix")
        index = isinstance(self.layers, (int, np.integer)) and not isinstance(self.layers, bool)
        if not named and not (index and -n_layers <= self.layers < n_layers):  # type: ignore[operator]
            raise ConfigError(
                f"layers: expected 'all', 'top', 'average', 'mix' or an index from 0 to {n_layers - 1}, "
                f"got {self.layers!r}."
            )
        if self.batch_tokens < 1:
            raise ConfigError(f"batch_tokens: expected at least 1, got {self.batch_tokens}.")
        for name, value, known in (
            ("precision", self.precision, ("float32", "float16")),
            ("state", self.state, ("reset", "carry")),
        ):
            if value not in known:
                raise ConfigError(f"{name}: expected {known[0]!r} or {known[1]!r}, got {value!r}.")

    def __call__(self, sentences: Iterable[Sentence]) -> Iterator[Vectors]:
        state: BiLMState | None = None
        for window in self._windows(sentences):
            parts = [part for item in window for part in item]
            if self.state == "carry":
                results, state = self._run_in_turn(parts, state)
            else:
                results = self._run_by_length(parts)
            rest = iter(results)
            for item in window:
                yield self._join([next(rest) for _ in item])

    def _windows(self, sentences: Iterable[Sentence]) -> Iterator[list[list[Sequence[str]]]]:
        """Each input as its non-empty parts (the sentences of a string), a few batches at a time."""
        window: list[list[Sequence[str]]] = []
        n_tokens = 0
        for position, sentence in enumerate(sentences):
            if isinstance(sentence, str):
                # Asked for anew each time: a stream may be read on in another thread.
                window.append([*tokenizer_for(self.lang).sentences(sentence)])
            else:
                check_tokens(sentence, position)
                window.append([sentence] if len(sentence) else [])
            n_tokens += 1 + sum(len(part) + 2 for part in window[-1])
            if n_tokens >= _WINDOW * self.batch_tokens:
                yield window
                window, n_tokens = [], 0
        if window:
            yield window

    def _run_by_length(self, parts: list[Sequence[str]]) -> list[Vectors]:
        results: dict[int, Vectors] = {}
        for batch in batches_by_length([len(part) + 2 for part in parts], self.batch_tokens):
            vectors, _ = self._run([parts[i] for i in batch], None)
            results.update(zip(batch, vectors, strict=True))
        return [results[i] for i in range(len(parts))]

    def _run_in_turn(
        self, parts: list[Sequence[str]], state: BiLMState | None
    ) -> tuple[list[Vectors], BiLMState | None]:
        results = []
        for part in parts:
            vectors, state = self._run([part], state)
            results += vectors
        return results, state

    @torch.no_grad()
    def _run(self, parts: list[Sequence[str]], state: BiLMState | None) -> tuple[list[Vectors], BiLMState]:
        """A batch of sentences, none empty -> their vectors, and the state after them."""
        words = [word for part in parts for word in (BEGIN, *part, END)]
        lengths = [len(part) + 2 for part in parts]
        layers, state = self.bilm.run_flat(self._encode(words), lengths, state, precision=self.precision)
        if self.layers == "mix" and self.mix.layer_norm:  # which looks at all tokens it is given
            chosen = torch.cat([self._choose(sentence) for sentence in layers.split(lengths, dim=1)])
        else:
            chosen = self._choose(layers)
        ends = np.cumsum(lengths)
        array = chosen.to("cpu", torch.float32).numpy()
        # Copies, not views: a kept sentence should not keep its whole batch in memory.
        return [array[..., end - n + 1 : end - 1, :].copy() for n, end in zip(lengths, ends, strict=True)], state

    def _encode(self, words: list[str]) -> Tensor:
        """(n_words, projection_dim), from the cache where they are kept."""
        device = next(self.bilm.parameters()).device
        if self.bilm.config.input == "words":
            return self.bilm.encode_words(word_ids(self.bilm, [words])[0].to(device))

        def encode(distinct: list[str]) -> Tensor:
            ids = torch.from_numpy(CharacterEncoder(self.bilm.config.max_characters).encode(distinct))
            return self.bilm.encode_words(ids.to(device), precision=self.precision)

        return self.words(words, encode, (self.precision, self.bilm.encoder_key()))

    def _choose(self, layers: Tensor) -> Tensor:
        """(n_layers + 1, n_tokens, dim) -> what was asked for."""
        if self.layers == "all":
            return layers
        if self.layers == "mix":
            mixed: Tensor = self.mix(layers.unsqueeze(1))
            return mixed[0]
        if self.layers == "average":
            return layers.mean(dim=0)
        return layers[-1 if self.layers == "top" else self.layers]

    def _join(self, vectors: list[Vectors]) -> Vectors:
        if len(vectors) == 1:
            return vectors[0]
        if vectors:
            return np.concatenate(vectors, axis=-2)
        config = self.bilm.config
        shape = (config.n_layers + 1, 0, config.dim) if self.layers == "all" else (0, config.dim)
        return np.zeros(shape, dtype=np.float32)


def check_tokens(sentence: Sequence[str], position: int) -> None:
    """A list of strings, or an error that says which sentence is not one."""
    if isinstance(sentence, (str, bytes)) or not hasattr(sentence, "__len__"):
        raise InputError(
            f"Sentence {position}: expected a list of tokens, got {sentence!r:.60}. "
            "Split it into tokens, or pass strings to embed()."
        )
    for i, token in enumerate(sentence):
        if not isinstance(token, str):
            raise InputError(f"Sentence {position}, token {i}: expected a string, got {token!r:.60}.")


def token_ids(bilm: BiLM, sentences: Sequence[Sequence[str]]) -> Tensor:
    """What a biLM reads, on its device: (n_sentences, longest, max_characters), or `word_ids`; 0 is padding."""
    device = next(bilm.parameters()).device
    if bilm.config.input == "words":
        return word_ids(bilm, sentences).to(device)
    return torch.from_numpy(CharacterEncoder(bilm.config.max_characters).batch(sentences)).to(device)


def word_ids(bilm: BiLM, sentences: Sequence[Sequence[str]]) -> Tensor:
    """(n_sentences, longest): word i of the vocabulary as i + 1, 0 at padded positions."""
    if bilm.vocabulary is None:
        raise InputError(
            "This model reads whole words but has no vocabulary: give load_official its vocabulary file, "
            "or put a vocab.txt into the model folder."
        )
    ids = torch.zeros(len(sentences), max(map(len, sentences), default=0), dtype=torch.int64)
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence)] = torch.from_numpy(bilm.vocabulary.ids(sentence) + 1)
    return ids
