"""Read tables with named columns, row by row: CSV with quotes, and TSV, in which quotation marks are ordinary."""

import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from torchelmo.errors import InputError, short_repr
from torchelmo.files import MAX_LINE_BYTES, read_lines, source_name
from torchelmo.text.reading import malformed


class TableReader:
    """The rows of a table whose first line has the names of the columns.

    The columns are separated by tabs if the first line has a tab, and else by commas or semicolons, whichever the first
    line has. A first line without any of them means one column, whose lines are used as they are.

    Args:
        path: The file; also .gz, .bz2 or .xz. "-" is standard input.
        format: "csv" or "tsv" if it is known; then a file may have one column.

    Attributes:
        columns: The names of the columns.

    Raises:
        InputError: The file is empty, or two columns have the same name.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> file = Path(tempfile.mkdtemp(), "stories.tok")
        >>> _ = file.write_text("word\\tzone\\nIf\\t1\\n")
        >>> table = TableReader(file)
        >>> table.columns, list(table)
        (['word', 'zone'], [(2, ['If', '1'])])
    """

    def __init__(self, path: str | Path, *, format: Literal["csv", "tsv"] | None = None) -> None:
        self.path, self.name = path, source_name(path)
        lines = read_lines(path)
        first = next(lines, "")
        if not first.strip():
            raise InputError(f"{self.name}: expected a first line with the names of the columns, found none.")
        if format is None:
            format = "tsv" if "\t" in first or not set(",;") & set(first) else "csv"
        self._records = _split_lines(self.name, itertools.chain([first], lines), first, format)
        _, self.columns = next(self._records)
        for column in self.columns:
            if self.columns.count(column) > 1:
                raise InputError(
                    f"{self.name}: line 1: expected unique column names, found {short_repr(column)} twice."
                )

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and the fields of every row; blank lines are skipped."""
        n_columns = len(self.columns)
        for line, record in self._records:
            if len(record) != n_columns:
                raise malformed(self.name, line, f"{n_columns} columns, as in the first line", f"{len(record)}")
            yield line, record

    def index(self, column: str, option: str) -> int:
        """Return the index of a column.

        Args:
            column: The name of the column.
            option: The option that chose it, for the error message.

        Raises:
            InputError: There is no such column.
        """
        if column not in self.columns:
            listed = ", ".join(short_repr(name) for name in self.columns[:20])
            raise InputError(
                f"{self.name}: expected a column {short_repr(column)}, found the columns {listed}. Choose one of them "
                f"with {option}."
            )
        return self.columns.index(column)


def _split_lines(name: str, lines: Iterator[str], first: str, format: str) -> Iterator[tuple[int, list[str]]]:
    if format == "tsv":
        return ((number, line.split("\t")) for number, line in enumerate(lines, 1) if line.strip())
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    separator = ";" if ";" in first and "," not in first else ","  # spreadsheets of some countries
    return _read_records(name, csv.reader((line + "\n" for line in lines), delimiter=separator, strict=True))


def _read_records(name: str, reader: "Iterator[list[str]]") -> Iterator[tuple[int, list[str]]]:
    while True:
        line = reader.line_num + 1  # type: ignore[attr-defined]
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise malformed(name, line, "a record of a CSV file", str(error)) from error
        if record:
            yield line, record


def column_names(given: Sequence[str], new: Sequence[str], where: str) -> list[str]:
    """Return the columns of an output that adds columns to those of an input.

    Raises:
        InputError: The input has a column with the name of an added one.
    """
    if same := [name for name in new if name in given]:
        raise InputError(
            f"{where}: has a column {short_repr(same[0])}, which the output adds. Rename the column of the input."
        )
    return [*given, *new]
