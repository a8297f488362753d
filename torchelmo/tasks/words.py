"""Static word vectors: read them from GloVe and word2vec text files, and look them up."""

import itertools
import logging
import math
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.errors import InputError, shorten
from torchelmo.files import read_lines

logger = logging.getLogger(__name__)
_CHUNK_LINES = 1000  # parsed at once
_MAX_DIGITS = 9  # of the numbers in the header
_PADDING_ID, _UNKNOWN_ID, _FIRST_ID = 0, 1, 2


class VectorFile(NamedTuple):
    """The words of a file and their vectors."""

    words: list[str]
    vectors: Tensor  # (n_words, dim) float32


class WordEmbedding(nn.Module):
    """Look up word vectors: ids (batch, tokens) -> (batch, tokens, dim).

    Id 0 is padding (zeros), id 1 is `<UNK>`, and the words follow. `<UNK>` is trained, starting from the mean of the
    vectors.

    Args:
        words: The words.
        vectors: (n_words, dim), the initial vectors; random if None.
        dim: The width of random vectors.
        n_fixed: The number of words, the last ones, whose vectors are not trained.
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
        vectors = _initial_vectors(words, vectors, dim)
        self.words, self.dim = list(words), vectors.shape[1]
        self._ids = {word: index for index, word in enumerate(self.words, _FIRST_ID)}
        if len(self._ids) != len(self.words):
            duplicate = next(word for index, word in enumerate(self.words, _FIRST_ID) if self._ids[word] != index)
            raise InputError(f"WordEmbedding: duplicate word {duplicate!r}. Words must be unique.")
        self.unknown = nn.Parameter(vectors.mean(dim=0))
        self._n_trained = len(self.words) - n_fixed
        trained, fixed = vectors.split([self._n_trained, n_fixed])
        # Fixed vectors are a buffer: in one large parameter, optimizers and checkpoints would hold all of them.
        self.vectors = nn.Parameter(trained) if len(trained) else None
        self.register_buffer("fixed", fixed if len(fixed) else None)

    def ids(self, sentence: Sequence[str]) -> list[int]:
        """Return the id of each word: of its exact form, else of its lower-case form, else of `<UNK>`."""
        get = self._ids.get
        return [get(word) or get(word.lower(), _UNKNOWN_ID) for word in sentence]

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors of ids: (batch, tokens) -> (batch, tokens, dim)."""
        found = self._look_up((ids - _FIRST_ID).clamp_min(0))
        found = torch.where((ids == _UNKNOWN_ID).unsqueeze(-1), self.unknown, found)
        return found.masked_fill((ids == _PADDING_ID).unsqueeze(-1), 0.0)

    def _look_up(self, rows: Tensor) -> Tensor:
        if self.vectors is None or self.fixed is None:
            only = self.vectors if self.fixed is None else self.fixed
            assert only is not None
            return F.embedding(rows, only)
        trained = F.embedding(rows.clamp_max(self._n_trained - 1), self.vectors)
        fixed = F.embedding((rows - self._n_trained).clamp_min(0), self.fixed)
        return torch.where((rows < self._n_trained).unsqueeze(-1), trained, fixed)


def read_vectors(path: str | Path) -> VectorFile:
    """Read a text file with a word and its numbers on each line.

    A word may contain spaces. If a word is repeated, its first vector counts.

    Args:
        path: The file, plain or compressed. Its first line may be "n dim", as in word2vec.

    Returns:
        The words and their vectors.

    Raises:
        InputError: A line is malformed, a number is not finite, or the file has no vectors.
    """
    lines = (_Line(number, text) for number, line in enumerate(read_lines(path), 1) if (text := line.strip(" \t")))
    first = next(lines, None)
    header = _read_header(path, first.text) if first else None
    if header:
        first = next(lines, None)
    if first is None:
        raise InputError(f"{path}: expected word vectors, a word and its numbers on each line; found none.")
    separator = "\t" if "\t" in first.text else " "
    layout = _Layout(path, separator, header[1] if header else _count_numbers(first.text, separator))
    rows: dict[str, None] = {}
    values = array("f")  # grows in place: large files have gigabytes
    n_read = 0
    for chunk in _chunks(itertools.chain([first], lines)):
        n_read += len(chunk)
        words, vectors = layout.parse(chunk)
        is_new = [word not in rows and rows.setdefault(word) is None for word in words]
        values.frombytes((vectors if all(is_new) else vectors[is_new]).tobytes())
    if header and n_read != header[0]:
        logger.warning("%s: line 1 announces %d vectors, but the file has %d.", path, header[0], n_read)
    return VectorFile(list(rows), torch.frombuffer(values, dtype=torch.float32).view(len(rows), layout.dim))


class _Line(NamedTuple):
    number: int
    text: str


class _Layout(NamedTuple):
    """The format of the lines of a file."""

    path: str | Path
    separator: str
    dim: int

    def parse(self, lines: list[_Line]) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Return the words, and their vectors (n, dim)."""
        words, numbers = zip(*map(self.split, lines))
        vectors = self.parse_numbers(numbers)
        if vectors is None:
            raise self.malformed(next(line for line in lines if self.parse_numbers([self.split(line)[1]]) is None))
        is_finite = np.isfinite(vectors).all(axis=1)
        if not is_finite.all():
            line = lines[int(is_finite.argmin())]
            raise InputError(
                f"{self.path}: line {line.number}: expected finite float32 numbers, found {shorten(repr(line.text))}. "
                "Correct or remove the line."
            )
        return list(words), vectors

    def parse_numbers(self, rows: Sequence[str]) -> npt.NDArray[np.float32] | None:
        """Return the numbers of some rows, (n, dim); None if a row is malformed."""
        try:
            values = np.loadtxt(rows, np.float32, comments=None, delimiter=self.separator, ndmin=2, encoding=None)
        except ValueError:
            return None
        return values if values.shape == (len(rows), self.dim) else None

    def split(self, line: _Line) -> tuple[str, str]:
        """Return the word and its numbers."""
        word, *numbers = line.text.rsplit(self.separator, self.dim)
        # A word may contain spaces, as ". . ." of GloVe. If it ends with a decimal number, the line is too long.
        _, space, end = word.rpartition(self.separator)
        if not self.dim or len(numbers) < self.dim or (space and "." in end and _is_number(end)):
            raise self.malformed(line)
        return word, self.separator.join(numbers)

    def malformed(self, line: _Line) -> InputError:
        expected = f"{self.dim} numbers" if self.dim else "its numbers"
        return InputError(
            f"{self.path}: line {line.number}: expected a word and {expected}, found "
            f"{_count_numbers(line.text, self.separator)} numbers at the end of {shorten(repr(line.text))}. "
            "Correct or remove the line."
        )


def _read_header(path: str | Path, text: str) -> tuple[int, int] | None:
    """Return the number and the width of the vectors if a line announces them."""
    fields = text.split()
    if len(fields) != 2 or not all(field.isascii() and field.isdecimal() for field in fields):
        return None
    if max(map(len, fields)) > _MAX_DIGITS:
        raise InputError(
            f"{path}: line 1: expected the number and the width of the vectors, found {shorten(repr(text))}."
        )
    n_vectors, dim = map(int, fields)
    return (n_vectors, dim) if dim else None


def _chunks(lines: Iterator[_Line]) -> Iterator[list[_Line]]:
    while chunk := list(itertools.islice(lines, _CHUNK_LINES)):
        yield chunk


def _count_numbers(text: str, separator: str) -> int:
    """Return how many numbers a line ends with, after its word."""
    pieces = text.split(separator)[:0:-1]
    return len(list(itertools.takewhile(_is_number, pieces)))


def _is_number(piece: str) -> bool:
    if not piece.isascii() or "_" in piece:  # float would accept both
        return False
    try:
        float(piece)
    except ValueError:
        return False
    return True


def _initial_vectors(words: Sequence[str], vectors: Tensor | None, dim: int | None) -> Tensor:
    """Return a copy of the vectors, or random ones."""
    if not words:
        raise InputError("WordEmbedding: expected at least one word, got none.")
    if vectors is None:
        if not dim or dim < 0:
            raise InputError(f"WordEmbedding: expected vectors, or the width dim of new ones, got dim={dim}.")
        bound = math.sqrt(3.0 / dim)
        return torch.empty(len(words), dim).uniform_(-bound, bound)
    if vectors.dim() != 2 or len(vectors) != len(words) or dim not in (None, vectors.shape[1]):
        raise InputError(
            f"WordEmbedding: expected vectors of shape ({len(words)}, {dim or 'dim'}), one row for each word, "
            f"got {tuple(vectors.shape)}."
        )
    return vectors.detach().float().clone()
