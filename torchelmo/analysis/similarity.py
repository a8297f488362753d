"""Compare words in context by the cosine of their vectors: one word in several sentences, or a word with a whole text.

A sentence is a list of tokens, which is used unchanged, or a string of raw text, which is tokenized.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import tee
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from torchelmo.elmo import Elmo
from torchelmo.embedder import Sentence, Vectors, check_sentences, split_text
from torchelmo.errors import ConfigError, InputError
from torchelmo.text.characters import check_tokens

T = TypeVar("T")
Array: TypeAlias = npt.NDArray[np.floating[Any]]
ProgressCallback: TypeAlias = Callable[[int], object]  # called with the number of sentences just finished


def compare(
    elmo: Elmo,
    word: str,
    sentences: Sequence[Sentence],
    *,
    position: int | Sequence[int | None] | None = None,
    lang: str = "en",
) -> npt.NDArray[np.float32]:
    """Compare the vectors of one word in several sentences.

    Args:
        elmo: The model.
        word: A word that every sentence contains.
        sentences: Lists of tokens, or strings of raw text.
        position: The position of the word, counted in tokens from 0. It is needed only if the word appears several
            times in a sentence. Give one number for all sentences, or one entry per sentence (None: find the word).
        lang: The language whose rules tokenize strings.

    Returns:
        The cosine of every pair of sentences in every layer: (n_layers + 1, n_sentences, n_sentences).

    Raises:
        InputError: There are no sentences, or a single string was given instead of a list.
        ConfigError: A sentence does not contain the word, or contains it several times and `position` is missing.

    Example:
        >>> import torchelmo
        >>> from torchelmo.analysis import compare
        >>> elmo = torchelmo.Elmo(torchelmo.load())
        >>> sentences = ["She took a bow.", "He took a deep bow.", "He drew his bow and shot an arrow."]
        >>> top_layer = compare(elmo, "bow", sentences)[2]
        >>> bool(top_layer[0, 1] > top_layer[0, 2])
        True
    """
    check_sentences(sentences, "compare")
    if not len(sentences):
        raise InputError("compare: expected at least one sentence, got none.")
    if position is None or isinstance(position, (int, np.integer)):
        position = [position] * len(sentences)
    if len(position) != len(sentences):
        raise ConfigError(
            f"position: expected one entry for each of the {len(sentences)} sentences, got {len(position)}."
        )
    tokens = [_tokens(sentence, i, lang) for i, sentence in enumerate(sentences)]
    places = [find_word(one, word, place) for one, place in zip(tokens, position)]
    found = [vectors[:, place] for vectors, place in zip(elmo.embed(sentences, lang=lang), places)]
    normalized = l2_normalize(np.stack(found, axis=1))  # (n_layers + 1, n_sentences, dim)
    return np.asarray(normalized @ normalized.transpose(0, 2, 1), dtype=np.float32)


class Neighbour(NamedTuple):
    """A word of a text, and how similar it is to the query word."""

    cosine: float
    tokens: tuple[str, ...]  # the sentence of the word
    position: int  # of the word in the sentence, from 0

    @property
    def word(self) -> str:
        return self.tokens[self.position]


def neighbours(
    elmo: Elmo,
    sentence: Sentence,
    position: int,
    text: Iterable[Sentence],
    *,
    layers: Sequence[int | str] = ("top",),
    top: int = 10,
    lang: str = "en",
    batch_tokens: int = 2048,
    progress: ProgressCallback | None = None,
) -> dict[int, list[Neighbour]]:
    """Find the words of a text that are most similar to a word in a sentence.

    The text is read once and may have any size: only the best words are kept in memory. Copies of `sentence` in the
    text are skipped, and of a sentence that the text repeats, each word is listed once.

    Args:
        elmo: The model.
        sentence: The sentence of the query word: a list of tokens, or a string of raw text.
        position: The position of the query word in `sentence`, counted in tokens from 0.
        text: The sentences to search: lists of tokens, or strings of raw text, which may hold several sentences each.
        layers: Indices of layers (0 is the token layer), "top" or "all".
        top: The number of neighbors per layer.
        lang: The language whose rules tokenize strings.
        batch_tokens: The number of tokens that are computed at a time. Smaller values need less memory.
        progress: A function that is called with the number of sentences that were just finished.

    Returns:
        For each layer, the neighbors in order of decreasing cosine.

    Raises:
        InputError: `text` is a single string, or an entry of it is neither a string nor a list of tokens.
        ConfigError: The position, a layer or `top` is out of range.

    Example:
        >>> import torchelmo
        >>> from torchelmo.analysis import neighbours
        >>> elmo = torchelmo.Elmo(torchelmo.load())
        >>> text = ["She made a deep bow. Everyone clapped.", "He drew his bow and shot an arrow."]
        >>> found = neighbours(elmo, "I took a bow", 3, text, top=1)
        >>> found[2][0].word, " ".join(found[2][0].tokens)
        ('bow', 'She made a deep bow .')
    """
    check_sentences(text, "neighbours")
    chosen = choose_layers(elmo, layers)
    if top < 1:
        raise ConfigError(f"top: expected at least 1, got {top}.")
    query_sentences = {tuple(tokens) for tokens in _sentences(sentence, 0, lang)}
    place = find_word(_tokens(sentence, 0, lang), None, position)
    query = l2_normalize(elmo.embed([sentence], lang=lang)[0][chosen, place])
    best = {layer: _TopNeighbours(top) for layer in chosen}
    for tokens, vectors in embed_items(
        elmo, _split(text, lang), lambda tokens: tokens, batch_tokens=batch_tokens, progress=progress
    ):
        if tuple(tokens) not in query_sentences:
            cosines = np.einsum("lnd,ld->ln", l2_normalize(vectors[chosen]), query)
            for row, layer in zip(cosines, chosen):
                best[layer].add_sentence(row, tuple(tokens))
    return {layer: found.sorted() for layer, found in best.items()}


def find_word(sentence: Sequence[str], word: str | None, position: int | None = None) -> int:
    """Return the position of `word` in `sentence`.

    Args:
        sentence: The tokens of the sentence.
        word: The word; None if `position` is given.
        position: The position of the word, from 0; None if the word appears once.

    Raises:
        ConfigError: The word is not in the sentence, not at `position`, or appears several times.
    """
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
        raise ConfigError(f"{word!r}: expected a token of the sentence; its tokens are {shown!r}.")
    if len(places) > 1:
        raise ConfigError(
            f"{word!r}: expected it once in {shown!r}, found it at positions {', '.join(map(str, places))}. "
            "Give the position of the one you mean."
        )
    return places[0]


def choose_layers(elmo: Elmo, layers: Sequence[int | str]) -> list[int]:
    """Convert indices, "top" and "all" to distinct layer indices in ascending order."""
    n_layers = elmo.bilm.config.n_layers + 1
    names: dict[str, Iterable[int]] = {str(layer): [layer] for layer in range(n_layers)}
    names |= {"all": range(n_layers), "top": [n_layers - 1]}
    chosen: set[int] = set()
    for layer in layers:
        if str(layer) not in names:
            raise ConfigError(
                f"layers: expected 'all', 'top' or an index from 0 (the token layer) to {n_layers - 1}, got {layer!r}."
            )
        chosen.update(names[str(layer)])
    if not chosen:
        raise ConfigError("layers: expected at least one, got none.")
    return sorted(chosen)


def embed_items(
    elmo: Elmo,
    items: Iterable[T],
    tokens_of: Callable[[T], Sequence[str]],
    *,
    batch_tokens: int = 2048,
    progress: ProgressCallback | None = None,
) -> Iterator[tuple[T, Vectors]]:
    """Yield every item with the vectors of its tokens, (n_layers + 1, n_tokens, dim), while the items are read."""
    read, kept = tee(items)  # holds only the items whose vectors are not finished yet
    stream = elmo.stream(map(tokens_of, read), batch_tokens=batch_tokens, progress=progress or False)
    return ((item, vectors) for vectors, item in zip(stream, kept))


def l2_normalize(vectors: Array) -> Array:
    """Scale vectors (…, dim) to length 1, so that dot products are cosines. Zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths).astype(vectors.dtype)


class _TopNeighbours:
    """The `size` words with the highest cosines. Of equal cosines, the earlier word is kept."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._heap: list[tuple[float, int, Neighbour]] = []  # the worst first; of equal cosines, the latest
        self._kept: set[tuple[tuple[str, ...], int]] = set()
        self._n_added = 0

    def add_sentence(self, cosines: Array, tokens: tuple[str, ...]) -> None:
        """Consider every word of a sentence."""
        for place in np.flatnonzero(cosines > self._threshold()).tolist():
            cosine = float(cosines[place])
            if cosine > self._threshold() and (tokens, place) not in self._kept:
                self._add(Neighbour(cosine, tokens, place))

    def sorted(self) -> list[Neighbour]:
        return [neighbour for _, _, neighbour in sorted(self._heap, reverse=True)]

    def _threshold(self) -> float:
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


def _split(text: Iterable[Sentence], lang: str) -> Iterator[Sequence[str]]:
    """Yield the tokens of every sentence: strings are split into sentences, lists of tokens pass through."""
    for i, one in enumerate(text):
        yield from _sentences(one, i, lang)


def _tokens(sentence: Sentence, i: int, lang: str) -> list[str]:
    return [token for tokens in _sentences(sentence, i, lang) for token in tokens]


def _sentences(sentence: Sentence, i: int, lang: str) -> Sequence[Sequence[str]]:
    if isinstance(sentence, str):
        return split_text(sentence, i, lang)
    check_tokens(sentence, i, expected="a string or a list of tokens")
    return [sentence]
