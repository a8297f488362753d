"""TensorFlow checkpoints, written without TensorFlow and without the package."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _eight_bits(register: int) -> int:
    for _ in range(8):
        register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register


_TABLE = [_eight_bits(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """Byte by byte, as it is defined."""
    register = 0xFFFFFFFF
    for byte in data:
        register = _TABLE[(register ^ byte) & 0xFF] ^ register >> 8
    return register ^ 0xFFFFFFFF


def masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) % 2**32


def varint(number: int) -> bytes:
    data = b""
    while number >= 0x80:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer: a number or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def bundle_entry(array: Array, offset: int, *, dtype: int = 1, shard: int = 0, size: int | None = None) -> bytes:
    data = array.tobytes()
    shape = b"".join(field(2, field(1, n)) for n in array.shape)
    entry = field(1, dtype) + field(2, shape) + field(3, shard) + field(4, offset)
    entry += field(5, len(data) if size is None else size)
    return entry + varint(6 << 3 | 5) + struct.pack("<I", masked(crc32c(data)))


def block(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A block with prefix compression and one restart point."""
    data, before = b"", b""
    for key, value in entries:
        shared = 0
        while shared < min(len(key), len(before)) and key[shared] == before[shared]:
            shared += 1
        data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return data + struct.pack("<II", 0, 1)


def table(blocks: Sequence[bytes], index: bytes | None = None, *, kind: int = 0) -> bytes:
    """Sign the blocks, and add an index, unless there is one, and the footer."""
    data, handles = b"", []

    def add(content: bytes) -> bytes:
        nonlocal data
        handle = varint(len(data)) + varint(len(content))
        signed = content + bytes([kind])
        data += signed + struct.pack("<I", masked(crc32c(signed)))
        return handle

    handles = [add(content) for content in blocks]
    meta = add(block([]))
    root = add(block([(b"%d" % i, handle) for i, handle in enumerate(handles)]) if index is None else index)
    return data + (meta + root).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


HEADER = (b"", field(1, 1))


def write_checkpoint(folder: Path, arrays: dict[str, Array], name: str = "model.ckpt-1") -> None:
    """Write the .index and .data files of float32 arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    data, entries = b"", [HEADER]
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key], np.float32)
        entries.append((key.encode(), bundle_entry(array, len(data))))
        data += array.tobytes()
    half = len(entries) // 2
    (folder / f"{name}.index").write_bytes(table([block(entries[:half]), block(entries[half:])]))
    (folder / f"{name}.data-00000-of-00001").write_bytes(data)
