"""Encode tokens as character ids in the official layout.

A token is begin-of-word, its UTF-8 bytes, end-of-word, then padding up to `max_length`. All ids are shifted by one, so
that 0 marks the padded positions of a batch.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any

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
        self.max_length = max_length

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
        ids = np.zeros((len(sentences), longest, self.max_length), dtype=np.int64)
        flat = self.encode([token for sentence in sentences for token in sentence])
        lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        ids[np.arange(longest) < lengths[:, None]] = flat
        return ids

    def mark(self, name: str) -> CharacterIds:
        """Return the ids of `<S>` or `</S>`: begin-of-word, the sentence mark, end-of-word."""
        ids = np.full(self.max_length, PADDING, dtype=np.int64)
        ids[:3] = BEGIN_WORD, SENTENCE_MARKS[name], END_WORD
        return ids


def check_tokens(sentence: Any, position: int, *, expected: str = "a list of tokens") -> None:
    """Raise an InputError that names the sentence if it is not a list, or another sequence, of strings."""
    if isinstance(sentence, (str, bytes, Mapping, Set)) or not hasattr(sentence, "__len__"):
        advice = " Split it into tokens first." if isinstance(sentence, str) else ""
        raise InputError(f"Sentence {position}: expected {expected}, got {short_repr(sentence)}.{advice}")
    for i, token in enumerate(sentence):
        if not isinstance(token, str):
            raise InputError(f"Sentence {position}, token {i}: expected a string, got {short_repr(token)}.")
