"""Vectors of whole words: read from GloVe and word2vec text files, and looked up."""

import logging
import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.errors import InputError
from torchelmo.files import read_lines

logger = logging.getLogger(__name__)

_PADDING_ID, _UNKNOWN_ID, _FIRST_ID = 0, 1, 2


class VectorFile(NamedTuple):
    words: list[str]
    vectors: Tensor  # (n_words, dim) float32


class WordEmbedding(nn.Module):
    """(batch, tokens) ids -> (batch, tokens, dim): id 0 is padding (zeros), 1 `<UNK>`, then come the `words`.

    `vectors` (n_words, dim) are where the words begin; without them they begin at random. With `trainable=False`
    they stay there, and only `<UNK>` learns. It begins at the mean of the vectors.
    """

    vectors: Tensor

    def __init__(
        self,
        words: Sequence[str],
        vectors: Tensor | None = None,
        *,
        dim: int | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        vectors = _check_vectors(words, vectors, dim)
        self.words, self.dim = list(words), vectors.shape[1]
        self._ids = {word: index for index, word in enumerate(self.words, _FIRST_ID)}
        if len(self._ids) != len(self.words):
            twice = next(word for index, word in enumerate(self.words, _FIRST_ID) if self._ids[word] != index)
            raise InputError(f"WordEmbedding: expected every word once, {twice!r} stands twice.")
        self.unknown = nn.Parameter(vectors.mean(dim=0))
        if trainable:
            self.vectors = nn.Parameter(vectors)
        else:
            self.register_buffer("vectors", vectors)

    def ids(self, sentence: Sequence[str]) -> list[int]:
        """Of each word: its exact form, else its lower-case form, else `<UNK>`."""
        get = self._ids.get
        return [get(word) or get(word.lower(), _UNKNOWN_ID) for word in sentence]

    def forward(self, ids: Tensor) -> Tensor:
        found = F.embedding((ids - _FIRST_ID).clamp_min(0), self.vectors)
        found = torch.where((ids == _UNKNOWN_ID).unsqueeze(-1), self.unknown, found)
        return found.masked_fill((ids == _PADDING_ID).unsqueeze(-1), 0.0)


def read_vectors(path: str | Path, limit: int = 0) -> VectorFile:
    """A text file with a word and its numbers on each line, the first `limit` of them (0: all); any compression.

    A first line "n dim", as word2vec writes it, is skipped. A word may contain spaces. Of a word that comes again the
    first vector counts.
    """
    rows: dict[str, int] = {}  # each word and its line
    values = array("f")
    dim, separator, n_read, promised = 0, " ", 0, 0
    for number, line in enumerate(read_lines(path), 1):
        if limit and n_read == limit:
            break
        line = line.strip(" \t")
        if not line:
            continue
        if not dim:
            separator = "\t" if "\t" in line else " "
            dim = line.count(separator)
            if number == 1 and (header := _read_header(line)):
                promised, dim = header
                continue
        n_read += 1
        word, *numbers = line.rsplit(separator, dim)
        try:
            if len(numbers) != dim or not word:
                raise ValueError
            if separator in word:
                _check_word(word.split(separator))
            row = [*map(float, numbers)]
        except ValueError:
            raise _malformed(path, number, line, dim) from None
        if word not in rows:
            rows[word] = number
            values.extend(row)
    if not rows:
        raise InputError(f"{path}: expected word vectors, a word and its numbers on each line; found none.")
    if promised and promised != n_read and n_read != limit:
        logger.warning("%s: line 1 promises %d vectors, there are %d.", path, promised, n_read)
    vectors = torch.frombuffer(values, dtype=torch.float32).view(len(rows), dim)
    _check_finite(path, rows, vectors)
    return VectorFile(list(rows), vectors)


def _read_header(line: str) -> tuple[int, int] | None:
    """The "n dim" of word2vec, if the line is one."""
    pieces = line.split()
    if len(pieces) == 2 and all(piece.isascii() and piece.isdigit() for piece in pieces) and int(pieces[1]):
        return int(pieces[0]), int(pieces[1])
    return None


def _check_word(pieces: list[str]) -> None:
    """Some words of GloVe hold spaces (". . ."); a word with a decimal number in it is a line that is too long."""
    for piece in pieces[1:]:
        try:
            float(piece)
        except ValueError:
            continue
        if "." in piece:
            raise ValueError


def _malformed(path: str | Path, number: int, line: str, dim: int) -> InputError:
    n_numbers = 0
    for piece in reversed(line.split()[1:]):
        try:
            float(piece)
        except ValueError:
            break
        n_numbers += 1
    return InputError(
        f"{path}: line {number}: expected a word and {dim} numbers, found {n_numbers} numbers at the end of "
        f"{line[:40]!r}. Correct or remove the line."
    )


def _check_finite(path: str | Path, rows: dict[str, int], vectors: Tensor) -> None:
    finite = vectors.isfinite().all(dim=1)
    if not finite.all():
        word, number = list(rows.items())[int((~finite).nonzero()[0])]
        raise InputError(
            f"{path}: line {number}: expected finite numbers for {word!r}, found NaN, infinity or a number too large. "
            "Correct or remove the line."
        )


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
