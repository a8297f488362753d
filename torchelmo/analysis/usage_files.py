"""Files of usages: vectors of words in their sentences, by word. `UsageFile` reads them.

While a file is written, its vectors are in a folder OUT.partial, from which an interrupted run is resumed:

settings.json   marks the folder as torchelmo's, says what the run was started with and how far it is
vectors.bin     the vectors of all usages, float32
targets.bin     for every usage, the index of its target, int32
usages.jsonl    for every usage, its sentence and position
lock            held by the process that writes here
"""

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.errors import (
    InputError,
    OutputError,
    OutputExistsError,
    TorchelmoError,
    WrongCallError,
    missing_package,
    short_repr,
)
from torchelmo.files import (
    hold_lock,
    make_folders,
    os_errors_as_output_error,
    parse_json,
    read_json,
    remove_empty_folders,
    require_file,
    write_json,
)
from torchelmo.text.tokenize import Token

SUFFIXES = (".npz", ".parquet")
_MARKER = "torchelmo usages, unfinished output, version 1"
_FILES = ("vectors.bin", "targets.bin", "usages.jsonl", "output", "lock", "settings.json")
_ROWS = 4096  # vectors in memory at once while the output is written


class Usage(NamedTuple):
    """A target word in its sentence."""

    target: str  # the key of the output
    positions: list[int]  # of its tokens in the sentence; their vectors are averaged
    identifier: str | None = None  # of the usage in DWUG data


class UsageSentence(NamedTuple):
    """A sentence with at least one usage, and its place."""

    file: str
    line: int  # from 1
    text: str  # of the line
    tokens: list[Token]
    usages: list[Usage]


class UsageFile:
    """The usages of words that `torchelmo analyse usages` wrote, or any .npz file with an array for each word.

    Arrays are read when they are asked for: `usages[word]` is (n_usages, dim).

    Args:
        path: A .npz or .parquet file.

    Attributes:
        words: The words of the file.
        settings: The settings of the run that wrote the file; None for files of other programs.

    Raises:
        InputError: The file is damaged or has no vectors.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = require_file(path, "a file with usages", regular=True)
        self._npz: Any = None
        self._parquet: Any = None
        self.settings: Any = None
        if self.path.suffix == ".parquet":
            pyarrow, parquet = import_parquet()
            try:
                self._parquet = parquet.ParquetFile(self.path)
                words = self._parquet.read(["word"]).column("word").unique().to_pylist()
                self._parquet.schema_arrow.field("vector")
            except (pyarrow.ArrowException, OSError, KeyError) as error:
                raise self._damaged(f"a Parquet file with the columns word and vector ({error})") from error
            content = (self._parquet.schema_arrow.metadata or {}).get(b"torchelmo")
            self.words: list[str] = sorted(words)
        else:
            try:
                self._npz = np.load(self.path, allow_pickle=False)
                self.words = list(self._npz.files)
                content = self._npz.zip.comment
            except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
                raise self._damaged(f"a NumPy archive ({error})") from error
        if content:
            with contextlib.suppress(TorchelmoError):
                self.settings = parse_json(content, str(self.path))
        self._dim: int | None = None

    def __getitem__(self, word: str) -> npt.NDArray[np.float32]:
        """Return the vectors of the usages of a word, (n_usages, dim).

        Raises:
            KeyError: The file does not have the word.
            InputError: The array is damaged.
        """
        if word not in self.words:
            raise KeyError(word)
        if self._parquet is not None:
            array = self._read_parquet(word)
        else:
            try:
                array = self._npz[word]
            except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
                raise self._damaged(f"an array for {short_repr(word)} ({error})") from error
        if array.ndim != 2 or array.dtype.kind != "f":
            raise self._damaged(f"an array (usages, dim) for {short_repr(word)}, found {array.dtype} {array.shape}")
        if self._dim is not None and array.shape[1] != self._dim:
            raise self._damaged(f"vectors of {self._dim} numbers for {short_repr(word)}, found {array.shape[1]}")
        self._dim = int(array.shape[1])
        return np.asarray(array, dtype=np.float32)

    def __contains__(self, word: object) -> bool:
        return word in self.words

    def __enter__(self) -> "UsageFile":
        return self

    def __exit__(self, *error: object) -> None:
        (self._npz or self._parquet).close()

    @property
    def dim(self) -> int:
        """The width of the vectors."""
        if self._dim is None and self.words:
            self[self.words[0]]
        return self._dim or 0

    def counts(self) -> dict[str, int]:
        """Return the number of usages of each word."""
        if self._parquet is None:
            return {word: len(self[word]) for word in self.words}
        found = self._parquet.read(["word"]).column("word").value_counts().to_pylist()
        return {entry["values"]: entry["counts"] for entry in found}

    def _read_parquet(self, word: str) -> npt.NDArray[Any]:
        from pyarrow import compute

        dim = self._parquet.schema_arrow.field("vector").type.list_size
        parts = [np.zeros((0, dim), dtype=np.float32)]
        for batch in self._parquet.iter_batches(_ROWS, columns=["word", "vector"]):
            rows = batch.filter(compute.equal(batch.column("word"), word)).column("vector")
            parts.append(rows.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim))
        return np.concatenate(parts)

    def _damaged(self, expected: str) -> InputError:
        return InputError(f"{self.path}: expected {expected}. Write it again with torchelmo analyse usages.")


def check_usages_output(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Check everything about the output that can be known before any work."""
    if resume and overwrite:
        raise WrongCallError(
            "Expected resume=True, which continues a run, or overwrite=True, which starts again; got both."
        )
    if out.suffix not in SUFFIXES:
        raise WrongCallError(f"`out` {out}: expected a name that ends in {' or '.join(SUFFIXES)}.")
    if out.is_dir():
        raise WrongCallError(f"`out` {out}: expected the name of a file, found a directory.")
    if out.exists() and not (overwrite or resume):
        raise OutputExistsError(f"`out` {out}: exists. Choose another name, or replace it with overwrite=True.")
    partial = partial_folder(out)
    if not partial.exists() and not partial.is_symlink():
        return
    if not _is_ours(partial):
        raise OutputExistsError(
            f"{partial}: expected the unfinished output of an earlier run, found something else, which was left alone. "
            "Move it away, or choose another `out`."
        )
    if not (resume or overwrite):
        raise OutputExistsError(
            f"{partial}: an earlier run was interrupted. Continue it with resume=True, or start again with "
            "overwrite=True."
        )


class PartialUsages:
    """The unfinished output of `collect_usages`."""

    def __init__(self, out: Path, settings: dict[str, Any], words: list[str]) -> None:
        self.out, self.settings, self.words = out, settings, words
        self.folder = partial_folder(out)
        self.n_sentences = self.n_usages = 0
        self._committed = 0
        self._indices = {word: i for i, word in enumerate(words)}
        self._dim = 0

    @contextlib.contextmanager
    def open(self, *, resume: bool) -> Iterator["PartialUsages"]:
        """Create the folder if necessary, and lock it. It is removed in the end, unless something in it is safe."""
        with os_errors_as_output_error(self.folder):
            created = make_folders(self.folder)
        started = False  # by this process: then it may remove the folder
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(hold_lock(self.folder / "lock", str(self.folder)))
                if not (resume and self._resume()):
                    started = True
                    for name in _FILES[:4]:
                        (self.folder / name).unlink(missing_ok=True)
                    self._write_state()
                with os_errors_as_output_error(self.folder):
                    self._streams = [stack.enter_context((self.folder / name).open("ab")) for name in _FILES[:3]]
                yield self
        except BaseException as error:
            if self._committed:
                error.add_note(f"{self.folder} has the first {self._committed:,} usages; continue with resume=True.")
            elif started:
                _remove(self.folder)
            remove_empty_folders(created)
            raise
        _remove(self.folder)

    def append(self, sentence: UsageSentence, usage: Usage, vector: npt.NDArray[np.float32]) -> None:
        """Add a usage and its vector."""
        self._dim = len(vector)
        begin, end = sentence.tokens[0].start, sentence.tokens[-1].end
        record = {
            "word": usage.target,
            "file": sentence.file,
            "line": sentence.line,
            "sentence": sentence.text[begin:end],
            "position": usage.positions[0],
            "start": sentence.tokens[usage.positions[0]].start - begin,
            "end": sentence.tokens[usage.positions[-1]].end - begin,
            "identifier": usage.identifier,
        }
        with os_errors_as_output_error(self.out):
            self._streams[0].write(vector.astype("<f4").tobytes())
            self._streams[1].write(np.int32(self._indices[usage.target]).astype("<i4").tobytes())
            self._streams[2].write(json.dumps(record).encode() + b"\n")
        self.n_usages += 1

    def commit(self) -> None:
        """Make everything that was written safe: it survives a kill or a power cut."""
        with os_errors_as_output_error(self.out):
            for stream in self._streams:
                stream.flush()
                os.fsync(stream.fileno())
        self._write_state()
        self._committed = self.n_usages

    def finish(self) -> int:
        """Write the output, and return the width of the vectors."""
        vectors = np.memmap(self.folder / "vectors.bin", dtype="<f4", mode="r").reshape(self.n_usages, -1)
        of_target = np.fromfile(self.folder / "targets.bin", dtype="<i4")
        output = self.folder / "output"
        with os_errors_as_output_error(self.out):
            if self.out.suffix == ".npz":
                _write_npz(output, self.words, vectors, of_target, self.settings)
            else:
                _write_parquet(output, self.folder / "usages.jsonl", vectors, self.settings)
            with output.open("rb") as stream:
                os.fsync(stream.fileno())
            os.replace(output, self.out)
        return int(vectors.shape[1])

    def _write_state(self) -> None:
        sizes = [self.folder.joinpath(name) for name in _FILES[:3]]
        state: dict[str, Any] = {"sentences": self.n_sentences, "usages": self.n_usages, "dim": self._dim}
        state["bytes"] = [path.stat().st_size if path.exists() else 0 for path in sizes]
        write_json(self.folder / "settings.json", {"format": _MARKER, "settings": self.settings, "state": state})

    def _resume(self) -> bool:
        if not (self.folder / "settings.json").exists():
            return False
        card = read_json(self.folder / "settings.json", "the settings of an unfinished output")
        compare_settings(card.get("settings"), self.settings, self.folder)
        try:
            state = card["state"]
            self.n_sentences, self.n_usages, self._dim = (int(state[name]) for name in ("sentences", "usages", "dim"))
            for name, size in zip(_FILES[:3], state["bytes"], strict=True):
                with (self.folder / name).open("ab") as stream:
                    if stream.tell() < size:
                        raise ValueError(f"{name} is too short")
                    stream.truncate(size)
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise OutputError(f"{self.folder}: cannot be resumed: {error}. Start again with overwrite=True.") from error
        self._committed = self.n_usages
        return True


def _write_npz(
    path: Path, words: Sequence[str], vectors: Any, of_target: npt.NDArray[np.int32], settings: dict[str, Any]
) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = json.dumps(settings).encode()[:65535]
        for i, word in enumerate(words):
            rows = np.flatnonzero(of_target == i)
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(rows), vectors.shape[1])}
            entry = zipfile.ZipInfo(f"{word}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                for begin in range(0, len(rows), _ROWS):
                    stream.write(np.ascontiguousarray(vectors[rows[begin : begin + _ROWS]]).tobytes())


def _write_parquet(path: Path, records: Path, vectors: Any, settings: dict[str, Any]) -> None:
    pyarrow, parquet = import_parquet()
    text, number = pyarrow.string(), pyarrow.int32()
    columns = {"word": text, "file": text, "line": pyarrow.int64(), "sentence": text, "position": number}
    columns |= {"start": number, "end": number, "identifier": text}
    fields = [*columns.items(), ("vector", pyarrow.list_(pyarrow.float32(), vectors.shape[1]))]
    schema = pyarrow.schema(fields, metadata={"torchelmo": json.dumps(settings)})
    with records.open("rb") as stream, parquet.ParquetWriter(path, schema) as writer:
        for begin in range(0, len(vectors), _ROWS):
            some = vectors[begin : begin + _ROWS]
            rows = [json.loads(next(stream)) for _ in range(len(some))]
            arrays = [pyarrow.array([row[name] for row in rows], kind) for name, kind in columns.items()]
            flat = pyarrow.array(np.ascontiguousarray(some).reshape(-1))
            arrays.append(pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1]))
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def import_parquet() -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet.

    Raises:
        MissingPackageError: They are not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise missing_package("pyarrow", "parquet") from error
    return pyarrow, parquet


def compare_settings(found: Any, expected: dict[str, Any], where: Path) -> None:
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


def partial_folder(out: Path) -> Path:
    """Return the folder for the unfinished output of a run."""
    return out.with_name(out.name + ".partial")


def _is_ours(folder: Path) -> bool:
    if folder.is_symlink() or not folder.is_dir():
        return False
    if all(path.name == "lock" or path.name.startswith(".settings.json.") for path in folder.iterdir()):
        return True  # its process was killed before the settings were written
    try:
        card = read_json(folder / "settings.json", "settings")
    except TorchelmoError:
        return False
    return isinstance(card, dict) and card.get("format") == _MARKER


def _remove(folder: Path) -> None:
    for name in _FILES:  # the marker last
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
