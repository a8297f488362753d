"""Read text and small data files safely, and write files and folders that are either complete or absent.

Reading: `read_lines` for text of any size and compression, `read_json` and `parse_json` for small data.
Writing: `atomic_write` for results that must never look finished when they are not, `hold_lock` against other writers.
"""

import bz2
import contextlib
import errno
import gzip
import hashlib
import json
import lzma
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from torchelmo.errors import BusyError, ConfigError, InputError, MissingFileError, OutputError, TorchelmoError, shorten

MAX_JSON_BYTES = 64 * 2**20
MAX_LINE_BYTES = 16 * 2**20  # a line is read as a whole, so this bounds the memory

_OPENERS: dict[str, Callable[..., IO[bytes]]] = {
    ".gz": gzip.open,  # type: ignore[dict-item]
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
_ADVICE = {
    errno.ENOSPC: "The disk is full: free some space or choose another place.",
    errno.EDQUOT: "Your disk quota is used up: free some space or choose another place.",
    errno.EACCES: "You have no permission to write there: choose another place or change its permissions.",
    errno.EPERM: "You have no permission to write there: choose another place or change its permissions.",
    errno.EROFS: "That file system is read-only: choose another place.",
    errno.EEXIST: "A part of that path is a file: choose another place.",
    errno.ENOTDIR: "A part of that path is a file: choose another place.",
    errno.EISDIR: "That is a directory: give the name of a file.",
    errno.ENAMETOOLONG: "The name is too long: choose a shorter one.",
}


def require_file(path: str | Path, what: str = "a file", *, regular: bool = False) -> Path:
    """Return `path` if it is a readable file.

    Args:
        path: The file.
        what: A description of the expected file, for error messages.
        regular: Refuse pipes and devices, which have no end or no size.

    Returns:
        The path.

    Raises:
        MissingFileError: There is no such file, or it is a directory.
        InputError: The file may not be read.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"{path}: expected {what}, found nothing. Check the path.") from None
    except (OSError, ValueError) as error:  # for example a name that is too long, a loop of links, or a zero byte
        raise MissingFileError(f"{shorten(str(path))!r}: expected {what}, but: {error}. Check the path.") from error
    if stat.S_ISDIR(mode):
        raise MissingFileError(f"{path}: expected {what}, found a directory.")
    if regular and not stat.S_ISREG(mode):
        raise MissingFileError(f"{path}: expected {what}, found a pipe or a device. Give a regular file.")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: expected {what}, but it may not be read. Check its permissions.")
    return path


def source_name(path: str | Path) -> str:
    """Return how messages name an input: its path, or "standard input" for "-".

    >>> source_name("-"), source_name("text.txt")
    ('standard input', 'text.txt')
    """
    return "standard input" if str(path) == "-" else str(path)


@contextlib.contextmanager
def open_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a plain, .gz, .bz2 or .xz file for reading bytes; "-" is standard input."""
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    path = require_file(path, "a text file")
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as stream:
            yield stream
    except (*_DAMAGED, OSError) as error:
        # bz2 has no exception class: it raises an OSError without a number.
        if not isinstance(error, _DAMAGED) and (type(error) is not OSError or error.errno is not None):
            raise
        raise InputError(
            f"{path}: expected {path.suffix} data, but it is damaged or cut short ({error}). "
            "Copy it again, or unpack it by hand to see how far it can be read."
        ) from error


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file without their line ends. Only "\\n" and "\\r\\n" end a line.

    Args:
        path: A plain, .gz, .bz2 or .xz file, or "-" for standard input.

    Yields:
        Every line, read when it is asked for.

    Raises:
        InputError: A line is not UTF-8 or is longer than 16 MB, or compressed data is damaged.
        MissingFileError: There is no such file.
    """
    with open_bytes(path) as stream:
        number = 0
        while line := _read_line(stream, path, number + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise InputError(
                    f"{source_name(path)}: line {number}: expected at most {MAX_LINE_BYTES:,} bytes, found more. "
                    "Split the line."
                )
            yield decode_line(line, path, number)


def _read_line(stream: IO[bytes], path: str | Path, number: int) -> bytes:
    try:
        return stream.readline(MAX_LINE_BYTES + 1)
    except OSError as error:
        if error.errno is None:  # damaged compression, which open_bytes reports
            raise
        raise InputError(f"{source_name(path)}: line {number}: could not be read ({error.strerror}).") from error


def decode_line(line: bytes, path: str | Path, number: int) -> str:
    """Return line `number` of a file as text, without its line end; line 1 without a byte order mark."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source_name(path)}: line {number}: expected UTF-8, found the byte 0x{line[error.start]:02x} at "
            f"column {error.start + 1}. Convert the file first, for example with iconv -t UTF-8."
        ) from error
    return text.removesuffix("\n").removesuffix("\r").removeprefix("\ufeff" if number == 1 else "")


def read_bounded(path: str | Path, what: str, *, max_bytes: int) -> bytes:
    """Read a whole regular file of bounded size.

    Args:
        path: The file. Links are followed, but a pipe, a device or an endless file is refused.
        what: A description of the expected file, for error messages.
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
        what: A description of the expected file, for error messages.
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
        where: The source of the text, for error messages.

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


def content_hash(path: str | Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of all files in a folder."""
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        names = (file.relative_to(path).as_posix() for file in files)
        listed = [f"{name} {content_hash(file)}" for name, file in zip(names, files)]
        return hashlib.sha256("\n".join(listed).encode("utf-8", "surrogateescape")).hexdigest()
    with require_file(path, regular=True).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Write a file or a folder that is complete when it appears under its name.

    The block writes to the temporary path that it is given: a new file or a new folder of that name. When the block
    succeeds, the result is renamed to `path`; when it fails, nothing remains of it, nor of parent folders that were
    created for it. Leftovers of processes that were killed are removed by the next call for the same path.

    Args:
        path: The file or folder to write. Missing parent folders are created.

    Yields:
        The path to write to. It lies in a private folder beside `path`, so that no other user can put a link there.

    Raises:
        OutputError: The operating system refused to write.
    """
    path = Path(path)
    created: list[Path] = []
    private: Path | None = None
    try:
        with os_errors_as_output_error(path):
            created = make_folders(path.parent)
            _remove_leftovers(path)
            private = Path(
                tempfile.mkdtemp(prefix=f"{_leftover_prefix(path)}{os.getpid()}-", suffix=".tmp", dir=path.parent)
            )
            temporary = private / path.name
            yield temporary
            if temporary.is_file():
                os.chmod(temporary, 0o666 & ~_umask())  # safetensors writes files that only their owner may read
            flush_to_disk(temporary)
            os.replace(temporary, path)
            created = []
    finally:
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)
        remove_empty_folders(created)


def make_folders(folder: Path) -> list[Path]:
    """Create a folder and its parents, and return those that did not exist, innermost first."""
    missing = []
    for parent in (folder, *folder.parents):
        if parent.exists():
            break
        missing.append(parent)
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def remove_empty_folders(folders: list[Path]) -> None:
    """Remove those of the folders that are empty: a failed call leaves no empty folder."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def write_json(path: str | Path, content: Any, *, indent: int | None = 2) -> None:
    """Write a JSON file, all or nothing. Characters beyond ASCII are escaped: UTF-8 cannot encode every string."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent) + "\n", encoding="utf-8")


@contextlib.contextmanager
def hold_lock(path: str | Path, what: str) -> Iterator[None]:
    """Hold a lock file, so that no second process writes the same output.

    The operating system releases the lock when the process ends in any way, so a lock never outlives its owner.

    Args:
        path: The lock file. It is created, and removed in the end; a killed process leaves it behind, unlocked.
        what: The name of the output, for error messages.

    Raises:
        BusyError: Another process holds the lock. The message names its process id.
    """
    while True:
        with os_errors_as_output_error(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o666)
        with open(descriptor, "r+", encoding="utf-8", errors="replace") as stream:
            if not _lock(descriptor):
                owner = shorten(stream.read(100).strip(), 40) or "another process"
                raise BusyError(f"{what}: {owner} is writing there. Wait for it to end, or choose another output.")
            if not os.fstat(descriptor).st_nlink:
                continue  # the owner before us removed the file after we had opened it
            with os_errors_as_output_error(path):
                stream.truncate(0)
                stream.write(f"process {os.getpid()} on {platform.node()}")
                stream.flush()
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(path)  # before the lock is released: afterwards the file may belong to another process
            return


@contextlib.contextmanager
def os_errors_as_output_error(path: str | Path) -> Iterator[None]:
    """Turn the operating system's refusal to write `path` into an OutputError with advice."""
    try:
        yield
    except (TorchelmoError, BrokenPipeError):
        raise
    except Exception as error:
        number = _error_number(error)
        if number is None:
            raise
        reason = os.strerror(number) if number else str(error)
        advice = _ADVICE.get(number, "Nothing unfinished was left behind; try again.")
        raise OutputError(f"{path}: could not be written ({reason}). {advice}") from error


def create_hdf5(path: Path) -> Any:
    """Create an h5py.File that writes its data at once, and whose bytes do not depend on the time of writing.

    By default, HDF5 holds small writes back until a dataset is closed, where h5py can only print a failure: a full
    disk would leave a damaged file that looks finished.
    """
    import h5py

    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_sieve_buf_size(0)
    # The oldest layout can be read everywhere, and its groups hold no creation time. HDF5 2 defaults to newer ones.
    access.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)  # as h5py.File does: closing the file closes its objects
    return h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fapl=access))


def flush_to_disk(path: Path) -> None:
    """Flush a file or folder to the disk, so that it survives a power cut before a rename makes it visible."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _leftover_prefix(path: Path) -> str:
    """The start of the names of temporary folders for `path` that this machine makes."""
    machine = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
    return f".{os.fsdecode(os.fsencode(path.name)[:120])}.{machine}-"


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary folders for `path` that processes of this machine left behind when they were killed."""
    prefix = _leftover_prefix(path)
    for entry in path.parent.iterdir():
        if not entry.name.startswith(prefix):
            continue
        name = re.fullmatch(r"(\d+)-\w{8}\.tmp", entry.name[len(prefix) :])
        if name and not _is_running(int(name[1])) and entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it belongs to another user
        return True
    return True


def _lock(descriptor: int) -> bool:
    """Take an exclusive lock without waiting; return whether that succeeded."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _error_number(error: Exception) -> int | None:
    """The operating system's number of an error, 0 if it has none; None for errors of another kind."""
    if isinstance(error, OSError):
        return error.errno or 0
    # HDF5 and safetensors raise other exceptions, with the number in the message.
    match = re.search(r"(?:errno =|os error) (\d+)", str(error))
    return int(match[1]) if match else None


def _umask() -> int:
    """The permission bits that this process withholds from new files; they can only be read by setting them."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
