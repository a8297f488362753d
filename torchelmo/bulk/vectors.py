"""Read the files that `embed_file` writes: `VectorFile`."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from torchelmo.bulk.hdf5 import Hdf5Reader
from torchelmo.bulk.outputs import Array
from torchelmo.bulk.parquet import ParquetReader
from torchelmo.errors import InputError, TorchelmoError, shorten
from torchelmo.files import parse_json, require_file
from torchelmo.text.tokenize import Token


class VectorFile(Sequence[Array]):
    """Read a file that `embed_file` or `torchelmo embed` wrote; use it in a `with` statement.

    `file[0]` is the array of the first line, `file["P12345"]` that of the line with this id, and `len(file)` the number
    of lines.

    Args:
        path: A .h5, .hdf5, .npz or .parquet file.

    Raises:
        InputError: The file was not written by torchelmo.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = require_file(path, "a file with vectors", regular=True)
        readers: dict[str, type[_Reader]] = {".npz": _NpzReader, ".parquet": ParquetReader}
        with self._errors_as_input_error():
            self._file: _Reader = readers.get(self._path.suffix, Hdf5Reader)(self._path)

    @property
    def settings(self) -> dict[str, Any]:
        """How the vectors were computed: model, layers, lang and others."""
        with self._errors_as_input_error():
            return self._file.settings

    @property
    def n_tokens(self) -> int:
        """The number of tokens of all lines."""
        with self._errors_as_input_error():
            return self._file.n_tokens

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the lines; their numbers, as strings, if the text had no ids."""
        with self._errors_as_input_error():
            ids = self._file.ids()
            if ids is not None and len(ids) != len(self):
                raise ValueError(f"{len(self)} lines, but {len(ids)} ids")
        return [str(number) for number in range(len(self))] if ids is None else ids

    def tokens(self, line: int | str) -> list[Token]:
        """Return the tokens of a line with their character offsets, one for each row of its vectors.

        Args:
            line: The index of the line, 0 for the first one, or its id.
        """
        number = self._number(line)
        with self._errors_as_input_error():
            return self._file.tokens(number)

    def __len__(self) -> int:
        return len(self._file)

    def __getitem__(self, line: Any) -> Any:
        number = self._number(line)
        with self._errors_as_input_error():
            return self._file.vectors(number)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "VectorFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def _number(self, line: int | str) -> int:
        if isinstance(line, str):
            if line not in self._numbers:
                raise KeyError(f"{line!r}: the file has no line with this id.")
            return self._numbers[line]
        if not -len(self) <= line < len(self):
            raise IndexError(f"index {line}: the file has {len(self)} lines.")
        return line % len(self)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {id: number for number, id in enumerate(self.ids)}

    @contextlib.contextmanager
    def _errors_as_input_error(self) -> Iterator[None]:
        """Turn the errors for a damaged file into an InputError: its readers report damage in many ways."""
        try:
            yield
        except TorchelmoError:
            raise
        except Exception as error:
            raise InputError(
                f"{self._path}: expected vectors as torchelmo writes them, but the file is damaged "
                f"({shorten(str(error), 200) or type(error).__name__}). Write it again."
            ) from error


class _Reader(Protocol):
    """One format of input files. The first line has the index 0."""

    def __init__(self, path: Path) -> None: ...

    @property
    def settings(self) -> dict[str, Any]: ...

    @property
    def n_tokens(self) -> int: ...

    def __len__(self) -> int: ...

    def ids(self) -> list[str] | None: ...

    def tokens(self, line: int) -> list[Token]: ...

    def vectors(self, line: int) -> Array: ...

    def close(self) -> None: ...


class _NpzReader:
    """Read the arrays of a .npz file. Its members have checksums, which are compared when they are read."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("rb")  # NumPy would leave it open if the archive is damaged
        try:
            self._file = np.load(self._stream, allow_pickle=False)
            self._read(path)
        except BaseException:
            self._stream.close()
            raise

    @cached_property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = parse_json(str(self._file["settings"]), "settings")
        return settings

    @property
    def n_tokens(self) -> int:
        return int(self._boundaries[-1])

    def __len__(self) -> int:
        return len(self._boundaries) - 1

    def ids(self) -> list[str] | None:
        return bytes(self._file["ids"]).decode("utf-8").split("\n") if "ids" in self._file else None

    def tokens(self, line: int) -> list[Token]:
        first, last = map(int, self._boundaries[line : line + 2])
        starts, ends = self._starts[first:last].tolist(), self._ends[first:last].tolist()
        return [Token(*one) for one in zip(self._texts[first:last], starts, ends, strict=True)]

    def vectors(self, line: int) -> Array:
        array: Array = self._file[str(line) if self._array_names is None else self._array_names[line]]
        n_tokens = int(self._boundaries[line + 1] - self._boundaries[line])
        if not self.settings.get("pool") and array.shape[-2] != n_tokens:
            raise ValueError(f"line {line} has {n_tokens} tokens and vectors of shape {array.shape}")
        return array

    def close(self) -> None:
        self._file.close()
        self._stream.close()

    def _read(self, path: Path) -> None:
        names = ("boundaries", "start", "end", "tokens")
        if any(name not in self._file for name in names):
            raise InputError(f"{path}: expected vectors and tokens as torchelmo writes them, found another layout.")
        self._boundaries, self._starts, self._ends, texts = (self._file[name] for name in names)
        if self._boundaries.ndim != 1 or self._boundaries[0] != 0 or (np.diff(self._boundaries) < 0).any():
            raise ValueError("the boundaries of lines do not rise from 0")
        if not self._boundaries[-1] == len(self._starts) == len(self._ends):
            raise ValueError(f"{len(self._starts)} tokens, but the boundaries of lines are for {self.n_tokens}")
        self._texts = bytes(texts).decode("utf-8").split("\n")

    @cached_property
    def _array_names(self) -> list[str] | None:
        return self.ids()
