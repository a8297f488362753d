"""Encode tokens as character ids in the official layout.

A token is begin-of-word, its UTF-8 bytes, end-of-word, then padding up to `max_length`. All ids are shifted by one, so
that 0 marks the padded positions of a batch.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.errors import InputError, short_repr

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 257, 258, 259, 260, 261
SENTENCE_MARKS = {"<S>": BEGIN_SENTENCE, "</S>": END_SENTENCE}

CharacterIds = npt.NDArray[np.int64]


class CharacterEncoder:
    """Encode tokens as character ids.

    Args:
        max_length: The number of ids of a token: at most `max_length - 2` bytes and two marks.

    >>> CharacterEncoder(max_length=6)("hi").tolist()
    [259, 105, 106, 260, 261, 261]
    """

    def __init__(self, max_length: int = 50) -> None:
        if max_length < 3:
            raise ValueError(f"max_length must be at least 3, for two marks and a byte; got {max_length}.")
        self.max_length = self.width = max_length

    def __call__(self, token: str) -> CharacterIds:
        """Encode a token: (max_length,)."""
        (ids,) = self.encode([token])
        return np.asarray(ids, dtype=np.int64)

    def encode(self, tokens: Sequence[str]) -> CharacterIds:
        """Encode tokens: (n_tokens, max_length). Bytes beyond the limit are cut; lone surrogates have no bytes."""
        width = self.max_length - 2
        ids = np.full((len(tokens), self.max_length), PADDING, dtype=np.int64)
        if not len(tokens):
            return ids
        pieces = [token.encode("utf-8", "ignore")[:width] for token in tokens]
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        rows = np.arange(len(pieces))
        ids[:, 0] = BEGIN_WORD
        ids[rows, lengths + 1] = END_WORD
        data = np.frombuffer(b"".join(pieces), dtype=np.uint8)
        # Byte number i of all bytes goes to column 1 + (i - number of bytes before its token) of its token.
        starts = np.cumsum(lengths) - lengths
        columns = np.arange(len(data)) - np.repeat(starts, lengths) + 1
        ids[np.repeat(rows, lengths), columns] = data.astype(np.int64) + 1
        for row, token in enumerate(tokens):
            if token in SENTENCE_MARKS:
                ids[row] = self.mark(token)
        return ids

    def batch(self, sentences: Sequence[Sequence[str]]) -> CharacterIds:
        """Encode sentences: (n_sentences, longest, max_length), 0 at padded positions, without `<S>` and `</S>`."""
        longest = max(map(len, sentences), default=0)
        ids = np.zeros((len(sentences), longest, self.width), dtype=np.int64)
        flat = self.encode([token for sentence in sentences for token in sentence])
        lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        ids[np.arange(longest) < lengths[:, None]] = flat
        return ids

    def mark(self, name: str) -> CharacterIds:
        """Return the ids of `<S>` or `</S>`: begin-of-word, the sentence mark, end-of-word."""
        ids = np.full(self.max_length, PADDING, dtype=np.int64)
        ids[:3] = BEGIN_WORD, SENTENCE_MARKS[name], END_WORD
        return ids


class Symbols(NamedTuple):
    """The characters and words that a model of ELMoForManyLangs knows, in the order of its tables."""

    characters: Sequence[str]  # "" for a row that no character has
    words: Sequence[str]


class SymbolEncoder(CharacterEncoder):
    """Encode tokens as ids of their Unicode characters, and in the last place of the word itself.

    Characters and words have their place in the tables plus one. Tokens are cut to `max_length - 2` characters first.

    Args:
        max_length: The number of character ids of a token.
        symbols: The characters and words. The marks `<bow>`, `<eow>`, `<bos>`, `<eos>`, `<oov>` and `<pad>` are among
            the characters; `<bos>`, `<eos>` and `<oov>` are among the words.

    Raises:
        InputError: A mark is missing.
    """

    def __init__(self, max_length: int, symbols: Symbols) -> None:
        super().__init__(max_length)
        self.width = max_length + 1
        self.symbols = symbols
        self._characters = {symbol: i for i, symbol in enumerate(symbols.characters, 1) if symbol}
        self._words = {word: i for i, word in enumerate(symbols.words, 1) if word}
        needed = ("<bow>", "<eow>", "<bos>", "<eos>", "<oov>", "<pad>")
        for names, known, marks in (("characters", self._characters, needed), ("words", self._words, needed[2:5])):
            for mark in marks:
                if mark not in known:
                    raise InputError(f"{names}: expected the marks {', '.join(marks)}; {mark} is missing.")

    def encode(self, tokens: Sequence[str]) -> CharacterIds:
        """Encode tokens: (n_tokens, max_length + 1)."""
        ids = np.full((len(tokens), self.width), self._characters["<pad>"], dtype=np.int64)
        get, unknown = self._characters.get, self._characters["<oov>"]
        # The published models were trained with the two marks of a word swapped.
        begin, end = self._characters["<eow>"], self._characters["<bow>"]
        for row, token in enumerate(tokens):
            token = {"<S>": "<bos>", "</S>": "<eos>"}.get(token, token)
            is_mark = token in ("<bos>", "<eos>")
            token = token if is_mark else token[: self.max_length - 2]
            inside = [token] if is_mark else token
            characters = [begin, *(get(character, unknown) for character in inside), end]
            ids[row, : len(characters)] = characters
            ids[row, -1] = self._words.get(token, self._words["<oov>"])
        return ids

    def mark(self, name: str) -> CharacterIds:
        """Return the ids of `<S>` or `</S>`."""
        ids: CharacterIds = self.encode([name])[0]
        return ids


def check_tokens(sentence: Any, position: int, *, expected: str = "a list of tokens") -> None:
    """Raise an InputError that names the sentence if it is not a list, or another sequence, of strings."""
    if isinstance(sentence, (str, bytes, Mapping, Set)) or not hasattr(sentence, "__len__"):
        advice = " Split it into tokens first." if isinstance(sentence, str) else ""
        raise InputError(f"Sentence {position}: expected {expected}, got {short_repr(sentence)}.{advice}")
    for i, token in enumerate(sentence):
        if not isinstance(token, str):
            raise InputError(f"Sentence {position}, token {i}: expected a string, got {short_repr(token)}.")
