"""Files of usages: vectors of words in their sentences, by word. `UsageFile` reads them.

While a file is written, its vectors are in a folder OUT.partial, from which an interrupted run is resumed:

vectors.bin     the vectors of all usages, float32
targets.bin     for every usage, the index of its target, int32
usages.jsonl    for every usage, its sentence and position
output          the file itself, which is made of these when all usages are there
"""

import contextlib
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.errors import InputError, TorchelmoError, missing_package, short_repr, shorten
from torchelmo.files import os_errors_as_output_error, parse_json, require_file
from torchelmo.text.tokenize import Token
from torchelmo.unfinished import GrowingOutput

SUFFIXES = (".npz", ".parquet")
KIND = "usages"
_GROWING = ("vectors.bin", "targets.bin", "usages.jsonl")
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
            _, parquet = import_parquet()
            with self._errors_as_input_error("a Parquet file with the columns word and vector"):
                self._parquet = parquet.ParquetFile(self.path, page_checksum_verification=True)
                self.words: list[str] = sorted(self._parquet.read(["word"]).column("word").unique().to_pylist())
                self._parquet.schema_arrow.field("vector")
                content = (self._parquet.schema_arrow.metadata or {}).get(b"torchelmo")
        else:
            with self._errors_as_input_error("a NumPy archive"):
                self._npz = np.load(self.path, allow_pickle=False)
                self.words = list(self._npz.files)
                content = self._npz.zip.comment
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
        with self._errors_as_input_error(f"an array for {short_repr(word)}"):
            array = self._npz[word] if self._parquet is None else self._read_parquet(word)
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
        with self._errors_as_input_error("a column of words"):
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

    @contextlib.contextmanager
    def _errors_as_input_error(self, expected: str) -> Iterator[None]:
        """Turn the errors for a damaged file into an InputError: its readers report damage in many ways."""
        try:
            yield
        except TorchelmoError:
            raise
        except Exception as error:
            # NumPy takes any file that is not its own for pickled objects, and advises to load them.
            damaged = "it is no archive, or damaged" if "pickle" in str(error) else str(error) or type(error).__name__
            raise self._damaged(f"{expected} ({shorten(damaged, 200)})") from error

    def _damaged(self, expected: str) -> InputError:
        return InputError(f"{self.path}: expected {expected}. Write it again with torchelmo analyse usages.")


class PartialUsages(GrowingOutput):
    """The unfinished output of `collect_usages`. Its state is `blocks`, the number of finished blocks of sentences."""

    def __init__(self, out: Path, settings: dict[str, Any], words: list[str]) -> None:
        super().__init__(out, KIND, settings, _GROWING, files=["output"], unit="usages")
        self.words = words
        self._indices = {word: i for i, word in enumerate(words)}
        self._n_usages = 0

    def begin(self, *, resume: bool) -> None:
        """Continue the interrupted run if `resume` and there is one, else start from the beginning."""
        super().begin(resume=resume)
        self._n_usages = self.n_committed

    def append(self, sentence: UsageSentence, usage: Usage, vector: npt.NDArray[np.float32]) -> None:
        """Add a usage and its vector."""
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
        self.write("vectors.bin", vector.astype("<f4").tobytes())
        self.write("targets.bin", np.int32(self._indices[usage.target]).astype("<i4").tobytes())
        self.write("usages.jsonl", json.dumps(record).encode() + b"\n")
        self._n_usages += 1

    def commit_blocks(self, n_blocks: int) -> None:
        """Make everything that was written safe."""
        self.commit(self._n_usages, blocks=n_blocks)

    def finish(self) -> int:
        """Write the output, remove the folder, and return the width of the vectors."""
        path, output = self.folder / "vectors.bin", self.folder / "output"
        dim = path.stat().st_size // 4 // self._n_usages
        with os_errors_as_output_error(self.out), path.open("rb") as vectors:
            if self.out.suffix == ".npz":
                of_target = np.fromfile(self.folder / "targets.bin", dtype="<i4")
                _write_npz(output, self.words, vectors, dim, of_target, self.settings)
            else:
                _write_parquet(output, self.folder / "usages.jsonl", vectors, dim, self.settings)
        self.publish("output")
        return dim


def _write_npz(
    path: Path,
    words: Sequence[str],
    vectors: IO[bytes],
    dim: int,
    of_target: npt.NDArray[np.int32],
    settings: dict[str, Any],
) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = json.dumps(settings).encode()[:65535]
        for i, word in enumerate(words):
            rows = np.flatnonzero(of_target == i)
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(rows), dim)}
            entry = zipfile.ZipInfo(f"{word}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array_header_1_0(stream, header)
                for row in rows.tolist():  # not mapped: the memory of a process includes the pages that it has read
                    vectors.seek(4 * dim * row)
                    stream.write(vectors.read(4 * dim))


def _write_parquet(path: Path, records: Path, vectors: IO[bytes], dim: int, settings: dict[str, Any]) -> None:
    pyarrow, parquet = import_parquet()
    text, number = pyarrow.string(), pyarrow.int32()
    columns = {"word": text, "file": text, "line": pyarrow.int64(), "sentence": text, "position": number}
    columns |= {"start": number, "end": number, "identifier": text}
    fields = [*columns.items(), ("vector", pyarrow.list_(pyarrow.float32(), dim))]
    schema = pyarrow.schema(fields, metadata={"torchelmo": json.dumps(settings)})
    with records.open("rb") as stream, parquet.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        while len(some := np.frombuffer(vectors.read(4 * dim * _ROWS), dtype="<f4")):
            rows = [json.loads(next(stream)) for _ in range(len(some) // dim)]
            arrays = [pyarrow.array([row[name] for row in rows], kind) for name, kind in columns.items()]
            arrays.append(pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(some), dim))
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
