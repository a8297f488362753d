"""Prepared text as memory-mapped arrays: read it (`Corpus`) and write it in constant memory (`CorpusWriter`).

card.json                      what the folder contains: counts, sources, tokenizer, settings
vocab.txt                      the words of the softmax
types.txt                      every word type, one per line; the vocabulary comes first
counts.npy                     how often each type occurs in the training part
characters.npy                 the character ids of each type
{train,heldout}.tokens.npy     type ids of all sentences, without sentence marks
{train,heldout}.offsets.npy    sentence i is tokens[offsets[i] : offsets[i + 1]]
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Annotated, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from torchelmo.config import NonNegativeInt, Range, convert
from torchelmo.errors import ConfigError, InputError, MissingFileError, short_repr
from torchelmo.files import atomic_write, flush_to_disk, read_json, read_lines, require_file
from torchelmo.text.characters import CharacterEncoder
from torchelmo.text.vocabulary import BEGIN, END, NOT_A_WORD, UNKNOWN, Vocabulary, is_one_line, word_not_writable_error

FORMAT = 1
FILES = (
    "card.json vocab.txt types.txt counts.npy characters.npy "
    "train.tokens.npy train.offsets.npy heldout.tokens.npy heldout.offsets.npy"
).split()
MARKS = (BEGIN, END, UNKNOWN)
BEGIN_ID, END_ID, UNKNOWN_ID = 0, 1, 2
Ids: TypeAlias = npt.NDArray[np.int64]
Part: TypeAlias = Literal["train", "heldout"]
Card: TypeAlias = dict[str, Any]
_N_CHARACTERS = 262  # ids of the official layout, shifted by one: 256 bytes, five marks, 0 for padding
_CHUNK = 1 << 20  # numbers that are processed at once


class Corpus:
    """One part of a folder that `torchelmo prepare` wrote. The arrays are memory-mapped.

    Args:
        folder: The folder.
        part: "train" or "heldout".

    Attributes:
        tokens: Type ids of all sentences, without sentence marks.
        offsets: Sentence i is tokens[offsets[i] : offsets[i + 1]].
        characters: (n_types, max_characters), the character ids of each type, 0 for padding.
        counts: (n_types,), how often each type occurs in the training part.

    Raises:
        InputError: A file is damaged, or the text was prepared without this part.
        MissingFileError: A file is missing.
    """

    def __init__(self, folder: str | Path, part: Part = "train") -> None:
        self.folder, self.part = Path(folder), part
        self.card = _read_card(self.folder)
        if not self.has_part(part):
            raise InputError(
                f"{self.folder}: expected a {part} part, but this text was prepared without one. "
                "Prepare it again with a larger share or with files as `heldout`."
            )
        self.n_types: int = self.card["types"]
        self.tokens: npt.NDArray[np.uint32] = self._array(f"{part}.tokens.npy", "uint32", (None,))
        self.offsets: Ids = self._array(f"{part}.offsets.npy", "int64", (None,))
        self.n_tokens, self.n_sentences = len(self.tokens), len(self.offsets) - 1
        self.characters: npt.NDArray[np.int16] = self._array(
            "characters.npy", "int16", (self.n_types, self.card["settings"]["max_characters"])
        )
        self.counts: Ids = self._array("counts.npy", "int64", (self.n_types,))
        self._check_values()

    @property
    def lang(self) -> str | None:
        """The language whose rules split the text into tokens; None if the text was already split."""
        lang: str | None = self.card["tokenizer"]["lang"]
        return lang

    @property
    def pretokenized(self) -> bool:
        """Whether the text was already split into tokens."""
        return self.lang is None

    def has_part(self, part: Part) -> bool:
        """Return whether the card lists this part of the text."""
        return part in self.card["parts"] and self.card["parts"][part]["sentences"] > 0

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of the softmax: the first types."""
        vocabulary = Vocabulary.read(self.folder / "vocab.txt")
        if len(vocabulary) != self.card["vocabulary"]:
            raise InputError(_changed(self.folder / "vocab.txt", f"{self.card['vocabulary']} words", len(vocabulary)))
        return vocabulary

    @cached_property
    def types(self) -> list[str]:
        """Every word type; type i has the character ids characters[i]."""
        types = list(read_lines(require_file(self.folder / "types.txt", "the types of prepared text", regular=True)))
        if len(types) != self.n_types:
            raise InputError(_changed(self.folder / "types.txt", f"{self.n_types} types", len(types)))
        return types

    def targets(self, ids: npt.NDArray[Any]) -> Ids:
        """Return the softmax ids of type ids: `<UNK>` for a type outside the vocabulary."""
        return np.where(ids < self.card["vocabulary"], ids, UNKNOWN_ID).astype(np.int64)

    @cached_property
    def target_counts(self) -> Ids:
        """(n_words,): how often each softmax id is a target of one direction; the marks once per sentence."""
        size: int = self.card["vocabulary"]
        counts = np.array(self.counts[:size])
        counts[UNKNOWN_ID] += self.counts[size:].sum()
        return counts

    def sentence(self, index: int) -> list[str]:
        """Return the tokens of a sentence."""
        return [self.types[token] for token in self.tokens[self.offsets[index] : self.offsets[index + 1]]]

    def sentences(self) -> Iterator[list[str]]:
        """Yield the tokens of every sentence."""
        return map(self.sentence, range(self.n_sentences))

    def _array(self, name: str, dtype: str, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
        path = require_file(self.folder / name, "an array of prepared text", regular=True)
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # besides ValueError and EOFError, NumPy lets through errors of Python's parser
            raise InputError(
                f"{path}: expected a NumPy array, but it is damaged or cut short ({error!s:.200}). "
                "Prepare the text again."
            ) from error
        if not isinstance(array, np.ndarray):  # an archive of several arrays
            raise InputError(f"{path}: expected one NumPy array, found an archive. Prepare the text again.")
        fits = len(shape) == array.ndim and all(n is None or n == m for n, m in zip(shape, array.shape))
        if array.dtype != dtype or not fits:
            expected = "×".join("n" if n is None else str(n) for n in shape)
            raise InputError(
                f"{path}: expected {dtype} of shape {expected}, found {array.dtype} of shape {array.shape}. "
                "Prepare the text again."
            )
        plain: npt.NDArray[Any] = array.view(np.ndarray)  # indexing a memmap object takes a microsecond longer
        return plain

    def _check_values(self) -> None:
        """Check every number that is used as an index, so that damage is found here and not in the middle of a run."""
        if self.n_sentences < 1 or int(self.offsets[0]) != 0 or (self.offsets[1:] <= self.offsets[:-1]).any():
            raise InputError(_changed(self.folder / f"{self.part}.offsets.npy", "rising offsets from 0", "others"))
        if int(self.offsets[-1]) != self.n_tokens:
            path = self.folder / f"{self.part}.tokens.npy"
            raise InputError(_changed(path, f"{self.offsets[-1]} tokens", self.n_tokens))
        for name, array, size in (
            (f"{self.part}.tokens.npy", self.tokens, self.n_types),
            ("characters.npy", self.characters, _N_CHARACTERS),
        ):
            flat = array.reshape(-1)
            for start in range(0, len(flat), _CHUNK):
                chunk = flat[start : start + _CHUNK]
                if int(chunk.min()) < 0 or int(chunk.max()) >= size:
                    raise InputError(_changed(self.folder / name, f"numbers from 0 to {size - 1}", "others"))
        if (self.counts < 0).any():
            raise InputError(_changed(self.folder / "counts.npy", "counts", "negative numbers"))


class CorpusWriter:
    """Collect sentences in their order. `finish` sorts the types and writes all files into `folder`.

    Only the types are kept in memory. Types get provisional ids in the order of their appearance; the ids are stored in
    temporary files and replaced when the final order is known.

    Args:
        folder: The folder, which must not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._numbers = {mark: number for number, mark in enumerate(MARKS)}  # type -> provisional id
        self._parts = {part: _Spill(folder, part) for part in ("train", "heldout")}

    def add(
        self,
        part: Part,
        types: Sequence[str],
        ids: npt.NDArray[np.integer[Any]],
        lengths: npt.NDArray[np.integer[Any]],
    ) -> None:
        """Add sentences.

        Args:
            part: "train" or "heldout".
            types: Words.
            ids: Indices into `types`, of all sentences one after another.
            lengths: The number of tokens of each sentence.
        """
        numbers = self._numbers
        number = np.fromiter(
            (UNKNOWN_ID if word == NOT_A_WORD else numbers.setdefault(word, len(numbers)) for word in types),
            dtype=np.uint32,
            count=len(types),
        )
        self._parts[part].add(number[ids], lengths, len(numbers))

    def finish(
        self, vocabulary: int | Vocabulary, *, max_characters: int, card: Mapping[str, Any], where: str = "corpus"
    ) -> Card:
        """Write all files, card.json last, and return its content.

        If the vocabulary would cover the whole training text, `<UNK>` would never be a target and the model would not
        learn a probability for unknown words. Then words that occur only once are left out of the vocabulary.

        Args:
            vocabulary: The largest number of words of the softmax, the marks included; or the words themselves.
            max_characters: The number of character ids of a word, the two word marks included.
            card: More keys for card.json.
            where: The source of the text, for error messages.
        """
        train, heldout = self._parts["train"], self._parts["heldout"]
        if not train.n_sentences:
            raise InputError(
                f"{where}: expected text to train on, found no token in the training part. "
                "Check the files; a small text may need a smaller `heldout`."
            )
        first = self._first_words(vocabulary)
        words = list(self._numbers)
        counts = np.zeros(len(words), dtype=np.int64)
        counts[: len(train.counts)] = train.counts[: len(words)]
        rest = sorted(set(range(len(words))) - set(first), key=lambda i: (-counts[i], words[i]))
        order = np.array([*first, *rest])  # words of equal frequency by code point, so the same on every machine
        rank = np.empty(len(words), dtype=np.uint32)
        rank[order] = np.arange(len(words), dtype=np.uint32)
        counts, types = counts[order], [words[i] for i in order]
        min_count, size = 1, len(first)
        if isinstance(vocabulary, int):
            seen, frequent = (size + int(np.count_nonzero(counts[size:] >= n)) for n in (1, 2))
            if vocabulary >= seen and not counts[UNKNOWN_ID] and size < frequent < seen:
                min_count, seen = 2, frequent
            size = min(vocabulary, seen)
        counts[[BEGIN_ID, END_ID]] += train.n_sentences
        _write_text(self.folder / "types.txt", types)
        _write_text(self.folder / "vocab.txt", types[:size])
        _write_array(self.folder / "counts.npy", "int64", (len(types),), [counts])
        characters = CharacterEncoder(max_characters)
        _write_array(
            self.folder / "characters.npy",
            "int16",
            (len(types), max_characters),
            (characters.encode(types[i : i + 65536]) for i in range(0, len(types), 65536)),
        )
        parts = {part: spill.finish(rank, size) for part, spill in self._parts.items() if spill.n_sentences}
        if not heldout.n_sentences:
            heldout.discard()
        numbers = {"format": FORMAT, "types": len(types), "vocabulary": size, "min_count": min_count, "parts": parts}
        asked = {"vocab_size": vocabulary if isinstance(vocabulary, int) else None, "max_characters": max_characters}
        whole = {**numbers, **card, "settings": {**asked, **card.get("settings", {})}}
        _write_text(self.folder / "card.json", [json.dumps(whole, indent=2, ensure_ascii=False)])
        return whole

    def _first_words(self, vocabulary: int | Vocabulary) -> list[int]:
        """Return the provisional ids of the types that come first, whatever their frequency."""
        if isinstance(vocabulary, int):
            if vocabulary <= len(MARKS):
                raise ConfigError(f"vocab_size must be more than {len(MARKS)}, the number of marks; got {vocabulary}.")
            return list(range(len(MARKS)))
        if tuple(vocabulary.words[: len(MARKS)]) != MARKS:
            raise InputError(
                f"Vocabulary: expected {', '.join(MARKS)} as the first three words, "
                f"found {', '.join(vocabulary.words[: len(MARKS)])}. Put them first."
            )
        vocabulary.text(vocabulary.where)  # raises an error for words that vocab.txt cannot contain
        return [self._numbers.setdefault(word, len(self._numbers)) for word in vocabulary]

    def __enter__(self) -> "CorpusWriter":
        return self

    def __exit__(self, *error: object) -> None:
        for spill in self._parts.values():
            spill.close()


def write_corpus(
    folder: str | Path,
    train: Iterable[Sequence[str]],
    heldout: Iterable[Sequence[str]] = (),
    *,
    vocab_size: int = 50_000,
    vocabulary: Vocabulary | None = None,
    max_characters: int = 50,
) -> Corpus:
    """Write a corpus folder from sentences that are already lists of tokens.

    Args:
        folder: The folder to write.
        train: The sentences of the training part.
        heldout: The sentences of the held-out part.
        vocab_size: The number of words of the softmax: the most frequent types.
        vocabulary: The words of the softmax, instead of `vocab_size`.
        max_characters: The number of character ids of a word, the two word marks included.

    Returns:
        The training part.

    Raises:
        InputError: There is no token, or a token that a line of types.txt cannot contain.
        OutputError: The folder is not empty, or cannot be written.
    """
    with atomic_write(Path(folder).resolve()) as temporary, CorpusWriter(temporary) as writer:
        sentences: dict[Part, Iterable[Sequence[str]]] = {"train": train, "heldout": heldout}
        for part, texts in sentences.items():
            for i, sentence in enumerate(texts):
                if not sentence:
                    continue
                _check_tokens(sentence, f"{part} sentence {i}")
                writer.add(part, sentence, np.arange(len(sentence)), np.array([len(sentence)]))
        writer.finish(
            vocabulary or vocab_size, max_characters=max_characters, card={"tokenizer": {"rules": "none", "lang": None}}
        )
    return Corpus(folder)


def _check_tokens(sentence: Sequence[str], where: str) -> None:
    """Check that every token fits on one line: in types.txt, the line number is the id of a type."""
    for i, token in enumerate(sentence):
        if not is_one_line(token) and token != NOT_A_WORD:  # NOT_A_WORD counts as an unknown word
            raise word_not_writable_error(token, f"{where}, token {i}")


class _Spill:
    """The sentences of one part with provisional ids, in temporary files."""

    def __init__(self, folder: Path, part: str) -> None:
        self._folder, self._part = folder, part
        self._ids: IO[bytes] = (folder / f".{part}.ids").open("w+b")
        self._lengths: IO[bytes] = (folder / f".{part}.lengths").open("w+b")
        self.counts = np.zeros(1024, dtype=np.int64)  # by provisional id; grows with the number of types
        self.n_sentences = self.n_tokens = 0

    def add(self, ids: npt.NDArray[np.uint32], lengths: npt.NDArray[np.integer[Any]], n_types: int) -> None:
        if n_types > len(self.counts):
            self.counts = np.concatenate([self.counts, np.zeros(2 * n_types - len(self.counts), dtype=np.int64)])
        distinct, times = np.unique(ids, return_counts=True)
        self.counts[distinct] += times
        self._ids.write(ids.astype(np.uint32, copy=False).tobytes())
        self._lengths.write(lengths.astype(np.uint32).tobytes())
        self.n_sentences += len(lengths)
        self.n_tokens += len(ids)

    def finish(self, rank: npt.NDArray[np.uint32], vocabulary: int) -> dict[str, Any]:
        """Write the arrays of this part; return its entry of the card."""
        tokens, offsets = (self._folder / f"{self._part}.{name}.npy" for name in ("tokens", "offsets"))
        known = 0

        def renumbered() -> Iterator[npt.NDArray[np.uint32]]:
            nonlocal known
            for piece in _pieces(self._ids):
                ids = rank[piece]
                known += int(np.count_nonzero((ids < vocabulary) & (ids != UNKNOWN_ID)))
                yield ids

        def ends() -> Iterator[npt.NDArray[np.int64]]:
            yield np.zeros(1, dtype=np.int64)
            last = 0
            for piece in _pieces(self._lengths):
                cumulative = np.cumsum(piece, dtype=np.int64) + last
                last = int(cumulative[-1])
                yield cumulative

        _write_array(tokens, "uint32", (self.n_tokens,), renumbered())
        _write_array(offsets, "int64", (self.n_sentences + 1,), ends())
        self.discard()
        return {
            "sentences": self.n_sentences,
            "tokens": self.n_tokens,
            "types": int(np.count_nonzero(self.counts)),
            "oov_rate": 1 - known / self.n_tokens,
        }

    def close(self) -> None:
        self._ids.close()
        self._lengths.close()

    def discard(self) -> None:
        self.close()
        for file in (self._ids, self._lengths):
            Path(file.name).unlink()


def _pieces(file: IO[bytes]) -> Iterator[npt.NDArray[np.uint32]]:
    file.seek(0)
    while data := file.read(4 * _CHUNK):
        yield np.frombuffer(data, dtype=np.uint32)


def _write_array(path: Path, dtype: str, shape: tuple[int, ...], pieces: Iterable[npt.NDArray[Any]]) -> None:
    """Write an .npy file of a known shape, piece by piece; the bytes are the same on every machine."""
    little = np.dtype(dtype).newbyteorder("<")
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(little), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            file.write(piece.astype(little, copy=False).tobytes())
    flush_to_disk(path)


def _write_text(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)
    flush_to_disk(path)


def _read_card(folder: Path) -> Card:
    """Read card.json, and check every value that is used later."""
    path = folder / "card.json"
    if not path.is_file():
        raise MissingFileError(
            f"{folder}: expected a folder that `torchelmo prepare` wrote, found no card.json in it. "
            "Prepare the text first, or check the path."
        )
    try:
        card = read_json(path, "the card of prepared text")
        if not isinstance(card, dict) or card.get("format") != FORMAT:
            found = card.get("format") if isinstance(card, dict) else card
            raise InputError(
                f"{path}: expected prepared text of format {FORMAT}, found {short_repr(found)}. "
                "Prepare the text again with this version of torchelmo."
            )
        tables = {name: convert(dict[str, Any], card.get(name), name) for name in ("parts", "settings", "tokenizer")}
        convert(Annotated[int, Range(min=len(MARKS), max=2**32)], card.get("types"), "types")
        convert(Annotated[int, Range(min=len(MARKS), max=card["types"])], card.get("vocabulary"), "vocabulary")
        convert(Annotated[int, Range(min=3, max=10_000)], tables["settings"].get("max_characters"), "max_characters")
        convert(str | None, tables["tokenizer"].get("lang"), "tokenizer.lang")
        for part, values in tables["parts"].items():
            convert(NonNegativeInt, convert(dict[str, Any], values, part).get("sentences"), f"{part}.sentences")
    except ConfigError as error:
        raise InputError(f"{path}: {str(error).removeprefix(f'{path}: ')} Prepare the text again.") from error
    card["tokenizer"].setdefault("lang", None)
    return card


def _changed(path: Path, expected: str, found: object) -> str:
    return f"{path}: expected {expected}, found {found}. The file was changed: prepare the text again."
