"""Read the tensors of TensorFlow checkpoints without TensorFlow: NAME.index + NAME.data-00000-of-00001.

The index is a LevelDB table: sorted entries in blocks, with a footer that points to the block of blocks. An entry says
which bytes of the data file are a tensor. Every block and every tensor that is used has a checksum, which is checked.
"""

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.errors import WeightsError
from torchelmo.files import read_bounded, require_file
from torchelmo.formats.hdf5 import check_download
from torchelmo.tensors import check_finite

_MAX_INDEX_BYTES = 64 * 2**20  # that of the original model has a few kilobytes
_MAX_SHARDS = 1000
_FOOTER_BYTES, _MAGIC = 48, 0xDB4775248B80FB57
FLOAT32 = 1  # of TensorFlow's DataType


class Entry(NamedTuple):
    """The type, shape and place of a variable."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int  # masked CRC-32C
    is_partitioned: bool = False  # stored in slices under other names


class Checkpoint(NamedTuple):
    """The variables of a checkpoint."""

    prefix: Path  # the path of the files without .index
    n_shards: int
    entries: dict[str, Entry]

    def read(self, name: str) -> Tensor:
        """Read a float32 variable, and check its checksum."""
        entry, path = self.entries[name], self.data_path(self.entries[name].shard)
        where = f"{path}: {name}"
        data = np.empty(entry.size, np.uint8)
        try:
            with path.open("rb") as stream:  # not mapped: the pages of the file would count as memory of the process
                stream.seek(entry.offset)
                n_read = stream.readinto(data.data)
        except (OSError, ValueError) as error:
            raise WeightsError(f"{where}: cannot be read ({error}). Copy the checkpoint again.") from error
        if n_read != entry.size or mask(crc32c(data)) != entry.checksum:
            raise WeightsError(f"{where}: the checksum is wrong: the file is damaged. Copy the checkpoint again.")
        tensor = torch.from_numpy(data.view("<f4").astype(np.float32, copy=False).reshape(entry.shape))
        check_finite(tensor, where)
        return tensor

    def data_path(self, shard: int) -> Path:
        """Return the file that contains the tensors of a shard."""
        return self.prefix.with_name(f"{self.prefix.name}.data-{shard:05}-of-{self.n_shards:05}")


def read_checkpoint(prefix: Path) -> Checkpoint:
    """Read the index of a checkpoint, and check that the data files are long enough.

    Args:
        prefix: The path of the files without .index.

    Returns:
        The variables. Their numbers are read later.

    Raises:
        MissingFileError: A file is missing.
        WeightsError: The index is damaged, or uses something that bilm-tf does not write.
    """
    path = Path(f"{prefix}.index")
    require_file(path, "the index of a TensorFlow checkpoint")
    check_download(path)
    if path.stat().st_size > _MAX_INDEX_BYTES:
        raise WeightsError(f"{path}: expected at most {_MAX_INDEX_BYTES:,} bytes, found {path.stat().st_size:,}.")
    data = read_bounded(path, "the index of a TensorFlow checkpoint", max_bytes=_MAX_INDEX_BYTES)
    try:
        values = dict(_table_entries(data))
        n_shards = _parse_header(values.pop("", b""))
        entries = {name: _parse_entry(value) for name, value in values.items()}
        checkpoint = Checkpoint(prefix, n_shards, entries)
        _check_entries(checkpoint)
    except _DamagedError as error:
        raise WeightsError(
            f"{path}: expected the index of a TensorFlow checkpoint: {error}. Copy the checkpoint again."
        ) from None
    return checkpoint


def _check_entries(checkpoint: Checkpoint) -> None:
    sizes: dict[int, int] = {}
    for name, entry in checkpoint.entries.items():
        if entry.shard >= checkpoint.n_shards:
            raise _DamagedError(f"{name} is in shard {entry.shard} of {checkpoint.n_shards}")
        if entry.shard not in sizes:
            path = require_file(checkpoint.data_path(entry.shard), "the data of a TensorFlow checkpoint")
            check_download(path)
            sizes[entry.shard] = path.stat().st_size
        if entry.offset + entry.size > sizes[entry.shard]:
            raise _DamagedError(
                f"{name} ends at byte {entry.offset + entry.size:,} of {checkpoint.data_path(entry.shard).name}, "
                f"which has {sizes[entry.shard]:,} bytes; it may be cut short"
            )
        n_values = 1
        for size in entry.shape:
            n_values *= size
        if entry.dtype == FLOAT32 and entry.size != 4 * n_values and not entry.is_partitioned:
            raise _DamagedError(f"{name} has the shape {entry.shape} and {entry.size} bytes, which do not match")


# The table


class _DamagedError(Exception):
    """The index cannot be read; the message says why."""


def _table_entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the entries of a LevelDB table."""
    if len(data) < _FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise _DamagedError("it does not end with the magic number of a LevelDB table")
    footer = data[-_FOOTER_BYTES:-8]
    position = 0
    handle = []
    for _ in range(4):  # offset and size of the metaindex, then of the index
        number, position = _varint(footer, position)
        handle.append(number)
    for _, block in _block_entries(_block(data, handle[2], handle[3])):
        offset, position = _varint(block, 0)
        size, _ = _varint(block, position)
        for key, value in _block_entries(_block(data, offset, size)):
            if key.startswith(b"\0"):
                continue  # a slice of a partitioned variable
            try:
                yield key.decode("utf-8"), value
            except UnicodeDecodeError:
                raise _DamagedError(f"the name {key!r:.60} is not UTF-8") from None


def _block(data: bytes, offset: int, size: int) -> bytes:
    """Return a block, after a check of its type and checksum."""
    if offset + size + 5 > len(data) - _FOOTER_BYTES:
        raise _DamagedError(f"a block at {offset} with {size} bytes lies outside of the file")
    kind = data[offset + size]
    (checksum,) = struct.unpack("<I", data[offset + size + 1 : offset + size + 5])
    if mask(crc32c(np.frombuffer(data, np.uint8, size + 1, offset))) != checksum:
        raise _DamagedError(f"the checksum of the block at {offset} is wrong")
    if kind != 0:
        raise _DamagedError(f"the block at {offset} is compressed (type {kind}), which TensorFlow does not do")
    return data[offset : offset + size]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:
        raise _DamagedError("a block is too short")
    (n_restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (n_restarts + 1)
    if end < 0:
        raise _DamagedError("a block is too short for its restart points")
    position, key = 0, b""
    while position < end:
        shared, position = _varint(block, position)
        rest, position = _varint(block, position)
        length, position = _varint(block, position)
        if shared > len(key) or position + rest + length > end:
            raise _DamagedError("an entry reaches beyond its block")
        key = key[:shared] + block[position : position + rest]
        position += rest
        yield key, block[position : position + length]
        position += length


# Protocol buffers


def _parse_header(message: bytes) -> int:
    """Return the number of shards of a BundleHeaderProto."""
    fields = dict(_fields(message))
    n_shards = _number(fields.get(1, 1), "num_shards")
    if not 1 <= n_shards <= _MAX_SHARDS:
        raise _DamagedError(f"it has {n_shards} data files; expected 1 to {_MAX_SHARDS}")
    if fields.get(2, 0) != 0:
        raise _DamagedError("its numbers are big-endian, which is not supported")
    return n_shards


def _parse_entry(message: bytes) -> Entry:
    """Parse a BundleEntryProto."""
    fields: dict[int, Any] = dict(_fields(message))
    shape = []
    for number, dim in _fields(_bytes(fields.get(2, b""))):
        if number == 2:
            shape.append(_number(dict(_fields(_bytes(dim))).get(1, 0), "a size"))
    names = {1: "dtype", 3: "shard_id", 4: "offset", 5: "size", 6: "crc32c"}
    dtype, shard, offset, size, checksum = (_number(fields.get(i, 0), name) for i, name in names.items())
    if len(shape) > 8 or max([*shape, offset, size]) > 2**48:
        raise _DamagedError(f"an entry is too large: {size} bytes at {offset}, shape {tuple(shape[:8])}")
    return Entry(dtype, tuple(shape), shard, offset, size, checksum, is_partitioned=7 in fields)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field of a message."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        value: int | bytes
        if kind == 0:
            value, position = _varint(message, position)
        else:
            length = {1: 8, 5: 4}.get(kind)
            if kind == 2:
                length, position = _varint(message, position)
            if length is None or position + length > len(message):
                raise _DamagedError("an entry is damaged")
            value = message[position : position + length]
            position += length
            if kind != 2:
                value = int.from_bytes(value, "little")
        yield tag >> 3, value


def _number(value: int | bytes, name: str) -> int:
    if not isinstance(value, int):
        raise _DamagedError(f"{name} of an entry is not a number")
    return value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise _DamagedError("the shape of an entry is damaged")
    return value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, 7 bits per byte, and the position after it."""
    number = shift = 0
    while shift < 64:
        if position >= len(data):
            raise _DamagedError("a number is cut short")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise _DamagedError("a number is too long")


# CRC-32C

_CHUNK = 1 << 16  # words that are folded at a time
# The polynomial of CRC-32C divides x^5685 + x^1362 + x^426 + 1. It then also divides this polynomial of x^32, because
# squaring a polynomial over GF(2) squares each of its terms. So the word at i may be removed from the data if it is
# added (XOR) to the words at i + 5685 − 1362, i + 5685 − 426 and i + 5685.
_FOLDS = (5685 - 1362, 5685 - 426, 5685)


def mask(checksum: int) -> int:
    """Return a checksum as TensorFlow stores it.

    >>> hex(mask(0xE3069283))
    '0xc78ab0e5'
    """
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: npt.NDArray[np.uint8]) -> int:
    """Return the CRC-32C of bytes, at about the speed of reading them from memory.

    >>> hex(crc32c(np.frombuffer(b"123456789", np.uint8)))
    '0xe3069283'
    """
    n_words = len(data) // 4 - _FOLDS[-1] - 1  # the words that can be folded into words after them
    if n_words <= 0:
        return _crc32c_by_table(data.tobytes())
    words = data[: 4 * (n_words + _FOLDS[-1])].view("<u4")
    carry = np.zeros(_FOLDS[-1], np.uint32)
    carry[0] = 0xFFFFFFFF  # the initial value of the register
    for start in range(0, n_words, _CHUNK):
        n = min(_CHUNK, n_words - start)
        folded = np.zeros(n + len(carry), np.uint32)
        folded[:n] = words[start : start + n]
        folded[: len(carry)] ^= carry
        for i in range(0, n, _FOLDS[0]):
            block = folded[i : min(i + _FOLDS[0], n)]
            for fold in _FOLDS:
                folded[i + fold : i + fold + len(block)] ^= block
        carry = folded[n:]
    rest = np.concatenate([(words[n_words:] ^ carry).astype("<u4").view(np.uint8), data[4 * len(words) :]])
    return _crc32c_by_table(rest.tobytes(), 0)


def _crc32c_by_table(data: bytes, register: int = 0xFFFFFFFF) -> int:
    table = _crc_table()
    for byte in data:
        register = table[(register ^ byte) & 0xFF] ^ register >> 8
    return register ^ 0xFFFFFFFF


@cache
def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table
