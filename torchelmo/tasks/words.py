"""Vectors of whole words: read from GloVe and word2vec text files, and looked up."""

import contextlib
import itertools
import logging
import math
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.errors import InputError
from torchelmo.files import read_lines

logger = logging.getLogger(__name__)
_HEADER = re.compile(r"([0-9]+)[ \t]+([1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf(inity)?)", re.IGNORECASE)
_CHUNK_LINES = 1000  # parsed at once
_PADDING_ID, _UNKNOWN_ID, _FIRST_ID = 0, 1, 2


class VectorFile(NamedTuple):
    words: list[str]
    vectors: Tensor  # (n_words, dim) float32


class WordEmbedding(nn.Module):
    """(batch, tokens) ids -> (batch, tokens, dim): id 0 is padding (zeros), 1 `<UNK>`, then come the `words`.

    `vectors` (n_words, dim) are where the words begin; without them they begin at random. The last `n_fixed` words stay
    there, the others learn. So does `<UNK>`, which begins at the mean of the vectors.
    """

    vectors: Tensor | None  # (n_words - n_fixed, dim)
    fixed: Tensor | None  # (n_fixed, dim)

    def __init__(
        self,
        words: Sequence[str],
        vectors: Tensor | None = None,
        *,
        dim: int | None = None,
        n_fixed: int = 0,
    ) -> None:
        super().__init__()
        vectors = _check_vectors(words, vectors, dim)
        self.words, self.dim = list(words), vectors.shape[1]
        self._ids = {word: index for index, word in enumerate(self.words, _FIRST_ID)}
        if len(self._ids) != len(self.words):
            twice = next(word for index, word in enumerate(self.words, _FIRST_ID) if self._ids[word] != index)
            raise InputError(f"WordEmbedding: expected every word once, {twice!r} stands twice.")
        self.unknown = nn.Parameter(vectors.mean(dim=0))
        self._n_learned = len(self.words) - n_fixed
        learned, fixed = vectors.split([self._n_learned, n_fixed])
        # Not a parameter of a few rows and many that never change: optimisers and checkpoints would hold them all.
        self.vectors = nn.Parameter(learned) if len(learned) else None
        self.register_buffer("fixed", fixed if len(fixed) else None)

    def ids(self, sentence: Sequence[str]) -> list[int]:
        """Of each word: its exact form, else its lower-case form, else `<UNK>`."""
        get = self._ids.get
        return [get(word) or get(word.lower(), _UNKNOWN_ID) for word in sentence]

    def forward(self, ids: Tensor) -> Tensor:
        found = self._look_up((ids - _FIRST_ID).clamp_min(0))
        found = torch.where((ids == _UNKNOWN_ID).unsqueeze(-1), self.unknown, found)
        return found.masked_fill((ids == _PADDING_ID).unsqueeze(-1), 0.0)

    def _look_up(self, places: Tensor) -> Tensor:
        if self.vectors is None or self.fixed is None:
            only = self.vectors if self.fixed is None else self.fixed
            assert only is not None
            return F.embedding(places, only)
        learned = F.embedding(places.clamp_max(self._n_learned - 1), self.vectors)
        fixed = F.embedding((places - self._n_learned).clamp_min(0), self.fixed)
        return torch.where((places < self._n_learned).unsqueeze(-1), learned, fixed)


def read_vectors(path: str | Path, limit: int = 0) -> VectorFile:
    """A text file with a word and its numbers on each line, the first `limit` of them (0: all); any compression.

    A first line "n dim", as word2vec writes it, is not taken for a vector. A word may contain spaces. Of a word that
    comes again the first vector counts.
    """
    lines = (_Line(number, text) for number, line in enumerate(read_lines(path), 1) if (text := line.strip(" \t")))
    first = next(lines, None)
    header = _HEADER.fullmatch(first.text) if first else None
    if header:
        first = next(lines, None)
    if first is None:
        raise InputError(f"{path}: expected word vectors, a word and its numbers on each line; found none.")
    separator = "\t" if "\t" in first.text else " "
    layout = _Layout(path, separator, int(header[2]) if header else _count_numbers(first.text, separator))
    chosen = itertools.islice(itertools.chain([first], lines), limit or None)
    rows: dict[str, None] = {}
    values = array("f")  # grows in place: the large files are gigabytes
    n_read = 0
    while chunk := list(itertools.islice(chosen, _CHUNK_LINES)):
        n_read += len(chunk)
        words, vectors = layout.read(chunk)
        is_new = [word not in rows and rows.setdefault(word) is None for word in words]
        values.frombytes((vectors if all(is_new) else vectors[is_new]).tobytes())
    if header and not limit and n_read != int(header[1]):
        logger.warning("%s: line 1 promises %s vectors, there are %d.", path, header[1], n_read)
    return VectorFile(list(rows), torch.frombuffer(values, dtype=torch.float32).view(len(rows), layout.dim))


class _Line(NamedTuple):
    number: int
    text: str


class _Layout(NamedTuple):
    """How the lines of a file are made."""

    path: str | Path
    separator: str
    dim: int

    def read(self, lines: list[_Line]) -> tuple[list[str], npt.NDArray[np.float32]]:
        """The words, and their vectors (n, dim)."""
        words, numbers = zip(*map(self.split, lines))
        vectors = np.empty((0, 0), dtype=np.float32)
        with contextlib.suppress(ValueError):
            vectors = np.loadtxt(numbers, np.float32, comments=None, delimiter=self.separator, ndmin=2, encoding=None)
        if vectors.shape != (len(lines), self.dim):
            raise self.malformed(next(line for line in lines if _count_numbers(line.text, self.separator) < self.dim))
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            line = lines[int(finite.argmin())]
            raise InputError(
                f"{self.path}: line {line.number}: expected finite numbers, found NaN, infinity or a number that is "
                f"too large in {line.text[:40]!r}. Correct or remove the line."
            )
        return list(words), vectors

    def split(self, line: _Line) -> tuple[str, str]:
        """The word and its numbers."""
        n_spaces = line.text.count(self.separator)
        if not 0 < self.dim <= n_spaces:
            raise self.malformed(line)
        if n_spaces == self.dim:
            word, _, numbers = line.text.partition(self.separator)
            return word, numbers
        # Some words of GloVe hold spaces (". . ."); one that ends in a decimal number is a line that is too long.
        word, *pieces = line.text.rsplit(self.separator, self.dim)
        end = word.rpartition(self.separator)[2]
        if "." in end and _is_number(end):
            raise self.malformed(line)
        return word, self.separator.join(pieces)

    def malformed(self, line: _Line) -> InputError:
        expected = f"{self.dim} numbers" if self.dim else "its numbers"
        return InputError(
            f"{self.path}: line {line.number}: expected a word and {expected}, found "
            f"{_count_numbers(line.text, self.separator)} numbers at the end of {line.text[:40]!r}. "
            "Correct or remove the line."
        )


def _count_numbers(text: str, separator: str) -> int:
    """How many numbers a line ends with, after its word."""
    pieces = text.split(separator)[:0:-1]
    return next((count for count, piece in enumerate(pieces) if not _is_number(piece)), len(pieces))


def _is_number(piece: str) -> bool:
    return _NUMBER.fullmatch(piece) is not None


def _check_vectors(words: Sequence[str], vectors: Tensor | None, dim: int | None) -> Tensor:
    """A copy of the vectors, or random ones of the same size."""
    if not words:
        raise InputError("WordEmbedding: expected at least one word, got none.")
    if vectors is None:
        if not dim or dim < 0:
            raise InputError(f"WordEmbedding: expected vectors or the width dim of new ones, got dim={dim}.")
        bound = math.sqrt(3.0 / dim)
        return torch.empty(len(words), dim).uniform_(-bound, bound)
    if vectors.dim() != 2 or len(vectors) != len(words) or dim not in (None, vectors.shape[1]):
        raise InputError(
            f"WordEmbedding: expected vectors of shape ({len(words)}, {dim or 'dim'}), a row for each word, "
            f"got {tuple(vectors.shape)}."
        )
    return vectors.detach().float().clone()
