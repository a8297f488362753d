"""Nearest neighbours in context (Table 4 of the paper): which words of a text stand closest to a word in a sentence."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import tee
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from torchelmo.elmo import Elmo, Sentence, Vectors
from torchelmo.errors import ConfigError, InputError
from torchelmo.text.tokenize import tokenizer_for

T = TypeVar("T")
Array: TypeAlias = npt.NDArray[np.floating[Any]]
Count: TypeAlias = Callable[[int], object]  # called with the number of sentences that were just finished


def with_vectors(
    elmo: Elmo,
    items: Iterable[T],
    tokens_of: Callable[[T], Sequence[str]],
    *,
    batch_tokens: int = 2048,
    progress: Count | None = None,
) -> Iterator[tuple[T, Vectors]]:
    """Every item beside the vectors of its tokens, (n_layers + 1, n_tokens, dim); items are read as they are needed."""
    read, kept = tee(items)  # which holds only those that the biLM has read and not yet given back
    stream = elmo.stream(map(tokens_of, read), batch_tokens=batch_tokens, progress=progress or False)
    return ((item, vectors) for vectors, item in zip(stream, kept))


def choose_layers(elmo: Elmo, layers: Sequence[int | str]) -> list[int]:
    """Indices, "top" or "all" -> indices in rising order, each once."""
    n_layers = elmo.bilm.config.n_layers + 1
    chosen: set[int] = set()
    for layer in layers:
        if layer == "all":
            chosen.update(range(n_layers))
        elif layer == "top":
            chosen.add(n_layers - 1)
        elif str(layer).isdecimal() and int(layer) < n_layers:
            chosen.add(int(layer))
        else:
            raise ConfigError(
                f"layers: expected 'all', 'top' or an index from 0 (the token layer) to {n_layers - 1}, got {layer!r}."
            )
    if not chosen:
        raise ConfigError("layers: expected at least one, got none.")
    return sorted(chosen)


def unit(vectors: Array) -> Array:
    """(…, dim), each with length 1, so that products are cosines; a vector of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths).astype(vectors.dtype)


class Neighbour(NamedTuple):
    cosine: float
    tokens: tuple[str, ...]  # its sentence
    position: int  # its place there, from 0

    @property
    def word(self) -> str:
        return self.tokens[self.position]


def neighbours(
    elmo: Elmo,
    sentence: Sequence[str],
    position: int,
    text: Iterable[Sequence[str]],
    *,
    layers: Sequence[int | str] = ("top",),
    top: int = 10,
    batch_tokens: int = 2048,
    progress: Count | None = None,
) -> dict[int, list[Neighbour]]:
    """For each layer, the `top` words of `text` with the highest cosines to word `position` of `sentence`.

    The text is read once and may have any size: only the best are kept. Its copies of `sentence` are passed over, and
    of a sentence that stands there several times each word counts once.
    """
    chosen = choose_layers(elmo, layers)
    if top < 1:
        raise ConfigError(f"top: expected at least 1, got {top}.")
    place = find_word(sentence, None, position)
    target = unit(elmo.embed([sentence])[0][chosen, place])
    best = {layer: _Best(top) for layer in chosen}
    own = tuple(sentence)
    for tokens, vectors in with_vectors(
        elmo, text, lambda tokens: tokens, batch_tokens=batch_tokens, progress=progress
    ):
        if tuple(tokens) != own:
            cosines = np.einsum("lnd,ld->ln", unit(vectors[chosen]), target)
            for row, layer in zip(cosines, chosen):
                best[layer].offer(row, tuple(tokens))
    return {layer: found.sorted() for layer, found in best.items()}


def compare(elmo: Elmo, word: str, sentences: Sequence[Sentence], *, lang: str = "en") -> npt.NDArray[np.float32]:
    """(n_layers + 1, n_sentences, n_sentences): the cosines of one word, as it stands in each of the sentences.

    `compare(elmo, "bow", ["I took a bow", "He was wielding a bow and arrow"])[2, 0, 1]` says how alike the two are to
    the second biLSTM layer. A sentence is a list of tokens, or a string for spaCy's rules of `lang`.
    """
    if not sentences:
        raise InputError("compare: expected sentences, got none.")
    tokens = [tokenizer_for(lang).tokens(some) if isinstance(some, str) else some for some in sentences]
    places = [find_word(some, word) for some in tokens]
    found = [vectors[:, place] for vectors, place in zip(elmo.embed(tokens), places)]
    units = unit(np.stack(found, axis=1))  # (n_layers + 1, n_sentences, dim)
    return np.asarray(units @ units.transpose(0, 2, 1), dtype=np.float32)


def find_word(sentence: Sequence[str], word: str | None, position: int | None = None) -> int:
    """The place of `word`, which stands there once, or `position` itself if that is where the word stands."""
    shown = " ".join(sentence)
    if position is not None:
        if not 0 <= position < len(sentence):
            raise ConfigError(f"position: expected 0 to {len(sentence) - 1}, got {position}: {shown!r}.")
        if word is not None and sentence[position] != word:
            raise ConfigError(f"position: expected {word!r} at {position}, found {sentence[position]!r}: {shown!r}.")
        return position
    if word is None:
        raise ConfigError("Expected a word or its position in the sentence, got neither.")
    places = [i for i, token in enumerate(sentence) if token == word]
    if not places:
        raise ConfigError(f"{word!r}: expected one of the tokens of the sentence, which are: {shown!r}.")
    if len(places) > 1:
        raise ConfigError(
            f"{word!r}: expected it once in {shown!r}, found it at positions {', '.join(map(str, places))}. "
            "Say which position is meant."
        )
    return places[0]


class _Best:
    """The `size` words with the highest cosines; of equals, those that came first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._heap: list[tuple[float, int, Neighbour]] = []  # the worst first; the later of equals is the worse
        self._kept: set[tuple[tuple[str, ...], int]] = set()
        self._n_added = 0

    def offer(self, cosines: Array, tokens: tuple[str, ...]) -> None:
        """All words of a sentence."""
        for place in np.flatnonzero(cosines > self._floor()).tolist():
            cosine = float(cosines[place])
            if cosine > self._floor() and (tokens, place) not in self._kept:
                self._add(Neighbour(cosine, tokens, place))

    def sorted(self) -> list[Neighbour]:
        return [neighbour for _, _, neighbour in sorted(self._heap, reverse=True)]

    def _floor(self) -> float:
        return self._heap[0][0] if len(self._heap) == self.size else -np.inf

    def _add(self, neighbour: Neighbour) -> None:
        self._n_added += 1
        entry = (neighbour.cosine, -self._n_added, neighbour)
        self._kept.add(neighbour[1:])
        if len(self._heap) < self.size:
            heapq.heappush(self._heap, entry)
        else:
            _, _, worst = heapq.heapreplace(self._heap, entry)
            self._kept.remove(worst[1:])
