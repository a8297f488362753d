"""Embed a file: rows of text → tokens → vectors → file. A run may be interrupted at any moment and resumed later."""

import dataclasses
import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from torchelmo.bulk.compute import JobSettings, embed_blocks, make_settings, open_model, shape_function, split_rows
from torchelmo.bulk.hdf5 import Hdf5Output
from torchelmo.bulk.outputs import Line, NpzOutput, Output, Shape
from torchelmo.bulk.parquet import ParquetOutput
from torchelmo.bulk.partial import KIND, PartialOutput, text_bytes
from torchelmo.bulk.vectors import VectorFile
from torchelmo.errors import InputError, OutputError, OutputExistsError, TorchelmoError
from torchelmo.files import os_errors_as_output_error, require_file, source_name
from torchelmo.progress import Advance, progress
from torchelmo.text.rows import Row, RowReader
from torchelmo.unfinished import check_output, is_partial, partial_folder

if TYPE_CHECKING:
    from torchelmo.elmo import Elmo

FORMATS: dict[str, Callable[[Shape, np.dtype[Any], dict[str, Any]], Output]] = {
    ".h5": Hdf5Output,
    ".hdf5": Hdf5Output,
    ".npz": NpzOutput,
    ".parquet": ParquetOutput,
}
COMMIT_SECONDS = 5.0  # a killed run loses no more work than this


class EmbedResult(NamedTuple):
    """What `embed_file` wrote."""

    path: Path
    n_lines: int
    n_tokens: int
    shape: tuple[int | str, ...]  # of a line's array; "tokens" is its number of tokens
    dtype: str
    settings: dict[str, Any]
    already_complete: bool = False  # there was nothing left to do for `resume`


def embed_file(
    input: str | Path,
    out: str | Path,
    *,
    model: "str | Path | Elmo | None" = None,
    layers: str | int = "all",
    pool: Literal["mean", "max"] | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    precision: Literal["float32", "float16", "int8"] = "float32",
    batch_tokens: int = 2048,
    state: Literal["reset", "carry"] = "reset",
    lang: str | None = None,
    pretokenized: bool = False,
    format: str | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
) -> EmbedResult:
    """Embed every line of a text file, or every row of a table, and write an HDF5, NumPy or Parquet file of vectors.

    The first line becomes the array "0", the second "1", and so on: (layers, tokens, dim) for all layers, else
    (tokens, dim). If the rows have ids (`id_column`, or a FASTA file), the ids are the names of the arrays instead. The
    file also holds the tokens, their character offsets and the settings; `VectorFile` reads it. A run that is
    interrupted leaves OUT.partial, never OUT. A resumed run gives the same file, bit for bit (on the same machine, with
    the same number of threads).

    Args:
        input: A file (plain, .gz, .bz2 or .xz), or "-" for standard input. Every line or row is embedded on its own.
        out: The file to write: .h5, .hdf5, .npz or .parquet.
        model: Anything that `torchelmo.load` accepts, or an `Elmo`. Default: the model in the package.
        layers: "all", "top", "average", "sum", "concat" or the index of a layer (0 is the token layer).
        pool: Write one vector per line, the mean or the maximum over its tokens. Blank lines get zeros.
        dtype: The type of the numbers in the file.
        precision: The type of the weights in the computation, as in `Elmo.embed`.
        batch_tokens: The number of tokens in a batch.
        state: "reset" starts every sentence from zero state, "carry" from the state after the sentence before.
        lang: The language whose rules split the text. Default: the language of the model, or else English.
        pretokenized: The text is already tokenized, with spaces between the tokens.
        format: "text", "csv", "tsv", "jsonl", "conllu", "parquet" or "fasta". Default: by the suffix of the file.
        text_column: The column with the text; default: "text", or the only column. See `torchelmo.text.rows`.
        id_column: The column with the names of the output's arrays; default: the rows are numbered.
        device: "auto", "cpu", "cuda", "cuda:1" and so on. Ignored if `model` is an `Elmo`.
        resume: Continue an interrupted run. If the output is already complete, nothing is done.
        overwrite: Replace an existing output, and start again if a run was interrupted.

    Returns:
        The path and the size of the output.

    Raises:
        WrongCallError: The arguments contradict each other, or the run to resume had others.
        InputError: The text cannot be read.
        OutputError: The output cannot be written.
    """
    out = Path(out)
    check_paths(input, out, resume=resume, overwrite=overwrite)
    reader = RowReader(input, format=format, text_column=text_column, id_column=id_column)
    n_lines = _check_text(reader)
    elmo, name = open_model(model, device)
    settings = make_settings(
        elmo,
        name,
        layers=layers,
        pool=pool,
        dtype=dtype,
        precision=precision,
        state=state,
        lang=lang,
        pretokenized=pretokenized or reader.has_tokens,
        batch_tokens=batch_tokens,
    )
    shape = shape_function(elmo, settings.layers, pool)
    output = FORMATS[out.suffix](shape, np.dtype(dtype).newbyteorder("<"), dataclasses.asdict(settings))
    partial = partial_folder(out)
    if resume and out.exists() and not (partial / "output").exists():
        return _already_complete(out, settings, shape, reader)
    job = PartialOutput(out, settings.decisive())
    with job.open():
        if resume:
            with os_errors_as_output_error(out):
                output.reopen(job.path)
        if not (resume and job.resume(_tokenize(reader, settings.lang, n_lines), output)):
            job.start(_tokenize(reader, settings.lang, n_lines), output)
        if not len(job.counts):
            raise InputError(f"{source_name(input)}: expected text, found an empty file.")
        _check_space(job, output)
        with progress("embed", len(job.counts), done=job.n_committed, unit="lines") as advance:
            _write_vectors(job, elmo, settings, output, advance)
        job.finish(output)
    return _result(out, settings, shape, len(job.counts), int(job.counts.sum()))


def write_rows(rows: Iterable[Row], out: Path, elmo: "Elmo", settings: JobSettings, *, first_row: int = 0) -> None:
    """Write the vectors of some rows to a new file, from the beginning, and show no progress.

    Args:
        rows: The rows, at least one.
        out: The file. It appears when it is complete, but it is the caller's task to give it its final name.
        elmo: The model.
        settings: How the vectors are computed.
        first_row: The number of the first row in its collection.
    """
    shape = shape_function(elmo, settings.layers, settings.pool)
    about = {**dataclasses.asdict(settings), "first_row": first_row}
    output = FORMATS[out.suffix](shape, np.dtype(settings.dtype).newbyteorder("<"), about)
    job = PartialOutput(out, settings.decisive())
    with job.open():
        job.start(split_rows(rows, settings.lang, _ignore), output)
        _check_space(job, output)
        _write_vectors(job, elmo, settings, output, _ignore)
        job.finish(output)


def _ignore(n: int) -> None:
    """Show no progress."""


def _tokenize(reader: RowReader, lang: str | None, n_lines: int | None) -> Iterator[Line]:
    """Yield the rows of the text, split into sentences of tokens."""
    rows = reader.rows()
    if n_lines is None:  # the rows were not checked
        rows = reader.unique(rows)
    with progress("tokenize", n_lines, unit="lines") as advance:
        yield from split_rows(rows, lang, advance)


def _write_vectors(job: PartialOutput, elmo: "Elmo", settings: JobSettings, output: Output, advance: Advance) -> None:
    """Compute and write the vectors of all lines that are not safe yet."""
    last = time.monotonic()
    number = job.n_committed
    for block in embed_blocks(elmo, job, settings):
        for vectors in block:
            job.append(output.encode(number, vectors.astype(output.dtype, order="C")))
            number += 1
            advance(1)
        # A carried state is lost with the process: a run with it can only be resumed when all vectors are written.
        if settings.state == "reset" and time.monotonic() - last >= COMMIT_SECONDS:
            job.commit()
            last = time.monotonic()
    job.commit()


def check_paths(input: str | Path, out: Path, *, resume: bool, overwrite: bool) -> None:
    """Check everything about the paths of `embed_file` that can be known before any work."""
    inputs = [] if str(input) == "-" else [require_file(input, "a text file")]
    check_output(out, KIND, resume=resume, overwrite=overwrite, suffixes=list(FORMATS), inputs=inputs)


def _check_text(reader: RowReader) -> int | None:
    """Read the text once, to find damage before hours of work; return its number of lines."""
    if str(reader.path) == "-" or not Path(reader.path).is_file():  # a pipe can be read only once
        return None
    n_lines = reader.count()
    if not n_lines:
        raise InputError(f"{reader.path}: expected text, found an empty file.")
    return n_lines


def _check_space(job: PartialOutput, output: Output) -> None:
    """Check that the disk has room for the vectors, before they are computed."""
    needed = job.missing_bytes(output)
    free = shutil.disk_usage(job.folder).free
    if needed > free:
        raise OutputError(
            f"{job.out}: could not be written (No space left on device): the vectors need {needed / 1e9:,.1f} GB more, "
            f"{free / 1e9:,.1f} GB are free. Free some space, or choose another place, `pool`, `layers` or `dtype`."
        )


def _already_complete(out: Path, settings: JobSettings, shape: Shape, reader: RowReader) -> EmbedResult:
    """Return the result of an earlier run, if it is the one that this call would give."""
    expected = settings.decisive()
    digest = hashlib.sha256()
    for row in reader.rows():
        digest.update(text_bytes(row.text, row.id))
    expected["text_sha256"] = digest.hexdigest()
    try:
        with VectorFile(out) as file:
            found, n_lines, n_tokens = file.settings, len(file), file.n_tokens
    except TorchelmoError as error:
        raise OutputExistsError(f"`out` {out}: exists, and is not the output of this call ({error})") from error
    for name, value in expected.items():
        if (found.get(name) or None) != value:
            raise OutputExistsError(
                f"`out` {out}: exists, with {name} = {found.get(name)!r}, and this call has {value!r}. "
                "Choose another name, or replace it with overwrite=True."
            )
    if is_partial(partial_folder(out), KIND):
        PartialOutput(out, {}).remove()  # the process was killed after the output had got its name
    return _result(out, settings, shape, n_lines, n_tokens)._replace(already_complete=True)


def _result(out: Path, settings: JobSettings, shape: Shape, n_lines: int, n_tokens: int) -> EmbedResult:
    # The number of tokens is negative here, and nothing else is: so it can be replaced by a word.
    sizes = tuple("tokens" if size < 0 else size for size in shape(-1))
    return EmbedResult(out, n_lines, n_tokens, sizes, settings.dtype, dataclasses.asdict(settings))
