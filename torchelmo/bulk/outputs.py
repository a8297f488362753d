"""The .h5 and .npz files that `embed_file` writes. `bulk/parquet.py` has the .parquet files.

The place of every vector is known before the first one is computed, because the tokens are. So a file is laid out
first, with everything but the vectors, and the vectors are then written into their places. Each line of the text is one
record: a run that was interrupted continues with the next record, and the file never exists twice.

HDF5 (the layout that AllenNLP established, and more):
    "0", "1", …                the vectors of each line
    "sentence_to_index"        (1,): a JSON object from the text of a line to its number
    "tokens/text"              (n_tokens,): the tokens of all lines
    "tokens/start", "…/end"    (n_tokens,): their character offsets in the line
    "tokens/boundaries"        (n_lines + 1,): line i has the tokens boundaries[i] to boundaries[i + 1]
    "ids"                      (n_lines,): the ids of the lines, if they have ids. These are then the names of the
                               vectors, with "/" written as "%2F"
    attributes                 the settings: model, layers, lang and others
NumPy (.npz): the arrays "0", "1", …, or those named by ids; "tokens" (UTF-8 bytes, one token per line), "start", "end",
"boundaries", "ids" (UTF-8 bytes, one id per line) and "settings" (a JSON object).
"""

import contextlib
import io
import json
import logging
import os
import re
import signal
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from torchelmo.errors import InputError, OutputError
from torchelmo.files import create_hdf5
from torchelmo.text.tokenize import Token

Array = npt.NDArray[Any]
Shape = Callable[[int], tuple[int, ...]]  # the shape of a line's vectors, by its number of tokens

# `sentence_to_index` is one JSON string, which a reader must hold in memory as a whole.
MAX_SENTENCE_CHARACTERS = 64 * 2**20
_BLOCK = 100_000  # tokens that are written at once

_logger = logging.getLogger(__name__)


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

    def finish(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array, places: Array) -> None:
        """Complete the file when all records are written."""


class Hdf5Output:
    """Lay out an HDF5 file, whose metadata is complete and final before the first vector is written."""

    copies = 1

    def __init__(self, shape: Shape, dtype: np.dtype[Any], settings: dict[str, Any]) -> None:
        self.shape, self.dtype, self.settings = shape, dtype, settings
        self.names = Names(0)  # set before `create`

    def create(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array) -> Array:
        """Write the file without its vectors, and return the place of each line's record."""
        _check_names(self.names, ("tokens", "sentence_to_index", "ids"))
        try:
            with _signals_deferred() as check_signals, create_hdf5(path) as file:
                for name, value in self.settings.items():
                    file.attrs[name] = "" if value is None else value
                self._create_tokens(file, lines(), counts, check_signals)
                if self.names.are_ids:
                    ids = file.create_dataset("ids", (len(self.names),), dtype=_h5py().string_dtype())
                    for start in range(0, len(ids), _BLOCK):
                        check_signals()
                        last = min(start + _BLOCK, len(ids))
                        ids[start:last] = [self.names[i] for i in range(start, last)]
                index = _sentence_to_index(lines(), self.names, check_signals)
                if index is not None:
                    file["sentence_to_index"] = np.array([index], dtype=_h5py().string_dtype())
                return self._create_datasets(file, counts, check_signals)
        except (OSError, RuntimeError, ValueError) as error:
            raise _with_errno(error) from error

    def encode(self, number: int, vectors: Array) -> bytes:
        """Return the record of a line."""
        return vectors.tobytes()

    def record_size(self, number: int, n_tokens: int) -> int:
        """Return the size of a line's record in bytes."""
        return int(np.prod(self.shape(n_tokens))) * self.dtype.itemsize

    def finish(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array, places: Array) -> None:
        """Do nothing: the file is complete when all records are written."""

    def _create_tokens(
        self, file: Any, lines: Iterable[Line], counts: Array, check_signals: Callable[[], None]
    ) -> None:
        n_tokens = int(counts.sum())
        group = file.create_group("tokens")
        texts = group.create_dataset("text", (n_tokens,), dtype=_h5py().string_dtype())
        starts, ends = (group.create_dataset(name, (n_tokens,), dtype="<i8") for name in ("start", "end"))
        group["boundaries"] = _boundaries(counts)
        place = 0
        for block in _token_blocks(lines):
            check_signals()
            here = slice(place, place + len(block))
            texts[here], starts[here], ends[here] = zip(*block)
            place += len(block)

    def _create_datasets(self, file: Any, counts: Array, check_signals: Callable[[], None]) -> Array:
        h5py = _h5py()
        how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        how.set_obj_track_times(False)
        kind = h5py.h5t.py_create(self.dtype)
        places = np.zeros(len(counts), dtype=np.int64)
        for number, n_tokens in enumerate(counts.tolist()):
            check_signals()
            space = h5py.h5s.create_simple(self.shape(n_tokens))
            dataset = h5py.h5d.create(file.id, hdf5_name(self.names[number]).encode(), kind, space, dcpl=how)
            places[number] = dataset.get_offset() or 0  # None for a dataset without elements
        return places


class NpzOutput:
    """Lay out a NumPy archive: a ZIP file whose members are not compressed, so that their sizes are known."""

    copies = 1

    def __init__(self, shape: Shape, dtype: np.dtype[Any], settings: dict[str, Any]) -> None:
        self.shape, self.dtype, self.settings = shape, dtype, settings
        self.names = Names(0)  # set before `create`

    def create(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array) -> Array:
        """Create an empty file, and return the place of each line's record."""
        _check_names(self.names, ("tokens", "start", "end", "boundaries", "ids", "settings"))
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
                for block in _token_blocks(lines())
            ]
            spans = np.concatenate([np.zeros((0, 2), dtype=np.int64), *(spans for _, spans in blocks)])
            members: dict[str, Array] = {
                "tokens": np.frombuffer(b"\n".join(texts for texts, _ in blocks), dtype=np.uint8),
                "start": spans[:, 0].copy(),
                "end": spans[:, 1].copy(),
                "boundaries": _boundaries(counts),
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


def hdf5_name(id: str) -> str:
    """Return the name of a dataset for an id. HDF5 reads "/" as a path and "." as the group itself.

    >>> hdf5_name("P12345"), hdf5_name("a/b")
    ('P12345', 'a%2Fb')
    """
    if id == ".":
        return "%2E"
    return id.replace("%", "%25").replace("/", "%2F") if re.search("/|%2[5EF]", id) else id


def _check_names(names: Names, reserved: tuple[str, ...]) -> None:
    """Refuse ids that are the name of another array in the file."""
    if names.are_ids:
        for number, name in enumerate(names, 1):
            if name in reserved:
                raise InputError(
                    f"Row {number}: the id {name!r} is the name of another array in the output. Use another "
                    "`id_column`, or change this id."
                )


def _boundaries(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _token_blocks(lines: Iterable[Line]) -> Iterator[list[Token]]:
    block: list[Token] = []
    for line in lines:
        block += line.tokens
        if len(block) >= _BLOCK:
            yield block
            block = []
    if block:
        yield block


def _sentence_to_index(lines: Iterable[Line], names: Sequence[str], check_signals: Callable[[], None]) -> str | None:
    """Map the text of every line that is not blank to its first line; None if that would need too much memory."""
    index: dict[str, str] = {}
    n_characters = 0
    for number, line in enumerate(lines):
        check_signals()
        text = line.text.strip()
        if text and text not in index:
            index[text] = names[number]
            n_characters += len(text)
        if n_characters > MAX_SENTENCE_CHARACTERS:
            _logger.warning(
                "The text is too long for one JSON object: sentence_to_index is left out. "
                "The vectors of the first line are in the dataset 0, those of the second in 1, and so on; those of a "
                "line with an id are in the dataset of that name."
            )
            return None
    return json.dumps(index)


def _member(name: str) -> zipfile.ZipInfo:
    """A member of a ZIP file with a fixed date, so that equal vectors give equal files."""
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))


def _member_header(array_name: str, content: bytes) -> bytes:
    """The local header of an uncompressed member; see APPNOTE.TXT of the ZIP format, section 4.3.7."""
    name = f"{array_name}.npy".encode()
    flags = 0 if array_name.isascii() else 0x800  # the name is UTF-8
    fields = (20, flags, 0, 0, 0x21, zlib.crc32(content), len(content), len(content), len(name), 0)
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", *fields) + name


def _with_errno(error: Exception) -> Exception:
    """HDF5 gives the reason of a failed write only in its message: "… errno = 28, error message = '…' …"."""
    match = re.search(r"errno = (\d+), error message = '([^']*)'", str(error))
    return OSError(int(match[1]), match[2]) if match else OSError(str(error))


@contextlib.contextmanager
def _signals_deferred() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C and SIGTERM to the calls of a function, and to the end of the block.

    An exception that a signal handler raises inside h5py may hit a weak-reference callback, where Python drops it: the
    program would continue as if there had been no signal.
    """
    received: list[int] = []
    before: dict[int, Any] = {}

    def check_signals() -> None:
        if received:
            before[received[0]](received[0], None)

    if threading.current_thread() is threading.main_thread():
        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            if callable(signal.getsignal(number)):
                before[number] = signal.signal(number, lambda number, _: received.append(number))
    try:
        yield check_signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    check_signals()


def _h5py() -> Any:
    import h5py

    return h5py
