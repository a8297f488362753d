"""Parquet files with vectors, which DuckDB, Polars, pandas and every Arrow program read.

One row for each line of the text:
    id                string: the id of the row; int64, the number of the line from 0, if the text has no ids
                      (in a collection: the number of the row in all files)
    text              string
    tokens            list<string>, and their character offsets in the text: start, end, list<int64>
    vectors           list<fixed_size_list<float>[dim]>, one for each token; without the outer list for pooled vectors,
                      whose column is called `vector`. For all layers there is a column for each: layer_0, layer_1, …
The settings are a JSON object in the metadata of the file, under the key "torchelmo".
"""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchelmo.bulk.outputs import Array, Line, Names, Shape
from torchelmo.errors import InputError, missing_package, shorten
from torchelmo.files import parse_json
from torchelmo.text.tokenize import Token

ROW_GROUP_BYTES = 10 * 2**20  # of vectors: to read one row, no more than this is decoded
ROW_GROUP_TOKENS = 50_000  # in memory while a row group is written: they need more than short vectors
_KEY = b"torchelmo"
_COUNT = b"torchelmo.n_tokens"
_CHECKSUM = b"torchelmo.checksum"  # of columns, settings and sizes: Parquet itself has checksums for its pages only


class ParquetOutput:
    """Collect the vectors as plain records, and write the Parquet file from them in the end.

    A Parquet file cannot be filled in place, so the vectors exist twice while the file is completed.
    """

    copies = 2

    def __init__(self, shape: Shape, dtype: np.dtype[Any], settings: dict[str, Any]) -> None:
        _pyarrow()  # an absent package is an error now, not after hours of work
        self.shape, self.dtype, self.settings = shape, dtype, settings
        self.names = Names(0)  # set before `create`

    def create(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array) -> Array:
        """Create an empty file, and return the place of each line's record."""
        path.touch()
        sizes = np.fromiter((self.record_size(0, int(n)) for n in counts), dtype=np.int64, count=len(counts))
        return np.cumsum(sizes) - sizes

    def encode(self, number: int, vectors: Array) -> bytes:
        """Return the record of a line."""
        return vectors.tobytes()

    def record_size(self, number: int, n_tokens: int) -> int:
        """Return the size of a line's record in bytes."""
        return int(np.prod(self.shape(n_tokens))) * self.dtype.itemsize

    def reopen(self, path: Path) -> None:
        """Do nothing: `finish` appends nothing to the records."""

    def finish(self, path: Path, lines: Callable[[], Iterable[Line]], counts: Array, places: Array) -> None:
        """Write the Parquet file from the records, and put it in their place."""
        pa = _pyarrow()
        schema = vector_schema(self.shape, self.dtype, has_ids=self.names.are_ids)
        metadata = {_KEY: json.dumps(self.settings).encode(), _COUNT: str(int(counts.sum())).encode()}
        metadata[_CHECKSUM] = _checksum(schema, metadata, len(counts))
        finished = path.with_name("finished")
        with (
            open(path, "rb") as records,
            pa.parquet.ParquetWriter(
                finished,
                schema.with_metadata(metadata),
                compression=dict.fromkeys(("text", "tokens.list.element"), "zstd"),
                use_dictionary=["tokens.list.element"],
                write_statistics=["id"],
                write_page_checksum=True,
            ) as writer,
        ):
            offset = self.settings.get("first_row", 0)  # of a shard in its collection
            first = 0
            for rows in self._row_groups(lines(), counts):
                arrays = []
                for n_tokens in counts[first : first + len(rows)].tolist():
                    data = records.read(self.record_size(0, n_tokens))
                    arrays.append(np.frombuffer(data, self.dtype).reshape(self.shape(n_tokens)))
                ids: Any = range(first, first + len(rows))
                ids = [self.names[i] for i in ids] if self.names.are_ids else [offset + i for i in ids]
                columns = [
                    pa.array(ids, schema.field(0).type),
                    *text_columns(rows),
                    *vector_columns(arrays, self.shape, self.dtype),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=len(rows))
                first += len(rows)
        os.replace(finished, path)

    def _row_groups(self, lines: Iterable[Line], counts: Array) -> Iterator[list[Line]]:
        rows: list[Line] = []
        size = n_in_group = 0
        for line, n_tokens in zip(lines, map(int, counts)):
            rows.append(line)
            size += self.record_size(0, n_tokens)
            n_in_group += n_tokens
            if size >= ROW_GROUP_BYTES or n_in_group >= ROW_GROUP_TOKENS:
                yield rows
                rows, size, n_in_group = [], 0, 0
        if rows:
            yield rows


def vector_schema(shape: Shape, dtype: np.dtype[Any], *, has_ids: bool = False) -> Any:
    """Return the schema of a file for vectors of a shape and type; ids are strings, and else numbers."""
    pa = _pyarrow()
    fields = [("id", pa.string() if has_ids else pa.int64()), ("text", pa.string()), ("tokens", pa.list_(pa.string()))]
    fields += [("start", pa.list_(pa.int64())), ("end", pa.list_(pa.int64()))]
    return pa.schema([*fields, *vector_fields(shape, dtype)])


def vector_fields(shape: Shape, dtype: np.dtype[Any]) -> list[tuple[str, Any]]:
    """Return the names and types of the columns for vectors."""
    pa = _pyarrow()
    pooled, n_layers, dim = _parse_shape(shape)
    vector = pa.list_(pa.from_numpy_dtype(dtype.newbyteorder("=")), dim)
    kind = vector if pooled else pa.list_(vector)
    if n_layers:
        return [(f"layer_{layer}", kind) for layer in range(n_layers)]
    return [("vector" if pooled else "vectors", kind)]


def text_columns(lines: list[Line]) -> list[Any]:
    """Return the columns text, tokens, start and end of some lines."""
    pa = _pyarrow()
    tokens = [line.tokens for line in lines]
    return [
        pa.array([line.text for line in lines], pa.string()),
        pa.array([[token.text for token in row] for row in tokens], pa.list_(pa.string())),
        pa.array([[token.start for token in row] for row in tokens], pa.list_(pa.int64())),
        pa.array([[token.end for token in row] for row in tokens], pa.list_(pa.int64())),
    ]


def vector_columns(arrays: list[Array], shape: Shape, dtype: np.dtype[Any]) -> list[Any]:
    """Return the columns of `vector_fields` for some arrays of vectors, one for each row."""
    pa = _pyarrow()
    pooled, n_layers, dim = _parse_shape(shape)
    columns = []
    for layer in range(max(1, n_layers)):
        parts = [array[layer] if n_layers else array for array in arrays]
        flat = np.concatenate([part.reshape(-1, dim) for part in parts]) if parts else np.zeros((0, dim), dtype)
        column = pa.FixedSizeListArray.from_arrays(pa.array(flat.astype(dtype, copy=False).reshape(-1)), dim)
        if not pooled:
            boundaries = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int32)
            column = pa.ListArray.from_arrays(pa.array(boundaries), column)
        columns.append(column)
    return columns


class ParquetReader:
    """Read single rows of a Parquet file with vectors. The file is mapped, not read into memory."""

    def __init__(self, path: Path) -> None:
        pa = _pyarrow()
        try:
            self._file = pa.parquet.ParquetFile(path, memory_map=True, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: expected a Parquet file with vectors: {shorten(str(error), 200)}.") from error
        self._metadata = self._file.schema_arrow.metadata or {}
        names = self._file.schema_arrow.names
        self._columns = [name for name in names if name in ("vector", "vectors") or name.startswith("layer_")]
        if _KEY not in self._metadata or not self._columns:
            self._file.close()
            raise InputError(f"{path}: expected vectors and tokens as torchelmo writes them, found another layout.")
        if self._metadata.get(_CHECKSUM) != _checksum(self._file.schema_arrow, self._metadata, len(self)):
            self._file.close()
            raise InputError(
                f"{path}: expected a file as torchelmo wrote it, but it is damaged: the checksum of its columns and "
                "settings is wrong. Write it again."
            )
        sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._held: tuple[int, Any] = (-1, None)  # a row group, by its number

    @property
    def settings(self) -> dict[str, Any]:
        """How the vectors were computed."""
        settings: dict[str, Any] = parse_json(self._metadata[_KEY], "settings")
        return settings

    @property
    def n_tokens(self) -> int:
        """The number of tokens of all lines."""
        return int(self._metadata[_COUNT])

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def tokens(self, line: int) -> list[Token]:
        """Return the tokens of a line."""
        table, row = self._find(line)
        return [Token(*one) for one in zip(*(table.column(name)[row].as_py() for name in ("tokens", "start", "end")))]

    def vectors(self, line: int) -> Array:
        """Return the array of a line."""
        table, row = self._find(line)
        layers = [_to_numpy(table.column(name).chunk(0), row) for name in self._columns]
        return np.stack(layers) if self._columns[0].startswith("layer_") else layers[0]

    def ids(self) -> list[str] | None:
        """Return the ids of all rows; None if they are numbers."""
        ids = self._file.read(["id"]).column("id").to_pylist()
        return ids if ids and isinstance(ids[0], str) else None

    def close(self) -> None:
        """Close the file."""
        self._held = (-1, None)
        self._file.close()

    def _find(self, line: int) -> tuple[Any, int]:
        """Return the row group of a line, and the place of the line in it."""
        group = int(np.searchsorted(self._ends, line, side="right"))
        if self._held[0] != group:
            self._held = (group, self._file.read_row_group(group).combine_chunks())
        return self._held[1], line - (int(self._ends[group - 1]) if group else 0)


def _checksum(schema: Any, metadata: Mapping[bytes, bytes], n_rows: int) -> bytes:
    # Arrow and Parquet have different names for the elements of a list.
    columns = [(field.name, str(field.type).replace("item:", "element:")) for field in schema]
    content = repr((columns, metadata.get(_KEY), metadata.get(_COUNT), n_rows))
    return str(zlib.crc32(content.encode())).encode()


def _to_numpy(column: Any, row: int) -> Array:
    """Return a copy of the vectors of a row: (tokens, dim), or (dim,) for pooled vectors."""
    value = column[row].values
    array: Array
    if hasattr(value.type, "list_size"):  # the tokens' vectors
        array = value.flatten().to_numpy().reshape(len(value), value.type.list_size)
    else:
        array = value.to_numpy()
    return array.copy()


def _parse_shape(shape: Shape) -> tuple[bool, int, int]:
    """Return whether the tokens are pooled, the number of layers if each has its column, and the width."""
    one, two = shape(1), shape(2)
    pooled = one == two
    return pooled, one[0] if len(one) == (2 if pooled else 3) else 0, one[-1]


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", "parquet") from error
    return pyarrow
