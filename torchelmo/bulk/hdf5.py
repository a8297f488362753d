"""HDF5 files with vectors: `Hdf5Output` writes them, `Hdf5Reader` reads them. The format has the number 2.

The layout is the one that AllenNLP established, and more. All datasets have fixed types and are stored in one piece:
    "0", "1", …                the vectors of each line
    "sentence_to_index"        (1,): a JSON object from the text of a line to its number
    "settings"                 a JSON object: model, layers, lang and others
    "tokens/text"              UTF-8 bytes: the tokens of all lines, separated by line feeds
    "tokens/start", "…/end"    (n_tokens,): their character offsets in the line
    "tokens/boundaries"        (n_lines + 1,): line i has the tokens boundaries[i] to boundaries[i + 1]
    "ids"                      UTF-8 bytes: the ids of the lines, separated by line feeds, if they have ids. These are
                               then the names of the vectors, with "/" written as "%2F"

An index follows the HDF5 data in the file. It has the places of everything that `Hdf5Reader` reads, with checksums. So
damage is found before it is used, and the HDF5 library, which damaged files can crash, is not needed for reading:
    signature                  so that an index can be told from other data
    index                      (n_lines + 1,) of `_ENTRY`; the last entry marks the end
    ids                        the same bytes as in the dataset
    directory                  a JSON object with the places of the other parts
    end                        the size and the checksum of the directory, and a signature
"""

import contextlib
import json
import logging
import os
import re
import signal
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchelmo.bulk.outputs import Array, Line, Names, Shape, check_names, token_blocks, token_boundaries
from torchelmo.errors import InputError, OutputError
from torchelmo.files import create_hdf5, parse_json
from torchelmo.text.tokenize import Token

# `sentence_to_index` is one JSON string, which a reader must hold in memory as a whole.
MAX_SENTENCE_CHARACTERS = 64 * 2**20

_FORMAT = 2
_SIGNATURE = b"torchelmo vectors\n"
_END = struct.Struct(f"<QI{len(_SIGNATURE)}s")  # size and checksum of the directory, signature
_MAX_DIRECTORY = 2**20  # bytes
_ENTRY = np.dtype(
    [
        ("vectors", "<i8"),  # the place of the vectors in the file
        ("token", "<i8"),  # the number of tokens in the lines before
        ("text", "<i8"),  # the place of the first token in the text of all tokens
        ("vectors_checksum", "<u4"),
        ("tokens_checksum", "<u4"),
    ]
)
_END_OF_FILE = 40  # the place of the end of the HDF5 data, in the superblock of version 0 that `create_hdf5` writes

_logger = logging.getLogger(__name__)


class Hdf5Output:
    """Lay out an HDF5 file, whose metadata is complete and final before the first vector is written."""

    copies = 1

    def __init__(self, shape: Shape, dtype: np.dtype[Any], settings: dict[str, Any]) -> None:
        self.shape, self.dtype, self.settings = shape, dtype, settings
        self.names = Names(0)  # set before `create`
        self._checksums: Array | None = None  # (n_lines,): of the vectors that this process has computed; else −1

    def create(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array) -> Array:
        """Write the file without its vectors, and return the place of each line's record."""
        check_names(self.names, ("tokens", "sentence_to_index", "ids", "settings"))
        try:
            with _signals_deferred() as check_signals, create_hdf5(path) as file:
                settings = json.dumps(self.settings).encode()
                file.create_dataset("settings", data=np.array(settings, dtype=f"S{len(settings)}"))
                self._create_tokens(file, lines, counts, check_signals)
                if self.names.are_ids:
                    file["ids"] = np.frombuffer(_join_ids(self.names), dtype=np.uint8)
                index = _sentence_to_index(lines(), self.names, check_signals)
                if index is not None:
                    file["sentence_to_index"] = np.array([index], dtype=f"S{len(index)}")
                return self._create_datasets(file, counts, check_signals)
        except (OSError, RuntimeError, ValueError) as error:
            raise _with_errno(error) from error

    def encode(self, number: int, vectors: Array) -> bytes:
        """Return the record of a line."""
        record = vectors.tobytes()
        if self._checksums is None:
            self._checksums = np.full(len(self.names), -1, dtype=np.int64)
        self._checksums[number] = zlib.crc32(record)
        return record

    def record_size(self, number: int, n_tokens: int) -> int:
        """Return the size of a line's record in bytes."""
        return int(np.prod(self.shape(n_tokens))) * self.dtype.itemsize

    def reopen(self, path: Path) -> None:
        """Remove an index that an interrupted call of `finish` has written."""
        if path.is_symlink() or not path.is_file():
            return  # whoever resumes the run reports that
        with open(path, "r+b") as stream:
            end = _end_of_data(stream.fileno())
            begin = os.pread(stream.fileno(), len(_SIGNATURE), end) if end < os.fstat(stream.fileno()).st_size else b""
            if begin and _SIGNATURE.startswith(begin):
                stream.truncate(end)

    def finish(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array, places: Array) -> None:
        """Complete the file when all records are written: append the index."""
        with _signals_deferred(), _h5py().File(path, "r") as file:
            parts = {name: file["tokens"][name].id.get_offset() or 0 for name in ("text", "start", "end")}
        with open(path, "r+b") as stream:
            index = self._make_index(stream.fileno(), lines(), counts, places)
            end = _end_of_data(stream.fileno())
            if end != stream.seek(0, os.SEEK_END):
                raise OutputError(f"{path}: expected a file that ends with HDF5 data at byte {end:,}. Start again.")
            stream.write(_SIGNATURE)
            ids = _join_ids(self.names) if self.names.are_ids else None
            directory: dict[str, Any] = {
                "format": _FORMAT,
                "settings": self.settings,
                "n_lines": len(counts),
                "shape": [a if a == b else None for a, b in zip(self.shape(1), self.shape(2), strict=True)],
                "dtype": self.dtype.str,
                "tokens": parts,
                "index": _append(stream, index.tobytes()),
                "ids": None if ids is None else _append(stream, ids),
            }
            content = json.dumps(directory).encode()
            stream.write(content + _END.pack(len(content), zlib.crc32(content), _SIGNATURE))

    def _create_tokens(
        self, file: Any, lines: Callable[[], Iterable[Line]], counts: Array, check_signals: Callable[[], None]
    ) -> None:
        n_tokens = int(counts.sum())
        n_bytes = 0
        for line in lines():
            check_signals()
            n_bytes += sum(len(token.text.encode("utf-8")) + 1 for token in line.tokens)
        group = file.create_group("tokens")
        texts = group.create_dataset("text", (max(n_bytes - 1, 0),), dtype=np.uint8)  # none after the last token
        starts, ends = (group.create_dataset(name, (n_tokens,), dtype="<i8") for name in ("start", "end"))
        group["boundaries"] = token_boundaries(counts)
        token = place = 0
        for tokens in token_blocks(lines()):
            check_signals()
            text = (b"\n" if place else b"") + _join_tokens(tokens)
            texts[place : place + len(text)] = np.frombuffer(text, dtype=np.uint8)
            starts[token : token + len(tokens)] = [one.start for one in tokens]
            ends[token : token + len(tokens)] = [one.end for one in tokens]
            token, place = token + len(tokens), place + len(text)

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

    def _make_index(self, descriptor: int, lines: Iterable[Line], counts: Array, places: Array) -> Array:
        """Return the places and checksums of all lines."""
        index = np.zeros(len(counts) + 1, dtype=_ENTRY)
        index["token"] = token_boundaries(counts)
        index["vectors"][:-1] = places
        text = 0
        for number, line in enumerate(lines):
            tokens = line.tokens
            content = _join_tokens(tokens)
            text += len(content) + 1 if tokens else 0
            index["text"][number + 1] = text
            spans = (np.array([token[i] for token in tokens], dtype="<i8").tobytes() for i in (1, 2))
            index["tokens_checksum"][number] = zlib.crc32(b"".join((content, *spans)))
            checksum = -1 if self._checksums is None else int(self._checksums[number])
            if checksum < 0:  # an interrupted run has computed it
                size = self.record_size(number, int(counts[number]))
                checksum = zlib.crc32(_read_at(descriptor, int(places[number]), size))
            index["vectors_checksum"][number] = checksum
        return index


class Hdf5Reader:
    """Read single lines of an HDF5 file with vectors, by the index at its end. Checksums are compared first."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("rb")
        try:
            self._size = os.fstat(self._stream.fileno()).st_size
            directory = self._read_directory(path)
            self.settings: dict[str, Any] = dict(directory["settings"])
            self._shape: list[int | None] = [None if size is None else int(size) for size in directory["shape"]]
            self._dtype = np.dtype({"<f2": np.float16, "<f4": np.float32}[directory["dtype"]]).newbyteorder("<")
            self._tokens: dict[str, int] = {name: int(directory["tokens"][name]) for name in ("text", "start", "end")}
            self._ids: tuple[int, int, int] | None = directory["ids"]
            self._index = np.frombuffer(self._read_part(directory["index"]), dtype=_ENTRY)
            if len(self._index) != directory["n_lines"] + 1 or not len(self._index):
                raise ValueError(f"the index has {len(self._index) - 1} lines instead of {directory['n_lines']}")
            if (np.diff(self._index["token"]) < 0).any() or (np.diff(self._index["text"]) < 0).any():
                raise ValueError("the boundaries of lines do not rise")
        except BaseException:
            self.close()
            raise

    @property
    def n_tokens(self) -> int:
        """The number of tokens of all lines."""
        return int(self._index["token"][-1])

    def __len__(self) -> int:
        return len(self._index) - 1

    def ids(self) -> list[str] | None:
        """Return the ids of all lines; None if they are numbers."""
        return None if self._ids is None else self._read_part(self._ids).decode("utf-8").split("\n")

    def tokens(self, line: int) -> list[Token]:
        """Return the tokens of a line."""
        entry, following = self._index[line], self._index[line + 1]
        first, n_tokens = int(entry["token"]), int(following["token"] - entry["token"])
        if not n_tokens:
            return []
        n_bytes = int(following["text"] - entry["text"]) - 1
        text = self._read(self._tokens["text"] + int(entry["text"]), n_bytes)
        starts, ends = (self._read(self._tokens[name] + 8 * first, 8 * n_tokens) for name in ("start", "end"))
        _check(entry["tokens_checksum"], text + starts + ends, f"the tokens of line {line + 1}")
        spans = (np.frombuffer(span, dtype="<i8").tolist() for span in (starts, ends))
        return [Token(*one) for one in zip(text.decode("utf-8").split("\n"), *spans, strict=True)]

    def vectors(self, line: int) -> Array:
        """Return the array of a line."""
        entry, following = self._index[line], self._index[line + 1]
        n_tokens = int(following["token"] - entry["token"])
        shape = [n_tokens if size is None else size for size in self._shape]
        content = self._read(int(entry["vectors"]), int(np.prod(shape, dtype=object)) * self._dtype.itemsize)
        _check(entry["vectors_checksum"], content, f"the vectors of line {line + 1}")
        return np.frombuffer(content, dtype=self._dtype).reshape(shape)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _read_directory(self, path: Path) -> dict[str, Any]:
        end = self._size - _END.size
        size, checksum, signature = _END.unpack(self._read(end, _END.size)) if end >= 0 else (0, 0, b"")
        if signature != _SIGNATURE:
            raise InputError(
                f"{path}: expected vectors and tokens as torchelmo writes them, found another layout, or a file that "
                "was cut short or changed by another program."
            )
        if size > _MAX_DIRECTORY:
            raise ValueError(f"its directory has {size:,} bytes")
        content = self._read(end - size, size)
        _check(checksum, content, "the directory")
        directory: dict[str, Any] = parse_json(bytes(content), "the directory")
        if directory["format"] != _FORMAT:
            raise InputError(f"{path}: expected the format {_FORMAT}, found {directory['format']!r}. Write it again.")
        return directory

    def _read_part(self, part: Sequence[int]) -> bytearray:
        place, size, checksum = map(int, part)
        content = self._read(place, size)
        _check(checksum, content, "the index")
        return content

    def _read(self, place: int, size: int) -> bytearray:
        if not 0 <= place <= place + size <= self._size:  # before memory is allocated
            raise ValueError(f"the file has {self._size:,} bytes, and bytes {place:,} to {place + size:,} are needed")
        return _read_at(self._stream.fileno(), place, size)


def hdf5_name(id: str) -> str:
    """Return the name of a dataset for an id. HDF5 reads "/" as a path and "." as the group itself.

    >>> hdf5_name("P12345"), hdf5_name("a/b")
    ('P12345', 'a%2Fb')
    """
    if id == ".":
        return "%2E"
    return id.replace("%", "%25").replace("/", "%2F") if re.search("/|%2[5EF]", id) else id


def _join_tokens(tokens: Iterable[Token]) -> bytes:
    return "\n".join(token.text for token in tokens).encode("utf-8")


def _join_ids(names: Names) -> bytes:
    return "\n".join(names).encode("utf-8")


def _append(stream: Any, content: bytes) -> tuple[int, int, int]:
    """Write at the end of a file, and return place, size and checksum."""
    place = stream.tell()
    stream.write(content)
    return place, len(content), zlib.crc32(content)


def _end_of_data(descriptor: int) -> int:
    """Return the end of the HDF5 data in a file, from its superblock."""
    return int.from_bytes(os.pread(descriptor, 8, _END_OF_FILE), "little")


def _check(checksum: int, content: bytes | bytearray, what: str) -> None:
    if zlib.crc32(content) != checksum:
        raise ValueError(f"the checksum of {what} is wrong")


def _read_at(descriptor: int, place: int, size: int) -> bytearray:
    content = bytearray(size)
    rest = memoryview(content)
    while rest:
        n_read = os.preadv(descriptor, [rest], place)
        if not n_read:
            raise ValueError("the file is cut short")
        rest, place = rest[n_read:], place + n_read
    return content


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
