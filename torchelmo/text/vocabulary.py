"""The vocabulary of a softmax or of a model that reads words: one word per line in `vocab.txt`."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torchelmo.errors import InputError, short_repr
from torchelmo.files import atomic_write, read_lines, require_file

BEGIN, END, UNKNOWN = "<S>", "</S>", "<UNK>"
NOT_A_WORD = "!!!MAXTERMID"  # a line of older vocabulary files that is not a word

# A newline, a trailing carriage return, or a lone surrogate (not encodable as UTF-8).
_BREAKS_A_LINE = re.compile(r"\n|\r\Z|[\ud800-\udfff]")


class Vocabulary:
    """Words by falling frequency, with `<S>`, `</S>` and `<UNK>` among them (torchelmo writes these first).

    Args:
        words: The words, which must be unique.
        where: What error messages name as the source of the words.

    Raises:
        InputError: A word occurs twice, or `<S>`, `</S>` or `<UNK>` is missing.

    >>> vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "the", "bow"])
    >>> vocabulary.ids(["the", "arrow"]).tolist()
    [3, 2]
    """

    def __init__(self, words: Sequence[str], where: str = "vocabulary") -> None:
        self.words = list(words)
        self.where = where
        self._ids = {word: index for index, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            seen: set[str] = set()
            index, word = next((i, w) for i, w in enumerate(self.words) if w in seen or seen.add(w))  # type: ignore[func-returns-value]
            raise InputError(f"{where}: line {index + 1}: duplicate word {word!r}. Words must be unique.")
        for mark in (BEGIN, END, UNKNOWN):
            if mark not in self._ids:
                raise InputError(f"{where}: expected the words {BEGIN}, {END} and {UNKNOWN}; {mark} is missing.")
        self.unknown_id = self._ids[UNKNOWN]

    @classmethod
    def read(cls, path: str | Path, *, strip: bool = False) -> "Vocabulary":
        """Read a file with one word per line; the line "!!!MAXTERMID" of older files is skipped.

        `strip` removes spaces and tabs around the words, as bilm-tf does, unless two words would become equal.
        """
        require_file(path, "a vocabulary", regular=True)
        words = []
        for number, word in enumerate(read_lines(path), 1):
            if not word:
                raise InputError(f"{path}: line {number}: expected one word per line, found a blank line.")
            if word != NOT_A_WORD:
                words.append(word)
        if strip:
            stripped = [word.strip(" \t") or word for word in words]
            words = stripped if len(set(stripped)) == len(words) else words
        return cls(words, where=str(path))

    def write(self, path: str | Path) -> None:
        """Write one word per line."""
        text = self.text(path)
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def text(self, path: str | Path) -> str:
        """Return the content of the file `path`. A word that would not be read back as itself is refused."""
        for index, word in enumerate(self.words):
            if not is_one_line(word) or (index == 0 and word.startswith("\ufeff")):
                raise word_not_writable_error(word, f"{path}: word {index}")
        return "".join(word + "\n" for word in self.words)

    def ids(self, words: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return the id of each word; that of `<UNK>` for unknown words."""
        get, unknown = self._ids.get, self.unknown_id
        return np.fromiter((get(word, unknown) for word in words), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __getitem__(self, index: int) -> str:
        return self.words[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    __hash__ = None  # type: ignore[assignment]


def is_one_line(word: str) -> bool:
    """Return whether a word can be a line of a file such as `vocab.txt` and is read back unchanged."""
    return bool(word) and word != NOT_A_WORD and not _BREAKS_A_LINE.search(word)


def word_not_writable_error(word: str, where: str) -> InputError:
    """Return the error for a word that cannot be a line of a file."""
    return InputError(f"{where}: {short_repr(word)} cannot be a line of a file. Remove the word, or replace it.")
