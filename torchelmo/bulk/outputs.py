"""What the output files of `embed_file` have in common, and the .npz files.

`bulk/hdf5.py` has the .h5 files, `bulk/parquet.py` the .parquet files.

The place of every vector is known before the first one is computed, because the tokens are. So a file is laid out
first, with everything but the vectors, and the vectors are then written into their places. Each line of the text is one
record: a run that was interrupted continues with the next record, and the file never exists twice.

NumPy (.npz): the arrays "0", "1", …, or those named by ids; "tokens" (UTF-8 bytes, one token per line), "start", "end",
"boundaries", "ids" (UTF-8 bytes, one id per line) and "settings" (a JSON object).
"""

import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from torchelmo.errors import InputError, OutputError
from torchelmo.text.tokenize import Token

Array = npt.NDArray[Any]
Shape = Callable[[int], tuple[int, ...]]  # the shape of a line's vectors, by its number of tokens

_BLOCK = 100_000  # tokens that are written at once


class Line(NamedTuple):
    """A line of the text, split into sentences of tokens."""

    text: str
    sentences: list[list[Token]]
    id: str | None = None  # the name of its vectors; None for the number of the line

    @property
    def tokens(self) -> list[Token]:
        """The tokens of all sentences."""
        return [token for sentence in self.sentences for token in sentence]


class Names(Sequence[str]):
    """The names of the lines: their ids, or their numbers if they have no ids. It is compact in memory.

    Args:
        n_lines: The number of lines.
        text: The ids, one after the other, as UTF-8.
        ends: (n_lines,): the end of each id in `text`. Empty if the lines have no ids.
    """

    def __init__(self, n_lines: int, text: bytes = b"", ends: Sequence[int] | Array = ()) -> None:
        self.n_lines, self.text, self.ends = n_lines, text, np.asarray(ends, dtype=np.int64)
        self.are_ids = bool(len(ends))

    def __len__(self) -> int:
        return self.n_lines

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self.n_lines:
            raise IndexError(number)
        if not self.are_ids:
            return str(number)
        start, end = self.ends[number - 1] if number else 0, self.ends[number]
        return self.text[start:end].decode("utf-8")


class Output(Protocol):
    """One format of output files."""

    copies: int  # how often the vectors are on the disk when the file is completed
    dtype: np.dtype[Any]
    settings: dict[str, Any]
    names: Names  # of the lines; set before `create`

    def create(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array) -> Array:
        """Write the file without its vectors, and return the place of each line's record."""

    def encode(self, number: int, vectors: Array) -> bytes:
        """Return the record of a line."""

    def record_size(self, number: int, n_tokens: int) -> int:
        """Return the size of a line's record in bytes."""

    def reopen(self, path: Path) -> None:
        """Prepare the file of an interrupted run: remove what `finish` has appended."""

    def finish(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array, places: Array) -> None:
        """Complete the file when all records are written."""


class NpzOutput:
    """Lay out a NumPy archive: a ZIP file whose members are not compressed, so that their sizes are known."""

    copies = 1

    def __init__(self, shape: Shape, dtype: np.dtype[Any], settings: dict[str, Any]) -> None:
        self.shape, self.dtype, self.settings = shape, dtype, settings
        self.names = Names(0)  # set before `create`

    def create(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array) -> Array:
        """Create an empty file, and return the place of each line's record."""
        check_names(self.names, ("tokens", "start", "end", "boundaries", "ids", "settings"))
        sizes = np.zeros(len(counts), dtype=np.int64)
        for number, n_tokens in enumerate(counts.tolist()):
            sizes[number] = self.record_size(number, n_tokens)
            if sizes[number] >= 2**32 - 1:
                raise OutputError(
                    f"{path.name}: line {number + 1} has {n_tokens:,} tokens, whose vectors exceed the 4 GB that an "
                    "array in a .npz file may have. Write .h5, or split the line."
                )
        path.touch()
        return np.cumsum(sizes) - sizes

    def encode(self, number: int, vectors: Array) -> bytes:
        """Return the record of a line: the header of a ZIP member, the header of a NumPy array, and the vectors."""
        content = self._array_header(vectors.shape) + vectors.tobytes()
        return _member_header(self.names[number], content) + content

    def record_size(self, number: int, n_tokens: int) -> int:
        """Return the size of a line's record in bytes."""
        shape = self.shape(n_tokens)
        size = len(_member_header(self.names[number], b"")) + len(self._array_header(shape))
        return size + int(np.prod(shape)) * self.dtype.itemsize

    def reopen(self, path: Path) -> None:
        """Do nothing: `finish` removes what it has appended before."""

    def finish(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array, places: Array) -> None:
        """Complete the file when all records are written: append the tokens and the directory of the archive."""
        end = int(places[-1]) + self.record_size(len(counts) - 1, int(counts[-1]))
        os.truncate(path, end)  # remove a directory that an interrupted call has written
        places = np.append(places, end)
        with open(path, "rb") as stream, zipfile.ZipFile(path, "a") as archive:
            for number, (place, end) in enumerate(zip(places.tolist(), places[1:].tolist())):
                name = self.names[number]
                info, header = _member(f"{name}.npy"), len(_member_header(name, b""))
                info.header_offset = place
                info.compress_size = info.file_size = end - place - header
                (info.CRC,) = struct.unpack("<I", os.pread(stream.fileno(), 4, place + 14))
                archive.infolist().append(info)
            blocks = [
                (
                    "\n".join(token.text for token in block).encode("utf-8"),
                    np.array([(token.start, token.end) for token in block], dtype=np.int64),
                )
                for block in token_blocks(lines())
            ]
            spans = np.concatenate([np.zeros((0, 2), dtype=np.int64), *(spans for _, spans in blocks)])
            members: dict[str, Array] = {
                "tokens": np.frombuffer(b"\n".join(texts for texts, _ in blocks), dtype=np.uint8),
                "start": spans[:, 0].copy(),
                "end": spans[:, 1].copy(),
                "boundaries": token_boundaries(counts),
                "settings": np.array(json.dumps(self.settings)),
            }
            if self.names.are_ids:
                members["ids"] = np.frombuffer("\n".join(self.names).encode("utf-8"), dtype=np.uint8)
            for name, array in members.items():
                with archive.open(_member(f"{name}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    def _array_header(self, shape: tuple[int, ...]) -> bytes:
        stream = io.BytesIO()
        description = {"descr": self.dtype.str, "fortran_order": False, "shape": tuple(map(int, shape))}
        np.lib.format.write_array_header_1_0(stream, description)
        return stream.getvalue()


def check_names(names: Names, reserved: tuple[str, ...]) -> None:
    """Refuse ids that are the name of another array in the file."""
    if names.are_ids:
        for number, name in enumerate(names, 1):
            if name in reserved:
                raise InputError(
                    f"Row {number}: the id {name!r} is the name of another array in the output. Use another "
                    "`id_column`, or change this id."
                )


def token_boundaries(counts: Array) -> Array:
    """Return (n_lines + 1,): line i has the tokens boundaries[i] to boundaries[i + 1]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def token_blocks(lines: Iterable[Line]) -> Iterator[list[Token]]:
    """Yield the tokens of all lines in large blocks."""
    block: list[Token] = []
    for line in lines:
        block += line.tokens
        if len(block) >= _BLOCK:
            yield block
            block = []
    if block:
        yield block


def _member(name: str) -> zipfile.ZipInfo:
    """A member of a ZIP file with a fixed date, so that equal vectors give equal files."""
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))


def _member_header(array_name: str, content: bytes) -> bytes:
    """The local header of an uncompressed member; see APPNOTE.TXT of the ZIP format, section 4.3.7."""
    name = f"{array_name}.npy".encode()
    flags = 0 if array_name.isascii() else 0x800  # the name is UTF-8
    fields = (20, flags, 0, 0, 0x21, zlib.crc32(content), len(content), len(content), len(name), 0)
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", *fields) + name
