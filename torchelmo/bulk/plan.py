"""Plan the shards of a collection: which rows of which file become which output file.

A plan depends only on the text, the settings and the model. The name of a shard is a hash of its rows and of
everything that determines their vectors, so a file of that name holds these vectors, whoever wrote it. Shards never
cross files. A shard starts at the first row at or after a multiple of the shard size, so a change of some
rows changes few shards.
"""

import dataclasses
import glob
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.errors import InputError, WrongCallError, short_repr
from torchelmo.files import MAX_LINE_BYTES, open_bytes, require_file
from torchelmo.progress import progress
from torchelmo.text.rows import FILE_START, Place, RowReader
from torchelmo.unfinished import read_record, write_record

MARKER = "torchelmo embed, plan of shards, version 2"
DEFAULT_SHARD_BYTES = 4 * 2**20  # of text
MAX_PLAN_BYTES = 2**30
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


class Shard(NamedTuple):
    """Consecutive rows of one file, whose vectors become one file."""

    name: str  # of the output file
    source: int  # the index of the input file
    start: int  # the first row, by its position in the input file
    stop: int  # the position after the last row
    first: int  # the number of the first row in the whole collection
    n_bytes: int  # of text
    offset: int  # of the first row in the file, if the file can be read from there; else 0
    line: int  # the number of the lines before that place
    sha256: str  # of the text

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class Source:
    """An input file, and how it looked when it was planned."""

    path: str
    size: int
    modified: int  # in nanoseconds

    @classmethod
    def of(cls, path: str) -> "Source":
        """Return the present state of a file."""
        status = require_file(path, "a file with text", regular=True).stat()
        return cls(path, status.st_size, status.st_mtime_ns)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The shards of a collection.

    Attributes:
        folder: The output folder.
        settings: Everything that determines the vectors, and the format of the files.
        reading: How the rows of the inputs are read: format, text_column and id_column of a `RowReader`.
        sources: The input files.
        shards: The shards, in the order of the rows.
        cut: The arguments that determine the size of the shards.
    """

    folder: Path
    settings: dict[str, Any]
    reading: dict[str, Any]
    sources: list[Source]
    shards: list[Shard]
    cut: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """The number of rows of all shards."""
        return sum(shard.n_rows for shard in self.shards)

    def reader(self, shard: Shard) -> RowReader:
        """Return a reader of the file that a shard belongs to."""
        return RowReader(self.sources[shard.source].path, **self.reading)

    def save(self) -> None:
        """Write the plan to plan.json in its folder."""
        content = {
            "format": MARKER,
            "settings": self.settings,
            "reading": self.reading,
            "cut": self.cut,
            "sources": [dataclasses.asdict(source) for source in self.sources],
            "shards": [list(shard) for shard in self.shards],
        }
        write_record(self.folder / "plan.json", content)

    @classmethod
    def load(cls, folder: str | Path) -> "Plan":
        """Read the plan of a folder.

        Raises:
            MissingFileError: The folder has no plan.
            InputError: plan.json is not a plan.
        """
        path = Path(folder) / "plan.json"
        content = read_record(path, "the plan of a collection", MARKER, max_bytes=MAX_PLAN_BYTES)
        try:
            return cls(
                Path(folder),
                dict(content["settings"]),
                dict(content["reading"]),
                [Source(**source) for source in content["sources"]],
                [Shard(*shard) for shard in content["shards"]],
                dict(content["cut"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: expected a plan that torchelmo wrote, found something else ({short_repr(str(error))}). "
                "Choose another folder."
            ) from error


def plan_shards(
    inputs: Sequence[str | Path],
    folder: str | Path,
    settings: Mapping[str, Any],
    *,
    reading: Mapping[str, Any] | None = None,
    n_shards: int | None = None,
    shard_size: int | str | None = None,
    suffix: str = ".parquet",
) -> Plan:
    """Divide files into shards. It reads every file once.

    Args:
        inputs: Files, folders (all files in them) and globs, in this order; the files of a folder by name.
        folder: The output folder.
        settings: Everything that determines the vectors, as JSON.
        reading: How the rows are read: format, text_column and id_column of a `RowReader`.
        n_shards: The number of shards, approximately: files are not joined, and rows are not divided.
        shard_size: The size of a shard in bytes of text, or a size such as "64MB". Default: 4 MB.
        suffix: The suffix of the output files.

    Returns:
        The plan. It is not written yet.

    Raises:
        WrongCallError: Both sizes are given, or there are no files.
        InputError: A file cannot be read.
    """
    if n_shards is not None and shard_size is not None:
        raise WrongCallError("Expected `n_shards` or `shard_size`, got both.")
    folder, reading = Path(folder), dict(reading or {})
    paths = find_files(inputs, folder)
    sources = [Source.of(path) for path in paths]
    size = parse_size(shard_size) if shard_size is not None else DEFAULT_SHARD_BYTES
    if n_shards is not None:
        size = max(1, -(-sum(_text_size(source, reading) for source in sources) // max(1, n_shards)))
    shards: list[Shard] = []
    n_rows = 0
    with progress("plan", sum(source.size for source in sources) or None, unit="bytes") as advance:
        for number, source in enumerate(sources):
            for piece in _cut(RowReader(source.path, **reading), size):
                key = [MARKER, settings, reading, piece.sha256, n_rows, suffix]
                digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
                name = f"part-{n_rows:012d}-{digest[:16]}{suffix}"
                rows = (piece.start, piece.stop, n_rows, piece.n_bytes)
                shards.append(Shard(name, number, *rows, *piece.place, piece.sha256))
                n_rows += piece.stop - piece.start
            advance(source.size)
    if not shards:
        raise InputError(f"{', '.join(map(str, inputs))}: expected text, found only empty files.")
    return Plan(folder, dict(settings), reading, sources, shards)


def find_files(inputs: Sequence[str | Path], folder: Path) -> list[str]:
    """Return the files that paths, folders and globs mean, without duplicates.

    Raises:
        WrongCallError: There are none, or the output folder is inside of an input folder.
    """
    found: list[str] = []
    for given in map(str, inputs):
        if given == "-":
            raise WrongCallError("-: standard input cannot be divided into shards. Write it to a file first.")
        if os.path.isdir(given):
            if Path(given).resolve() in (folder.resolve(), *folder.resolve().parents):
                raise WrongCallError(f"`out` {folder}: lies inside of the input {given}. Choose another folder.")
            names = sorted(str(path) for path in Path(given).rglob("*") if path.is_file())
            matches = [name for name in names if not any(part.startswith(".") for part in Path(name).parts)]
        elif not os.path.exists(given) and glob.has_magic(given):
            matches = sorted(path for path in glob.glob(given, recursive=True) if os.path.isfile(path))
        else:
            matches = [given]
        if not matches:
            raise WrongCallError(f"{given}: expected files with text, found none.")
        found += matches
    return list(dict.fromkeys(found))


def parse_size(size: int | str) -> int:
    """Return a size in bytes.

    >>> parse_size("64MB"), parse_size("1.5 kb"), parse_size(1000)
    (64000000, 1500, 1000)
    """
    text = str(size).strip().upper()
    unit = text[-2:] if text[-2:] in _UNITS else ""
    try:
        number = float(text.removesuffix(unit)) * _UNITS.get(unit, 1)
    except ValueError:
        number = 0.0
    if not 1 <= number <= 2**60:
        raise WrongCallError(f"`shard_size` {size}: expected a number of bytes, or a size such as 64MB.")
    return int(number)


def hash_shard(plan: Plan, shard: Shard) -> str:
    """Return the hash of the rows that a shard has now. It differs from `shard.sha256` if the file was changed."""
    digest = hashlib.sha256()
    for row in _raw_rows(plan.reader(shard), shard.start, shard.stop, Place(shard.offset, shard.line)):
        digest.update(row.data)
    return digest.hexdigest()


class _Piece(NamedTuple):
    start: int
    stop: int
    n_bytes: int
    place: Place
    sha256: str


def _cut(reader: RowReader, size: int) -> Iterator[_Piece]:
    """Yield the shards of a file: each starts with the first row at or after a multiple of `size`."""
    total = begin = 0  # bytes of text before this row, and before this shard
    first: _RawRow | None = None
    stop = 0
    digest = hashlib.sha256()
    for row in _raw_rows(reader):
        if first is not None and total // size > begin // size:
            yield _Piece(first.position, stop, total - begin, first.place, digest.hexdigest())
            first, begin, digest = None, total, hashlib.sha256()
        first = first or row
        digest.update(row.data)
        total += len(row.data)
        stop = row.position + 1
    if first is not None:
        yield _Piece(first.position, stop, total - begin, first.place, digest.hexdigest())


class _RawRow(NamedTuple):
    position: int
    place: Place
    data: bytes


def _raw_rows(
    reader: RowReader, start: int = 0, stop: int | None = None, place: Place = FILE_START
) -> Iterator[_RawRow]:
    """Yield the rows as bytes. Lines are not decoded: damage in one is found by the shard that it belongs to."""
    if reader.has_lines:
        yield from _raw_lines(reader, start, stop, place)
        return
    rows = reader.rows(start, stop)
    for row in rows if start or stop is not None else reader.unique(rows):
        yield _RawRow(row.position, FILE_START, json.dumps([row.id, row.text, row.tokens]).encode() + b"\n")


def _raw_lines(reader: RowReader, start: int, stop: int | None, place: Place) -> Iterator[_RawRow]:
    seekable, skip_blank = reader.is_seekable, reader.format == "jsonl"
    position = start if seekable else 0
    offset, number = place
    with open_bytes(reader.path) as stream:
        if offset:
            stream.seek(offset)
        while line := stream.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise InputError(
                    f"{reader.path}: line {number + 1}: expected at most {MAX_LINE_BYTES:,} bytes, found more. "
                    "Split the line."
                )
            if not (skip_blank and not line.decode("utf-8", "replace").strip()):
                if stop is not None and position >= stop:
                    return
                if position >= start:
                    here = Place(offset, number) if seekable else FILE_START
                    yield _RawRow(position, here, line.rstrip(b"\r\n") + b"\n")
                position += 1
            offset, number = offset + len(line), number + 1


def _text_size(source: Source, reading: Mapping[str, Any]) -> int:
    reader = RowReader(source.path, **reading)
    return source.size if reader.is_seekable else sum(len(row.data) for row in _raw_rows(reader))
