"""The words a softmax (or a word-input model) knows, one per line in `vocab.txt`."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torchelmo.errors import InputError
from torchelmo.files import atomic_write, read_lines

BEGIN, END, UNKNOWN = "<S>", "</S>", "<UNK>"
NOT_A_WORD = "!!!MAXTERMID"  # a line of older vocabulary files that readers skip

# A line end inside; one that would be taken for a part of the line's own; half a character, which UTF-8 cannot write.
_BREAKS_A_LINE = re.compile(r"\n|\r\Z|[\ud800-\udfff]")


class Vocabulary:
    """Words by falling frequency, `<S>`, `</S>` and `<UNK>` among them (first, in files of ours).

    >>> vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "the", "bow"])
    >>> vocabulary.ids(["the", "arrow"]).tolist()
    [3, 2]
    """

    def __init__(self, words: Sequence[str], where: str = "vocabulary") -> None:
        self.words = list(words)
        self.where = where  # for messages
        self._ids = {word: index for index, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            seen: set[str] = set()
            index, word = next((i, w) for i, w in enumerate(self.words) if w in seen or seen.add(w))  # type: ignore[func-returns-value]
            raise InputError(f"{where}: line {index + 1}: {word!r} stands twice; every word may stand once.")
        for mark in (BEGIN, END, UNKNOWN):
            if mark not in self._ids:
                raise InputError(f"{where}: expected the words {BEGIN}, {END} and {UNKNOWN}; {mark} is missing.")
        self.unknown_id = self._ids[UNKNOWN]

    @classmethod
    def read(cls, path: str | Path) -> "Vocabulary":
        """One word per line; the mark of older files is skipped."""
        words = []
        for number, word in enumerate(read_lines(path), 1):
            if not word:
                raise InputError(f"{path}: line {number}: expected one word per line, found a blank line.")
            if word != NOT_A_WORD:
                words.append(word)
        return cls(words, where=str(path))

    def write(self, path: str | Path) -> None:
        """One word per line."""
        text = self.text(path)
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def text(self, path: str | Path) -> str:
        """What `path` is to hold; a word that a line cannot hold is refused, for it would read back as another."""
        for index, word in enumerate(self.words):
            if not fits_a_line(word) or (index == 0 and word.startswith("\ufeff")):
                raise unfit(word, f"{path}: word {index}")
        return "".join(word + "\n" for word in self.words)

    def ids(self, words: Iterable[str]) -> npt.NDArray[np.int64]:
        """The id of each word, that of `<UNK>` where it is not known."""
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


def fits_a_line(word: str) -> bool:
    """Whether a word on a line of its own, in a file such as `vocab.txt`, reads back as itself."""
    return bool(word) and word != NOT_A_WORD and not _BREAKS_A_LINE.search(word)


def unfit(word: str, where: str) -> InputError:
    """The error for a word that a line cannot hold."""
    return InputError(f"{where}: {word!r} cannot stand on a line of its own. Leave it out, or write it in another way.")
