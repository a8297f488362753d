"""Unpack untrusted archives with models: .zip, and .tar that may be compressed.

Members are streamed to a temporary folder. Paths that leave it, links and devices are refused, and so are archives that
expand to far more than weights do.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import re
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from torchelmo.errors import MissingFileError, TorchelmoError, WeightsError, short_repr, shorten
from torchelmo.files import os_errors_as_output_error, require_file
from torchelmo.formats.hdf5 import check_download

MAX_MEMBERS = 10_000
MAX_BYTES = 64 * 2**30  # of all members together
MAX_RATIO, FREE_BYTES = 100, 64 * 2**20  # weights hardly compress; small archives may
_MAX_DEPTH = 8
_CHUNK = 1 << 20
_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_MAGIC: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_FILES_OF_MODELS = re.compile(
    # AllenNLP calls the options of its ELMo fta/….options_file.
    r".*\.(?:json|hdf5|h5|safetensors|txt|txt\.gz|index|data-\d+-of-\d+|pkl|dic|th|options_file)|checkpoint|README",
    re.IGNORECASE,
)


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive, by its name or its first bytes."""
    if path.name.lower().endswith(_SUFFIXES):
        return True
    start = _first_bytes(path)
    return start.startswith((b"PK\x03\x04", *_MAGIC)) or start[257:262] == b"ustar"


@contextlib.contextmanager
def unpack(path: Path) -> Iterator[Path]:
    """Unpack the files of models in an archive into a temporary folder, which is removed in the end.

    Args:
        path: The archive.

    Yields:
        The temporary folder. Other files of the archive are left out.

    Raises:
        MissingFileError: There is no such file.
        OutputError: The temporary folder cannot be written.
        WeightsError: The archive is damaged, too large, or has members that are refused.
    """
    require_file(path, "an archive with a model")
    check_download(path)
    limit = min(MAX_BYTES, FREE_BYTES + MAX_RATIO * path.stat().st_size)
    with tempfile.TemporaryDirectory(prefix="torchelmo-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        budget = _Budget(path, limit)
        try:
            is_zip = _first_bytes(path).startswith(b"PK") or path.suffix.lower() == ".zip"
            (_unpack_zip if is_zip else _unpack_tar)(path, folder, budget)
        except TorchelmoError:
            raise
        except Exception as error:  # the readers report damage in many ways, from zlib.error to NotImplementedError
            raise WeightsError(
                f"{path}: expected an archive (.zip, .tar, .tar.gz), but it is damaged, cut short, encrypted or of "
                f"another kind ({shorten(str(error)) or type(error).__name__}). Download or copy it again."
            ) from error
        yield folder


class _Budget:
    """Count members and bytes, and raise a WeightsError when there are too many."""

    def __init__(self, path: Path, n_bytes: int) -> None:
        self.path, self.limit = path, n_bytes
        self.n_bytes = self.n_members = 0

    def add_member(self) -> None:
        self.n_members += 1
        if self.n_members > MAX_MEMBERS:
            raise WeightsError(f"{self.path}: expected at most {MAX_MEMBERS:,} members, found more.")

    def add_bytes(self, n: int) -> None:
        self.n_bytes += n
        if self.n_bytes > self.limit:
            raise WeightsError(
                f"{self.path}: expands to more than {self.limit:,} bytes, far more than an archive of this size with a "
                "model does. If you trust it, unpack it by hand and load the folder."
            )


class _CountedReader:
    """Read a stream within a budget."""

    def __init__(self, stream: IO[bytes], budget: _Budget) -> None:
        self.stream, self.budget = stream, budget

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(min(size, _CHUNK) if size >= 0 else _CHUNK)
        self.budget.add_bytes(len(data))
        return data


def _unpack_zip(path: Path, folder: Path, budget: _Budget) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            budget.add_member()
            mode = member.external_attr >> 16
            if member.is_dir():
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise _refused(path, member.filename, "a link or device")
            target = _target(path, folder, member.filename)
            if target is not None:
                with archive.open(member) as stream:
                    _copy(_CountedReader(stream, budget), target)


def _unpack_tar(path: Path, folder: Path, budget: _Budget) -> None:
    start = _first_bytes(path)
    opener = next((opener for magic, opener in _MAGIC.items() if start.startswith(magic)), io.FileIO)
    # Read as a stream: skipped members are decompressed, too, and so they count.
    with opener(path) as stream, tarfile.open(fileobj=_CountedReader(stream, budget), mode="r|") as archive:  # type: ignore[call-overload]
        for member in archive:
            budget.add_member()
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise _refused(path, member.name, "a link, device or sparse file")
            target = _target(path, folder, member.name)
            content = archive.extractfile(member) if target is not None else None
            if target is not None and content is not None:
                _copy(content, target)
                if target.stat().st_size != member.size:
                    raise EOFError(f"{member.name} is cut short")


def _target(path: Path, folder: Path, name: str) -> Path | None:
    """Return the path to write a member to, or None if models do not need it."""
    parts = name.removeprefix("./").split("/")
    if len(parts) > _MAX_DEPTH or any(part in ("", ".", "..") for part in parts) or re.search(r"[\\:\0]", name):
        raise _refused(path, name, "a path that may leave the folder")
    if parts[0] == "__MACOSX" or parts[-1].startswith(".") or not _FILES_OF_MODELS.fullmatch(parts[-1]):
        return None
    return folder.joinpath(*parts)


def _copy(stream: "IO[bytes] | _CountedReader", target: Path) -> None:
    with os_errors_as_output_error(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        output = target.open("xb")  # a second member of the same name is an error
    with output:
        while chunk := stream.read(_CHUNK):
            with os_errors_as_output_error(target):
                output.write(chunk)


def _refused(path: Path, name: str, found: str) -> WeightsError:
    return WeightsError(f"{path}: {short_repr(name)}: expected a plain file in the archive, found {found}.")


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(512)
    except OSError as error:
        raise MissingFileError(f"{path}: expected an archive, but it cannot be read ({error}).") from error
