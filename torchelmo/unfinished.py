"""Unfinished output: the folder OUT.partial of a job that writes OUT, from which an interrupted run is resumed.

Each kind of job has its own files in the folder. All kinds have these:

settings.json   marks the folder as that of a job of this kind, and says what the run was started with; with a checksum
lock            held by the process that writes here
"""

import contextlib
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from torchelmo.errors import InputError, OutputError, OutputExistsError, TorchelmoError, WrongCallError, short_repr
from torchelmo.files import (
    MAX_JSON_BYTES,
    flush_to_disk,
    hold_lock,
    make_folders,
    os_errors_as_output_error,
    read_json,
    remove_empty_folders,
    write_json,
)

_CARD = "settings.json"


def check_output(
    out: Path,
    kind: str,
    *,
    resume: bool,
    overwrite: bool,
    suffixes: Sequence[str] = (),
    inputs: Iterable[str | Path] = (),
) -> None:
    """Check everything about an output that can be known before any work.

    Args:
        out: The file to write.
        kind: The kind of job.
        resume: Continue an interrupted run.
        overwrite: Replace an existing output, and start again if a run was interrupted.
        suffixes: The suffixes that the output may have; empty for any.
        inputs: The files that the job reads, which it must not replace.

    Raises:
        WrongCallError: The arguments contradict each other, or `out` is not the name of a file that can be written.
        OutputExistsError: The output exists, or an earlier run was interrupted, and the call does not say what to do.
    """
    if resume and overwrite:
        raise WrongCallError(
            "Expected resume=True, which continues a run, or overwrite=True, which starts again; got both."
        )
    if suffixes and out.suffix not in suffixes:
        raise WrongCallError(f"`out` {out}: expected a name that ends in {', '.join(suffixes)}.")
    if out.is_dir():
        raise WrongCallError(f"`out` {out}: expected the name of a file, found a directory.")
    if out.exists() and any(Path(path).exists() and os.path.samefile(path, out) for path in inputs):
        raise WrongCallError(f"`out` {out}: is the input itself. Choose another name.")
    if out.exists() and not (overwrite or resume):
        raise OutputExistsError(f"`out` {out}: exists. Choose another name, or replace it with overwrite=True.")
    partial = partial_folder(out)
    if not partial.exists() and not partial.is_symlink():
        return
    if not is_partial(partial, kind):
        raise OutputExistsError(
            f"{partial}: expected the unfinished output of an earlier run, found something else, which was left alone. "
            "Move it away, or choose another `out`."
        )
    if not (resume or overwrite):
        raise OutputExistsError(
            f"{partial}: an earlier run was interrupted. Continue it with resume=True, or start again with "
            "overwrite=True."
        )


def partial_folder(out: Path) -> Path:
    """Return the folder for the unfinished output of a run."""
    return out.with_name(out.name + ".partial")


def is_partial(folder: Path, kind: str) -> bool:
    """Return whether a folder is the unfinished output of a job of this kind, and not something else of that name."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    if all(path.name == "lock" or path.name.startswith(f".{_CARD}.") for path in folder.iterdir()):
        return True  # its process was killed before the settings were written
    try:
        card = read_json(folder / _CARD, "settings")
    except TorchelmoError:
        return False
    return isinstance(card, dict) and card.get("format") == _marker(kind)


def compare_settings(found: Any, expected: Mapping[str, Any], where: Path) -> None:
    """Check that a run was started with the settings of this call.

    Raises:
        WrongCallError: A setting is another one.
        OutputError: The settings of the run are missing.
    """
    if not isinstance(found, dict):
        raise OutputError(f"{where}: expected the settings of its run, found none. Start again with overwrite=True.")
    for name, value in expected.items():
        if found.get(name) != value:
            raise WrongCallError(
                f"{where}: was started with {name} = {short_repr(found.get(name))}, this call has {short_repr(value)}. "
                "Use resume=True with the arguments of the first call, or overwrite=True."
            )


class Unfinished:
    """An unfinished output: a folder that one process at a time writes to.

    Args:
        out: The output file; the folder is OUT.partial.
        kind: The kind of job, such as "embed".
        settings: Everything that determines the output. A run is resumed only with the settings it was started with.
        files: The names of all files in the folder, without the two that every kind of job has.
        unit: What `n_committed` counts, in the plural.

    Attributes:
        n_committed: How many units are written and safe: they survive a kill or a power cut.
    """

    def __init__(
        self, out: Path, kind: str, settings: Mapping[str, Any], files: Sequence[str], *, unit: str = "lines"
    ) -> None:
        self.out, self.kind, self.settings, self.unit = out, kind, dict(settings), unit
        self.folder = partial_folder(out)
        self.n_committed = 0
        self._files = files
        self._started = False  # by this process: then it may remove the folder
        self._stack = contextlib.ExitStack()  # what is closed before the folder is removed

    @contextlib.contextmanager
    def open(self) -> Iterator[Self]:
        """Create the folder if necessary, and lock it. After a failure, remove it if nothing in it is safe yet."""
        with contextlib.ExitStack() as self._stack:
            with os_errors_as_output_error(self.folder):
                created = make_folders(self.folder)
            try:
                self._stack.enter_context(hold_lock(self.folder / "lock", str(self.folder)))
                yield self
            except BaseException as error:
                self._stack.close()
                if self.n_committed:
                    error.add_note(
                        f"{self.folder} has the first {self.n_committed:,} {self.unit}; continue with resume=True."
                    )
                elif self._started:
                    self.remove()
                remove_empty_folders(created)
                raise

    def clear(self) -> None:
        """Remove the files of an earlier run, to start from the beginning."""
        self._started = True
        for name in (*self._files, _CARD):
            (self.folder / name).unlink(missing_ok=True)

    def write_card(self, **content: Any) -> None:
        """Write settings.json: the mark of the job, and plain data that `read_card` returns."""
        write_record(self.folder / _CARD, {"format": _marker(self.kind), **content})

    def read_card(self) -> dict[str, Any] | None:
        """Return the content of settings.json, or None if there is no run to resume.

        Raises:
            OutputError: The file is damaged.
        """
        if not (self.folder / _CARD).exists():
            return None
        try:
            return read_record(self.folder / _CARD, "the settings of an unfinished output", _marker(self.kind))
        except TorchelmoError as error:
            raise self.damaged(str(error).rstrip(".")) from error

    def publish(self, name: str) -> None:
        """Rename the file `name` of the folder, which is complete now, to OUT, and remove the folder."""
        path = self.folder / name
        with os_errors_as_output_error(self.out):
            flush_to_disk(path)
            os.replace(path, self.out)
        self._stack.close()
        self.remove()

    def remove(self) -> None:
        """Remove the files that this kind of job writes, and the folder if nothing else is in it."""
        for name in (*self._files, "lock", _CARD):  # the mark last
            for leftover in self.folder.glob(f".{name}.*.tmp"):  # of a process that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            with contextlib.suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def damaged(self, problem: str) -> OutputError:
        """Return the error for a folder from which a run cannot be resumed."""
        return OutputError(f"{self.folder}: cannot be resumed: {problem}. Start again with overwrite=True.")


class GrowingOutput(Unfinished):
    """An unfinished output whose files only grow. A commit records their sizes; a resumed run cuts them off there.

    Args:
        out: As for `Unfinished`.
        kind: As for `Unfinished`.
        settings: As for `Unfinished`.
        growing: The names of the files that grow.
        files: The names of other files in the folder.
        unit: As for `Unfinished`.

    Attributes:
        state: Plain data that a commit stores: how far the run is. A resumed run finds it here; {} at the beginning.
    """

    def __init__(
        self,
        out: Path,
        kind: str,
        settings: Mapping[str, Any],
        growing: Sequence[str] = ("output",),
        *,
        files: Sequence[str] = (),
        unit: str = "lines",
    ) -> None:
        super().__init__(out, kind, settings, [*growing, *files], unit=unit)
        self.state: dict[str, Any] = {}
        self._sizes = dict.fromkeys(growing, 0)
        self._checksums = dict.fromkeys(growing, 0)
        self._streams: dict[str, IO[bytes]] = {}

    def begin(self, *, resume: bool) -> None:
        """Continue the interrupted run if `resume` and there is one, else start from the beginning.

        Raises:
            WrongCallError: The run was started with other settings.
            OutputError: A file in the folder is damaged.
        """
        card = self.read_card() if resume else None
        if card is None:
            self.clear()
            self._write_state()
        else:
            compare_settings(card.get("settings"), self.settings, self.folder)
            self._restore(card.get("state"))
        with os_errors_as_output_error(self.folder):
            for name in self._sizes:
                self._streams[name] = self._stack.enter_context((self.folder / name).open("ab"))

    def is_complete(self) -> bool:
        """Return whether an earlier run wrote OUT, so that there is nothing to resume."""
        if not self.out.exists():
            return False
        card = self.read_card()
        if card is None:
            return True
        # A process that was killed between the renaming and the removal of the folder leaves only some of the files.
        state = card.get("state")
        begun = isinstance(state, dict) and bool(state.get("n"))
        return begun and not all((self.folder / name).exists() for name in self._sizes)

    def write(self, name: str, data: bytes) -> None:
        """Append bytes to a file."""
        with os_errors_as_output_error(self.out):
            self._streams[name].write(data)
        self._sizes[name] += len(data)
        self._checksums[name] = zlib.crc32(data, self._checksums[name])

    def commit(self, n: int, **state: Any) -> None:
        """Make everything that was written safe.

        Args:
            n: How many units were written since the beginning.
            **state: The state.
        """
        with os_errors_as_output_error(self.out):
            for stream in self._streams.values():
                stream.flush()
                os.fsync(stream.fileno())
        self.n_committed, self.state = n, state
        self._write_state()

    def publish(self, name: str) -> None:
        """Rename the file `name` of the folder, which is complete now, to OUT, and remove the folder."""
        with os_errors_as_output_error(self.out):
            for stream in self._streams.values():
                stream.flush()
        super().publish(name)

    def _write_state(self) -> None:
        state = {"n": self.n_committed, "sizes": self._sizes, "checksums": self._checksums, "job": self.state}
        self.write_card(settings=self.settings, state=state)

    def _restore(self, state: Any) -> None:
        try:
            self.n_committed, self.state = int(state["n"]), dict(state["job"])
            for name in self._sizes:
                size, path = int(state["sizes"][name]), self.folder / name
                if not self.n_committed and not os.path.lexists(path):
                    continue  # the process was killed before it was created
                if path.is_symlink() or not path.is_file():
                    raise self.damaged(f"{name}: expected a regular file")
                if _checksum(path, size) != state["checksums"][name]:
                    raise self.damaged(f"{name}: the checksum is wrong")
                os.truncate(path, size)
                self._sizes[name], self._checksums[name] = size, state["checksums"][name]
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            if isinstance(error, OutputError):
                raise
            raise self.damaged(f"{_CARD}: expected the state of the run ({error})") from error


def write_record(path: Path, content: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Write a JSON object with a checksum, all or nothing."""
    write_json(path, {**content, "checksum": _hash(content)}, indent=indent)


def read_record(path: Path, what: str, format: str, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object that `write_record` wrote, and check its format and its checksum.

    Raises:
        InputError: The file is something else, or it is damaged.
        MissingFileError: There is no such file.
    """
    content = read_json(path, what, max_bytes=max_bytes)
    if not isinstance(content, dict) or content.get("format") != format:
        raise InputError(f"{path}: expected {what} that torchelmo wrote, found something else.")
    if content.pop("checksum", None) != _hash(content):
        raise InputError(f"{path}: expected {what} as torchelmo wrote it, but its checksum is wrong.")
    return content


def _marker(kind: str) -> str:
    return f"torchelmo {kind}, unfinished output, version 1"


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path, size: int) -> int | None:
    """Return the CRC-32 of the first `size` bytes of a file, or None if it is shorter."""
    checksum = 0
    with path.open("rb") as stream:
        while size > 0 and (part := stream.read(min(size, 1 << 20))):
            checksum, size = zlib.crc32(part, checksum), size - len(part)
    return checksum if size <= 0 else None
