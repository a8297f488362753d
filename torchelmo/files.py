"""Reading text of any compression line by line, and writing files that are whole or not there at all."""

import bz2
import contextlib
import errno
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from torchelmo.errors import ConfigError, InputError, MissingFileError, OutputError, TorchelmoError

_OPENERS: dict[str, Callable[..., IO[bytes]]] = {
    ".gz": gzip.open,  # type: ignore[dict-item]
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_ADVICE = {
    errno.ENOSPC: "The disk is full: free some space or choose another place.",
    errno.EDQUOT: "Your quota is used up: free some space or choose another place.",
    errno.EACCES: "You may not write there: choose another place or change its permissions.",
    errno.EPERM: "You may not write there: choose another place or change its permissions.",
    errno.EROFS: "That file system is read-only: choose another place.",
    errno.EEXIST: "A part of that path is a file: choose another place.",
    errno.ENOTDIR: "A part of that path is a file: choose another place.",
    errno.EISDIR: "That is a directory: give the name of a file.",
}
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


def require_file(path: str | Path, what: str = "a file") -> Path:
    """`path`, if it is a readable file; an error that says what was expected if not."""
    path = Path(path)
    if path.is_dir():
        raise MissingFileError(f"{path}: expected {what}, found a directory.")
    if not path.exists():
        raise MissingFileError(f"{path}: expected {what}, found nothing. Check the path.")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: expected {what}, but it may not be read. Check its permissions.")
    return path


def read_json(path: str | Path, what: str) -> Any:
    """The content of a JSON file, which should be `what`."""
    path = require_file(path, what)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected JSON in UTF-8: {error}.") from error


def content_hash(path: str | Path) -> str:
    """Of the bytes of a file, or of the names and bytes of all files in a folder."""
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        names = (file.relative_to(path).as_posix() for file in files)
        listed = [f"{name} {content_hash(file)}" for name, file in zip(names, files)]
        return hashlib.sha256("\n".join(listed).encode("utf-8", "surrogateescape")).hexdigest()
    with require_file(path, "a text file").open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def open_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """A plain, .gz, .bz2 or .xz file as bytes; "-" is standard input."""
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    path = require_file(path, "a text file")
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as stream:
            yield stream
    except (*_DAMAGED, OSError) as error:
        # bz2 has no exception of its own: it raises an OSError without a number.
        if not isinstance(error, _DAMAGED) and (type(error) is not OSError or error.errno is not None):
            raise
        raise InputError(
            f"{path}: expected {path.suffix} data, but it is damaged or cut short ({error}). "
            "Copy it again, or unpack it by hand to see how far it reads."
        ) from error


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 text file without their line ends. Only "\\n" and "\\r\\n" end a line."""
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, 1):
            yield decode_line(line, path, number)


def decode_line(line: bytes, path: str | Path, number: int) -> str:
    """Line `number` of a file, counted from 1, without its end; the first one without a byte order mark."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: line {number}: expected UTF-8, found the byte 0x{line[error.start]:02x} at "
            f"column {error.start + 1}. Convert the file first, for example with iconv -t UTF-8."
        ) from error
    return text.removesuffix("\n").removesuffix("\r").removeprefix("\ufeff" if number == 1 else "")


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path`: renamed to `path` when the block succeeds, removed when it does not."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with explaining(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            if temporary.is_file():
                os.chmod(temporary, 0o666 & ~_umask())  # safetensors writes files that only their owner may read
            flush_to_disk(temporary)
            os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                temporary.unlink()


def write_json(path: str | Path, content: Any, *, indent: int | None = 2) -> None:
    """`content` as JSON, whole or not at all. Signs beyond ASCII are escaped: UTF-8 cannot write every string."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent) + "\n", encoding="utf-8")


@contextlib.contextmanager
def explaining(path: str | Path) -> Iterator[None]:
    """Turn an operating-system refusal to write `path` into an OutputError that says what to do."""
    try:
        yield
    except (TorchelmoError, BrokenPipeError):
        raise
    except Exception as error:
        number = _error_number(error)
        if number is None:
            raise
        reason = os.strerror(number) if number else str(error)
        advice = _ADVICE.get(number, "Nothing finished was left behind; try again.")
        raise OutputError(f"{path}: could not be written ({reason}). {advice}") from error


def create_hdf5(path: Path) -> Any:
    """A new h5py.File whose data goes to the disk at once, and whose bytes do not depend on the clock.

    By default HDF5 keeps small writes back until a dataset is closed, where h5py can only print a failure: a full
    disk would leave a damaged file that looks finished.
    """
    import h5py

    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_sieve_buf_size(0)
    # The oldest layout is read everywhere, and its groups carry no time of creation; HDF5 2 writes newer ones unasked.
    access.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)  # as h5py.File itself: closing closes what is in it too
    return h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fapl=access))


def flush_to_disk(path: Path) -> None:
    """Make sure that what was written survives a power cut before a rename makes it visible."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _error_number(error: Exception) -> int | None:
    """The operating system's number for an error, 0 if it has none; None for errors of another kind."""
    if isinstance(error, OSError):
        return error.errno or 0
    # HDF5 and safetensors have exceptions of their own, and tell the number in the text.
    told = re.search(r"(?:errno =|os error) (\d+)", str(error))
    return int(told[1]) if told else None


def _umask() -> int:
    """The permissions that new files of this process do not get; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
