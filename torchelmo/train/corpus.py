"""Prepared text, memory-mapped: the word-type ids of every sentence, and the characters of every type once.

Types stand by falling frequency, `<S>`, `</S>` and `<UNK>` first, so the softmax target of a token is its
type id if that is below the vocabulary's size, else `<UNK>`.
"""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from torchelmo.errors import InputError, MissingFileError
from torchelmo.files import read_lines, require_file
from torchelmo.text.vocabulary import Vocabulary

FORMAT = 1
BEGIN_ID, END_ID, UNKNOWN_ID = 0, 1, 2

Ids: TypeAlias = npt.NDArray[np.int64]
Part: TypeAlias = Literal["train", "heldout"]


class Corpus:
    """One part of a folder that `torchelmo prepare` wrote. Nothing is read before it is used."""

    def __init__(self, folder: str | Path, part: Part = "train") -> None:
        self.folder, self.part = Path(folder), part
        self.card = _read_card(self.folder)
        if not self.has_part(part):
            raise InputError(
                f"{self.folder}: expected a {part} part, but this text was prepared without one. "
                "Prepare it again with --heldout and a larger fraction, or with files."
            )
        # Word-type ids without marks; sentence i is tokens[offsets[i] : offsets[i + 1]].
        self.tokens: npt.NDArray[np.uint32] = self._array(f"{part}.tokens.npy", "uint32", (None,))
        self.offsets: Ids = self._array(f"{part}.offsets.npy", "int64", (None,))
        self.n_tokens, self.n_sentences = len(self.tokens), len(self.offsets) - 1
        if int(self.offsets[-1]) != self.n_tokens:
            raise InputError(
                f"{self.folder}: expected {self.offsets[-1]} tokens in {part}.tokens.npy, found "
                f"{self.n_tokens}. The folder was changed after it was written: prepare the text again."
            )
        self.n_types: int = self.card["types"]
        # The ids of the official layout, shifted by one; and how often each type stands in the training part.
        self.characters: npt.NDArray[np.int16] = self._array(
            "characters.npy", "int16", (self.n_types, self.card["settings"]["max_characters"])
        )
        self.counts: Ids = self._array("counts.npy", "int64", (self.n_types,))

    @classmethod
    def open(cls, folder: str | Path, part: Part = "train") -> "Corpus":
        return cls(folder, part)

    def has_part(self, part: Part) -> bool:
        """Whether the text was prepared with that part, by its card."""
        return bool(self.card["parts"].get(part, {}).get("sentences"))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of the softmax: the first types."""
        vocabulary = Vocabulary.read(self.folder / "vocab.txt")
        if len(vocabulary) != self.card["vocabulary"]:
            raise InputError(
                f"{self.folder / 'vocab.txt'}: expected {self.card['vocabulary']} words, found "
                f"{len(vocabulary)}. The file was changed after it was written: prepare the text again."
            )
        return vocabulary

    @cached_property
    def types(self) -> list[str]:
        """Every word type; type i has the character ids characters[i]."""
        return list(read_lines(self.folder / "types.txt"))

    def targets(self, ids: npt.NDArray[Any]) -> Ids:
        """Word-type ids -> softmax ids: `<UNK>` for a type outside the vocabulary."""
        return np.where(ids < self.card["vocabulary"], ids, UNKNOWN_ID).astype(np.int64)

    @cached_property
    def target_counts(self) -> Ids:
        """(n_words,): how often each softmax id is a target of one direction; the marks once per sentence."""
        size: int = self.card["vocabulary"]
        counts = np.array(self.counts[:size])
        counts[UNKNOWN_ID] += self.counts[size:].sum()
        return counts

    def sentence(self, index: int) -> list[str]:
        return [self.types[token] for token in self.tokens[self.offsets[index] : self.offsets[index + 1]]]

    def sentences(self) -> Iterator[list[str]]:
        return map(self.sentence, range(self.n_sentences))

    def _array(self, name: str, dtype: str, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
        path = require_file(self.folder / name, "an array of prepared text")
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise InputError(
                f"{path}: expected a NumPy array, but it is damaged or cut short ({error}). Prepare the text again."
            ) from error
        fits = len(shape) == array.ndim and all(n is None or n == m for n, m in zip(shape, array.shape))
        if array.dtype != dtype or not fits:
            expected = "×".join("n" if n is None else str(n) for n in shape)
            raise InputError(
                f"{path}: expected {dtype} of shape {expected}, found {array.dtype} of shape {array.shape}. "
                "Prepare the text again."
            )
        # A plain view: indexing a memmap object costs a microsecond more each time.
        plain: npt.NDArray[Any] = array.view(np.ndarray)
        return plain


def _read_card(folder: Path) -> dict[str, Any]:
    path = folder / "card.json"
    if not path.is_file():
        raise MissingFileError(
            f"{folder}: expected a folder that `torchelmo prepare` wrote, found no card.json in it. "
            "Prepare the text first, or check the path."
        )
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: expected JSON in UTF-8: {error}. Prepare the text again.") from error
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        found = card.get("format") if isinstance(card, dict) else card
        raise InputError(
            f"{path}: expected prepared text of format {FORMAT}, found {found!r}. "
            "Prepare the text again with this version of torchelmo."
        )
    return card
