"""Read a collection that `embed_files` wrote: `torchelmo.bulk.open`."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from torchelmo.bulk.outputs import Array
from torchelmo.bulk.shards import Record, read_manifest
from torchelmo.bulk.vectors import VectorFile
from torchelmo.errors import InputError
from torchelmo.files import content_hash
from torchelmo.text.tokenize import Token

MAX_OPEN_FILES = 8  # shards that are kept open


class Origin(NamedTuple):
    """The source of a row of a collection."""

    path: str  # the input file
    row: int  # the position in that file, from 0


class Collection(Sequence[Array]):
    """The vectors of a collection, by their numbers from 0 or by their ids. Use it in a `with` statement.

    Files are opened when one of their rows is read. Only the manifest is in memory, and 16 bytes for each row after the
    first call of `find`.

    Args:
        folder: The output folder of `embed_files` or `torchelmo embed`.
        check: Compare the SHA-256 of every file with the manifest first, which reads all files.

    Raises:
        MissingFileError: The collection is not finished.
        InputError: A file is missing or was changed, or the rows of the files do not add up to those of the manifest.
    """

    def __init__(self, folder: str | Path, *, check: bool = False) -> None:
        self.path = Path(folder)
        manifest = read_manifest(folder)
        try:
            self.settings: dict[str, Any] = manifest["settings"]
            self.n_tokens = int(manifest["n_tokens"])
            self._sources: list[str] = manifest["sources"]
            self._shards = [Record(*(shard[name] for name in Record._fields)) for shard in manifest["shards"]]
            self._origins = [(int(shard["source"]), int(shard["start"])) for shard in manifest["shards"]]
            self.has_ids = bool(manifest["has_ids"])
            n_rows = int(manifest["n_rows"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.path}/manifest.json: is damaged ({error!r}).") from error
        self._ends = np.cumsum([shard.n_rows for shard in self._shards], dtype=np.int64)
        if self._ends[-1] != n_rows or [0, *self._ends[:-1].tolist()] != [shard.first for shard in self._shards]:
            raise InputError(
                f"{self.path}/manifest.json: is damaged: the rows of its files do not add up to {n_rows:,}."
            )
        for shard in self._shards:
            self._check_file(shard, content=check)
        self._open_files: dict[int, VectorFile] = {}
        self._index: tuple[Array, Array] | None = None

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: Any) -> Any:
        file, line = self._locate(row)
        return file[line]

    def __iter__(self) -> Iterator[Array]:
        for row in range(len(self)):
            yield self[row]

    def tokens(self, row: int) -> list[Token]:
        """Return the tokens of a row with their character offsets."""
        file, line = self._locate(row)
        return file.tokens(line)

    def origin(self, row: int) -> Origin:
        """Return the input file of a row, and its position there."""
        number = self._shard_of(row)
        source, start = self._origins[number]
        return Origin(self._sources[source], start + row % len(self) - self._shards[number].first)

    def id(self, row: int) -> str:
        """Return the id of a row: that of the input, or else its number."""
        if not self.has_ids:
            self._shard_of(row)  # raises an IndexError
            return str(row % len(self))
        file, line = self._locate(row)
        return file.ids[line]

    def find(self, id: str | int) -> int:
        """Return the number of the row with an id. The first call reads all ids.

        Raises:
            KeyError: No row has this id.
            InputError: Several rows have it.
        """
        if not self.has_ids:
            if not str(id).isdecimal() or int(id) >= len(self):
                raise KeyError(id)
            return int(id)
        if self._index is None:
            hashes = np.fromiter((_hash(id) for id in self._ids()), dtype=np.uint64, count=len(self))
            order = np.argsort(hashes, kind="stable")
            self._index = hashes[order], order
        hashes, order = self._index
        wanted = _hash(str(id))
        first, last = np.searchsorted(hashes, wanted, "left"), np.searchsorted(hashes, wanted, "right")
        rows = [int(row) for row in order[first:last] if self.id(int(row)) == str(id)]
        if not rows:
            raise KeyError(id)
        if len(rows) > 1:
            places = " and ".join(f"{self.origin(row).path}, row {self.origin(row).row + 1:,}" for row in rows[:2])
            raise InputError(f"{self.path}: the id {id!r} is not unique: {places}.")
        return rows[0]

    def close(self) -> None:
        """Close all files."""
        for file in self._open_files.values():
            file.close()
        self._open_files.clear()

    def __enter__(self) -> "Collection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _ids(self) -> Iterator[str]:
        for shard in self._shards:
            with VectorFile(self.path / shard.name) as file:
                yield from file.ids

    def _shard_of(self, row: int) -> int:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row}: the collection has {len(self):,} rows.")
        return int(np.searchsorted(self._ends, row % len(self), side="right"))

    def _locate(self, row: int) -> tuple[VectorFile, int]:
        number = self._shard_of(row)
        shard = self._shards[number]
        if number in self._open_files:
            self._open_files[number] = self._open_files.pop(number)  # the last is the most recently used
        else:
            file = VectorFile(self.path / shard.name)
            if len(file) != shard.n_rows:
                file.close()
                raise InputError(f"{self.path / shard.name}: expected {shard.n_rows:,} rows, found {len(file):,}.")
            self._open_files[number] = file
            if len(self._open_files) > MAX_OPEN_FILES:
                self._open_files.pop(next(iter(self._open_files))).close()
        return self._open_files[number], row % len(self) - shard.first

    def _check_file(self, shard: Record, *, content: bool) -> None:
        path = self.path / shard.name
        size = path.stat().st_size if path.is_file() else None
        if size != shard.n_bytes or (content and content_hash(path) != shard.sha256):
            found = "none" if size is None else f"{size:,}" if size != shard.n_bytes else "others"
            raise InputError(
                f"{path}: expected the {shard.n_bytes:,} bytes of the manifest, found {found}. Remove the file and run "
                "the command again: it writes only this file."
            )


def open(folder: str | Path, *, check: bool = False) -> Collection:
    """Open a collection that `embed_files` or `torchelmo embed --out DIR/` wrote. See `Collection`."""
    return Collection(folder, check=check)


def _hash(id: str) -> int:
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little")
