"""What an unfinished run has done so far: a folder `OUT.partial`, from which it can go on or be put together.

Vectors are appended to one file and a JSON line for each to another; now and then the sizes of both are
committed. A run that ends at any moment, even by a power cut, leaves all that was committed; what comes
after that is cut off when it is resumed.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.errors import OutputError, WrongCallError
from torchelmo.files import flush_to_disk, os_errors_as_output_error, write_json

Array = npt.NDArray[Any]


class Line(NamedTuple):
    text: str
    shape: tuple[int, ...]  # of its vectors


class Spool:
    """Open it with `create` or `resume`; `append` and `commit`; `lines()` and `arrays()` read it all back."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.settings = dict(settings)
        self.dtype = np.dtype(settings["dtype"])
        self.n_lines = 0
        self.n_committed = 0
        self.vectors = folder / "vectors.bin"
        self._index = folder / "lines.jsonl"
        self._committed = folder / "committed.json"

    @classmethod
    def create(cls, folder: Path, settings: Mapping[str, Any]) -> "Spool":
        """A new one; what stood there before is removed."""
        spool = cls(folder, settings)
        with os_errors_as_output_error(folder):
            if spool.vectors.exists():
                with open(spool.vectors, "rb") as stream:
                    _lock(stream.fileno(), folder)
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        write_json(folder / "settings.json", spool.settings)
        spool._open("xb")
        return spool

    @classmethod
    def resume(cls, folder: Path, settings: Mapping[str, Any]) -> "Spool":
        """Go on with what a run with the same settings left behind."""
        spool = cls(folder, settings)
        if not spool._committed.exists():  # it ended before there was anything to keep
            return cls.create(folder, settings)
        _check_same(folder, _read_json(folder / "settings.json"), spool.settings)
        committed = _read_json(folder / "committed.json")
        spool._open("r+b")
        for name, stream in (("vectors", spool._vectors_stream), ("lines", spool._index_stream)):
            if stream.seek(0, 2) < committed[name]:
                spool.close()
                raise OutputError(f"{folder}: its {name} were cut short. Start again with --overwrite.")
            stream.seek(committed[name])
            stream.truncate()
        spool.n_lines = spool.n_committed = committed["n_lines"]
        return spool

    def append(self, text: str, array: Array) -> None:
        data = np.ascontiguousarray(array, dtype=self.dtype)
        with os_errors_as_output_error(self.folder):
            self._vectors_stream.write(data.data if data.size else b"")
            self._index_stream.write(json.dumps([text, data.shape]).encode() + b"\n")
        self.n_lines += 1

    def commit(self) -> None:
        """All lines so far survive whatever comes."""
        sizes = {"n_lines": self.n_lines}
        with os_errors_as_output_error(self.folder):
            for name, stream in (("vectors", self._vectors_stream), ("lines", self._index_stream)):
                stream.flush()
                flush_to_disk(Path(stream.name))
                sizes[name] = stream.tell()
        write_json(self._committed, sizes, indent=None)
        self.n_committed = self.n_lines

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk was reported when it was written
            self._streams.close()

    def lines(self) -> Iterator[Line]:
        """Every committed line, in order."""
        with open(self._index, "rb") as stream:
            for _, record in zip(range(self.n_committed), stream):
                text, shape = json.loads(record)
                yield Line(text, tuple(shape))

    def arrays(self) -> Iterator[Array]:
        """The vectors of every committed line, one at a time."""
        with open(self.vectors, "rb") as stream:
            for line in self.lines():
                count = int(np.prod(line.shape))
                yield np.fromfile(stream, self.dtype, count).reshape(line.shape)

    def leave(self, error: BaseException) -> None:
        """After a failure: say how to go on, or tidy up where there is nothing to go on from."""
        self.close()
        if self.n_committed:
            error.add_note(f"{self.folder} keeps the first {self.n_committed:,} lines; --resume goes on from there.")
        else:
            self.remove()

    def remove(self) -> None:
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _open(self, mode: str) -> None:
        with os_errors_as_output_error(self.folder), contextlib.ExitStack() as streams:
            self._vectors_stream = streams.enter_context(open(self.vectors, mode))
            self._index_stream = streams.enter_context(open(self._index, mode))
            _lock(self._vectors_stream.fileno(), self.folder)
            self._streams = streams.pop_all()  # closed by close


def _check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    for name, value in now.items():
        if before.get(name) != value:
            raise WrongCallError(
                f"{folder}: was begun with {name} = {before.get(name)!r}, this call has {value!r}. "
                "Give --resume with the arguments of the first call, or start again with --overwrite."
            )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot go on from this ({error}). Start again with --overwrite.") from error
    assert isinstance(content, dict)
    return content


def _lock(descriptor: int, folder: Path) -> None:
    """Two runs must not write one file; the system lifts the lock when a process ends in any way."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputError(f"{folder}: another run is writing there. Wait for it, or choose another --out.") from error
