"""Read rows of text from files of several formats: plain text, CSV, TSV, JSON lines, CoNLL-U, Parquet and FASTA.

Every format gives the same rows: an id if the file has ids, a text, its tokens if the file has tokens, and the place in
the file. Files are read row by row, in constant memory.
"""

import contextlib
import itertools
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from torchelmo.errors import InputError, TorchelmoError, WrongCallError, missing_package, short_repr
from torchelmo.files import MAX_LINE_BYTES, decode_line, open_bytes, read_lines, require_file, source_name
from torchelmo.text.reading import malformed, parse_object, read_columns
from torchelmo.text.tables import TableReader
from torchelmo.text.tokenize import replace_surrogates

Format = Literal["text", "csv", "tsv", "jsonl", "conllu", "parquet", "fasta"]
FORMATS: tuple[Format, ...] = get_args(Format)

_SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".conllu": "conllu",
    ".parquet": "parquet",
    ".fasta": "fasta",
    ".fa": "fasta",
    ".faa": "fasta",
}
_COMPRESSED = (".gz", ".bz2", ".xz")
_CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_CONLLU = "CoNLL-U, 10 columns separated by tabs."
_NOT_A_WORD = re.compile(r"\d+-\d+|\d+\.\d+")  # multiword tokens (1-2) and empty nodes (1.1)
_NOT_A_RESIDUE = re.compile(r"[^A-Z*-]")
_MAX_ID = 1000  # characters
_BATCH_ROWS = 256  # of a Parquet file that are in memory at once
_Part = tuple[int, str | None, str, list[str] | None]  # line, id, text, tokens


class Place(NamedTuple):
    """A place in a file, from which it can be read."""

    offset: int  # in bytes
    line: int  # the number of lines before it


FILE_START = Place(0, 0)


class Row(NamedTuple):
    """A row of a file: a line of text, a record of a table, a sentence or a protein."""

    position: int  # number of the row in its file, from 0
    line: int  # first line of the row in the file, from 1; the number of the row for Parquet
    id: str | None  # None if the file has no ids
    text: str
    tokens: list[str] | None  # the tokens of `text`, if the file has tokens; they are one sentence

    @property
    def key(self) -> str:
        """The name of the row in an output: its id, or its position."""
        return str(self.position) if self.id is None else self.id


class RowReader:
    """Read the rows of a file.

    Args:
        path: The file; also .gz, .bz2 or .xz, except Parquet. "-" is standard input.
        format: One of `FORMATS`. Default: by the suffix of the file, and "text" for suffixes that are not known.
        text_column: The column with the text. Default: "text", or the only column of the file. In JSON lines and
            Parquet the column may also contain lists of tokens. For CoNLL-U "form" (default) or "lemma".
        id_column: The column with the ids. Default: rows have no ids. For CoNLL-U the name of a comment, such as
            "sent_id". For FASTA "id" (default: the accession of a header such as `sp|P12345|NAME`, else the first word
            of the header), "name" (the first word) or "header" (all of it).

    Raises:
        WrongCallError: The format is not known, or has no such columns.
        MissingFileError: There is no such file.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "texts.csv")
        >>> _ = file.write_text("name,text\\na1,I took a bow.\\n")
        >>> [(row.key, row.text) for row in RowReader(file, id_column="name").rows()]
        [('a1', 'I took a bow.')]
    """

    def __init__(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        text_column: str | None = None,
        id_column: str | None = None,
    ) -> None:
        self.path = path
        self.format = _choose_format(path, format)
        self.text_column, self.id_column = text_column, id_column
        if str(path) != "-":
            require_file(path, "a file with text", regular=self.format == "parquet")
        elif self.format == "parquet":
            raise WrongCallError("-: expected the name of a Parquet file, which cannot be read from standard input.")
        _check_columns(self.format, text_column, id_column)

    @property
    def has_ids(self) -> bool:
        """Whether every row has an id."""
        return self.id_column is not None or self.format == "fasta"

    @property
    def has_tokens(self) -> bool:
        """Whether every row has tokens, so that no text needs to be split."""
        return self.format in ("conllu", "fasta")

    @property
    def has_lines(self) -> bool:
        """Whether a row is a line of the file."""
        return self.format in ("text", "jsonl")

    @property
    def is_seekable(self) -> bool:
        """Whether the rows can be read from a place in the middle of the file."""
        return self.has_lines and Path(self.path).suffix not in _COMPRESSED

    def rows(self, start: int = 0, stop: int | None = None, *, place: Place = FILE_START) -> Iterator[Row]:
        """Yield the rows from position `start` up to, but not including, `stop`.

        Args:
            start: The position of the first row, from 0.
            stop: The position after the last row; None for all rows.
            place: Where row `start` begins, if the file is seekable; then the rows before it are not read.

        Raises:
            InputError: The file is damaged, or a row is wrong. The message names the file, the line and the column.
        """
        if self.format == "parquet":
            first, parts = self._read_parquet(start)
        elif place.offset:
            first, parts = start, getattr(self, f"_read_{self.format}")(place)
        else:
            first, parts = 0, getattr(self, f"_read_{self.format}")()
        last = None if stop is None else max(stop - first, 0)
        for position, (line, id, text, tokens) in enumerate(itertools.islice(parts, last), first):
            if position < start:
                continue
            if id is not None and (not id.isprintable() or not 1 <= len(id) <= _MAX_ID):
                raise malformed(self._name, line, f"a printable id of 1 to {_MAX_ID:,} characters", short_repr(id))
            if tokens is not None:
                self._check_tokens(tokens, line)
            yield Row(position, line, id, text, tokens)

    def count(self) -> int:
        """Read the whole file to check it, and return the number of its rows.

        Raises:
            InputError: A row is wrong, or two rows have the same id.
        """
        return sum(1 for _ in self.unique(self.rows()))

    def unique(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows; at the end, check that all ids differ. It needs 16 bytes of memory per row."""
        hashes, lines = array("q"), array("q")
        for row in rows:
            if row.id is not None:
                hashes.append(hash(row.id))
                lines.append(row.line)
            yield row
        order = np.argsort(np.frombuffer(hashes, dtype=np.int64), kind="stable") if hashes else np.zeros(0, np.int64)
        ordered = np.frombuffer(hashes, dtype=np.int64)[order] if hashes else order
        same = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(same):
            first, second = (lines[int(order[same[0] + i])] for i in (0, 1))
            raise InputError(
                f"{self._name}: {self._unit}s {first} and {second} have the same id. Ids become the names of the "
                "vectors, so they must be unique: correct them, or use another `id_column`."
            )

    @property
    def _name(self) -> str:
        return source_name(self.path)

    @property
    def _unit(self) -> str:
        return "row" if self.format == "parquet" else "line"

    def _read_text(self, place: Place = FILE_START) -> Iterator[_Part]:
        for number, line in _lines(self.path, place):
            yield number, None, line, None

    def _read_csv(self) -> Iterator[_Part]:
        table = TableReader(self.path, format="csv" if self.format == "csv" else "tsv")
        text, id = self._find_columns(table.columns)
        for line, record in table:
            yield line, None if id is None else record[id], record[text], None

    _read_tsv = _read_csv

    def _find_columns(self, names: Sequence[str]) -> tuple[int, int | None]:
        """Return the indices of the columns with the text and with the ids."""
        default = "text" if "text" in names or len(names) > 1 else names[0]
        found: list[int] = []
        for option, name in (("`text_column`", self.text_column or default), ("`id_column`", self.id_column)):
            if name is None:
                continue
            if list(names).count(name) != 1:
                listed = ", ".join(short_repr(column) for column in names[:20])
                raise InputError(
                    f"{self._name}: expected one column {short_repr(name)}, found the columns {listed}. "
                    f"Choose one of them with {option}, or `format` text for a file without columns."
                )
            found.append(list(names).index(name))
        return found[0], found[1] if len(found) > 1 else None

    def _read_jsonl(self, place: Place = FILE_START) -> Iterator[_Part]:
        for number, line in _lines(self.path, place):
            if not line.strip():
                continue
            record = parse_object(line, self._name, number)
            text, id = self.text_column or "text", self.id_column
            for option, name in (("`text_column`", text), ("`id_column`", id)):
                if name is not None and name not in record:
                    keys = ", ".join(short_repr(key) for key in list(record)[:20]) or "none"
                    expected = f"the key {short_repr(name)} ({option} chooses another)"
                    raise malformed(self._name, number, expected, f"the keys {keys}")
            yield number, self._id(None if id is None else record[id], number), *self._text(record[text], number)

    def _read_conllu(self) -> Iterator[_Part]:
        column = _CONLLU_COLUMNS.index(self.text_column or "form")
        for block in read_columns(self.path, separator="\t"):
            words = []
            for row, line in zip(block.rows, block.lines):
                if len(row) != len(_CONLLU_COLUMNS):
                    raise malformed(self._name, line, "10 columns", f"{len(row)}", _CONLLU)
                if not _NOT_A_WORD.fullmatch(row[0]):
                    words.append(row[column].strip())
            id = None
            if self.id_column is not None:
                pattern = re.compile(rf"#\s*{re.escape(self.id_column)}\s*=\s*(.*?)\s*")
                values = [match[1] for comment in block.comments if (match := pattern.fullmatch(comment))]
                if not values:
                    expected = f"a comment '# {self.id_column} = …' before the sentence"
                    raise malformed(self._name, block.lines[0], expected, "none")
                id = values[-1]
            yield block.lines[0], id, " ".join(words), words

    def _read_fasta(self) -> Iterator[_Part]:
        header, start, parts, size = "", 0, list[str](), 0
        for number, line in enumerate(read_lines(self.path), 1):
            if line.startswith(">"):
                if start:
                    yield self._protein(header, start, parts)
                header, start, parts, size = line[1:].strip(), number, [], 0
            elif line.strip() and not line.startswith(";"):  # an old kind of comment
                if not start:
                    raise malformed(self._name, number, "a FASTA header, which starts with '>'", short_repr(line))
                if wrong := _NOT_A_RESIDUE.search(residues := "".join(line.split()).upper()):
                    column = next(i for i, letter in enumerate(line, 1) if letter.upper() == wrong[0])
                    found = f"{short_repr(wrong[0])} at column {column}"
                    raise malformed(self._name, number, "letters of amino acids, '*' or '-'", found)
                size += len(residues)
                if size > MAX_LINE_BYTES:
                    raise malformed(self._name, start, f"at most {MAX_LINE_BYTES:,} residues", "more")
                parts.append(residues)
        if start:
            yield self._protein(header, start, parts)

    def _protein(self, header: str, line: int, parts: list[str]) -> _Part:
        sequence = "".join(parts).removesuffix("*")  # the stop codon, which is not a residue
        if not sequence:
            raise malformed(self._name, line, f"residues after the header {short_repr(header)}", "none")
        name = (header.split() or [""])[0]
        fields = name.split("|")
        accession = fields[1] if len(fields) >= 3 and fields[1] else name
        ids = {"id": accession, "name": name, "header": header}
        return line, ids[self.id_column or "id"], sequence, list(sequence)

    def _read_parquet(self, start: int) -> tuple[int, Iterator[_Part]]:
        """Return the position of the first row that is read, and the rows from there."""
        file = _open_parquet(self.path)
        text, id = self._find_columns(file.schema_arrow.names)
        first, group = 0, 0  # skip the row groups before `start`
        while group < file.num_row_groups and first + file.metadata.row_group(group).num_rows <= start:
            first, group = first + file.metadata.row_group(group).num_rows, group + 1
        names = [file.schema_arrow.names[i] for i in (text, id) if i is not None]

        def parts() -> Iterator[_Part]:
            position = first
            groups = list(range(group, file.num_row_groups))
            with _arrow_errors(self.path), contextlib.closing(file):
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=names, use_threads=False):
                    texts = batch.column(batch.schema.get_field_index(names[0])).to_pylist()
                    ids = batch.column(batch.schema.get_field_index(names[-1])).to_pylist() if len(names) > 1 else []
                    for value, key in itertools.zip_longest(texts, ids):
                        position += 1
                        yield position, self._id(key, position), *self._text(value, position)

        return first, parts()

    def _id(self, value: Any, line: int) -> str | None:
        if self.id_column is None:
            return None
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return str(value)
        raise self._wrong_type(self.id_column, line, "a string or an integer", value)

    def _text(self, value: Any, line: int) -> tuple[str, list[str] | None]:
        """Return a text and its tokens, from a string, a list of tokens, or None for no text."""
        if value is None or isinstance(value, str):
            return replace_surrogates(value or ""), None
        if isinstance(value, list) and all(isinstance(token, str) for token in value):
            tokens = [replace_surrogates(token) for token in value]
            return " ".join(tokens), tokens
        raise self._wrong_type(self.text_column or "text", line, "a string or a list of tokens", value)

    def _wrong_type(self, column: str, line: int, expected: str, value: Any) -> InputError:
        return InputError(
            f"{self._name}: {self._unit} {line}, column {short_repr(column)}: expected {expected}, "
            f"found {short_repr(value)}. Correct it, or choose another column."
        )

    def _check_tokens(self, tokens: list[str], line: int) -> None:
        for token in tokens:
            if not token or token != token.strip() or "\n" in token:
                expected = "tokens that are not empty, without line breaks and without spaces at their ends"
                raise malformed(self._name, line, expected, short_repr(token))


def _lines(path: str | Path, place: Place) -> Iterator[tuple[int, str]]:
    """Yield the lines from a place on, with their numbers."""
    if not place.offset:
        yield from enumerate(read_lines(path), 1)
        return
    with open_bytes(path) as stream:
        stream.seek(place.offset)
        for number, line in enumerate(stream, place.line + 1):
            yield number, decode_line(line, path, number)


def _choose_format(path: str | Path, format: str | None) -> Format:
    if format is None:
        suffixes = [suffix for suffix in Path(path).suffixes if suffix not in _COMPRESSED]
        return _SUFFIXES.get(suffixes[-1].lower() if suffixes else "", "text")
    if format not in FORMATS:
        raise WrongCallError(f"`format` {format}: expected one of {', '.join(FORMATS)}.")
    return format


def _check_columns(format: Format, text_column: str | None, id_column: str | None) -> None:
    """Refuse columns that a format cannot have."""
    choices: dict[tuple[Format, str], tuple[str, ...]] = {
        ("text", "`text_column`"): (),
        ("text", "`id_column`"): (),
        ("fasta", "`text_column`"): (),
        ("fasta", "`id_column`"): ("id", "name", "header"),
        ("conllu", "`text_column`"): ("form", "lemma"),
    }
    for option, name in (("`text_column`", text_column), ("`id_column`", id_column)):
        known = choices.get((format, option))
        if name is None or known is None or name in known:
            continue
        if known:
            raise WrongCallError(f"{option} {name}: expected one of {', '.join(known)} for the format {format}.")
        others = ", ".join(other for other in FORMATS if choices.get((other, option)) != ())
        raise WrongCallError(
            f"{option} {name}: the format {format} has no such columns. Choose another `format`: {others}."
        )


def _open_parquet(path: str | Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise missing_package("pyarrow", "parquet") from error
    with _arrow_errors(path):
        return parquet.ParquetFile(path, pre_buffer=False)


@contextlib.contextmanager
def _arrow_errors(path: str | Path) -> Iterator[None]:
    """Turn the errors of pyarrow into an InputError that names the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, TorchelmoError):
            raise
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(f"{path}: expected a Parquet file, but it cannot be read ({short_repr(reason)}).") from error
