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
import reprlib
import shutil
import stat
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
MAX_JSON_BYTES = 64 * 2**20

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


def read_bounded(path: str | Path, what: str, *, max_bytes: int) -> bytes:
    """Read a whole regular file of bounded size.

    Args:
        path: The file. Links are followed, but a pipe, a device or an endless file is refused.
        what: What the file should be, for error messages.
        max_bytes: The largest size that is read.

    Returns:
        The content of the file.

    Raises:
        ConfigError: The file is too large, or an error occurred while it was read.
        MissingFileError: There is no such file, or it is not a regular file.
    """
    path = require_file(path, what)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would wait for a writer
        with open(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise MissingFileError(f"{path}: expected {what}, found a pipe or a device.")
            content = stream.read(max_bytes + 1)
    except MissingFileError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: expected {what}, but it cannot be read ({error.strerror or error}).") from error
    if len(content) > max_bytes:
        raise ConfigError(f"{path}: expected {what} of at most {max_bytes:,} bytes, found a larger file.")
    return content


def read_json(path: str | Path, what: str, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        what: What the file should be, for error messages.
        max_bytes: The largest file that is read.

    Returns:
        The content of the file.

    Raises:
        ConfigError: The file is not JSON in UTF-8, is too large, or is nested too deeply.
        MissingFileError: There is no such file, or it is not a regular file.
    """
    return parse_json(read_bounded(path, what, max_bytes=max_bytes), str(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON, for example one line of a file of JSON lines.

    Args:
        text: The JSON text, or its UTF-8 bytes.
        where: What an error message names as the source of the text.

    Returns:
        The parsed value.

    Raises:
        ConfigError: The text is not JSON in UTF-8, or is nested too deeply.

    >>> parse_json('{"a": 1}', "card.json")
    {'a': 1}
    """
    try:
        content = json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
        check_depth(content)
    except RecursionError:
        raise ConfigError(f"{where}: expected JSON in UTF-8: it is nested too deeply.") from None
    except ValueError as error:  # covers wrong UTF-8 and numbers of more than 4,300 digits
        raise ConfigError(f"{where}: expected JSON in UTF-8: {error}.") from error
    return content


def check_depth(value: Any, max_depth: int = 64) -> None:
    """Raise a ValueError if lists and dicts are nested more deeply than `max_depth`."""
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {max_depth} levels deep")


def short_repr(value: Any) -> str:
    """Return the repr of a value, cut to about 80 characters, for an error message.

    >>> short_repr([1, 2])
    '[1, 2]'
    """
    try:
        return shorten(reprlib.repr(value) if isinstance(value, (dict, list, tuple, set)) else repr(value))
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits, or deep nesting
        return f"a very long {type(value).__name__}"


def shorten(text: str, width: int = 80) -> str:
    """Cut text to `width` characters, the last of them an ellipsis if something was cut.

    >>> shorten("a long text", 6)
    'a lon…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"


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
