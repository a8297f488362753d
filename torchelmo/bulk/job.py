"""Embed a file: rows of text → tokens → vectors → file. A run may be interrupted at any moment and resumed later."""

import dataclasses
import difflib
import hashlib
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from torchelmo import __version__
from torchelmo.bulk.outputs import Array, Hdf5Output, Line, NpzOutput, Output, Shape
from torchelmo.bulk.parquet import ParquetOutput
from torchelmo.bulk.partial import PartialOutput, is_ours, partial_folder, remove_partial, text_bytes
from torchelmo.bulk.vectors import VectorFile
from torchelmo.errors import InputError, OutputError, OutputExistsError, TorchelmoError, WrongCallError
from torchelmo.files import require_file, source_name
from torchelmo.progress import progress
from torchelmo.text.rows import RowReader
from torchelmo.text.tokenize import align, tokenizer_for

if TYPE_CHECKING:
    from torchelmo.elmo import Elmo
    from torchelmo.embedder import Embedder

FORMATS: dict[str, Callable[[Shape, np.dtype[Any], dict[str, Any]], Output]] = {
    ".h5": Hdf5Output,
    ".hdf5": Hdf5Output,
    ".npz": NpzOutput,
    ".parquet": ParquetOutput,
}
LAYERS = ("all", "top", "average", "sum", "concat")
COMMIT_SECONDS = 5.0  # a killed run loses no more work than this
_BATCHES_PER_BLOCK = 4  # batches that are sorted by length together; fixed, so that a resumed run forms the same ones
_BLOCKS_PER_CACHE = 64  # blocks that share token vectors: a resumed run encodes the words of fewer blocks again


class EmbedResult(NamedTuple):
    """What `embed_file` wrote."""

    path: Path
    n_lines: int
    n_tokens: int
    shape: tuple[int | str, ...]  # of a line's array; "tokens" is its number of tokens
    dtype: str
    settings: dict[str, Any]
    already_complete: bool = False  # there was nothing left to do for `resume`


@dataclasses.dataclass(frozen=True)
class _Settings:
    """Everything that determines the numbers in the file."""

    model: str
    fingerprint: str  # hash of the weights
    layers: str
    pool: str | None
    dtype: str
    precision: str
    state: str
    lang: str | None  # None for text that is already tokenized
    batch_tokens: int
    device: str
    torchelmo: str = __version__

    def decisive(self) -> dict[str, Any]:
        """Return the settings that must be the same for a resumed run."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ("model", "torchelmo")}


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
    elmo, name = _open_model(model, device)
    layers = _check_layers(str(layers), elmo.bilm.config.n_layers)
    lang = None if pretokenized or reader.has_tokens else (lang or getattr(elmo.bilm, "lang", None) or "en")
    settings = _Settings(
        model=name,
        fingerprint=elmo.bilm.fingerprint(),
        layers=layers,
        pool=pool,
        dtype=dtype,
        precision=precision,
        state=state,
        lang=lang,
        batch_tokens=batch_tokens,
        device=next(elmo.bilm.parameters()).device.type,
    )
    shape = _shape_function(elmo, layers, pool)
    output = FORMATS[out.suffix](shape, np.dtype(dtype).newbyteorder("<"), dataclasses.asdict(settings))
    partial = partial_folder(out)
    if resume and out.exists() and not (partial / "output").exists():
        return _already_complete(out, settings, shape, reader)
    job = PartialOutput(out, settings.decisive())
    with job.open():
        if not (resume and job.resume(_split_rows(reader, lang, n_lines), output)):
            job.start(_split_rows(reader, lang, n_lines), output)
        if not len(job.counts):
            raise InputError(f"{source_name(input)}: expected text, found an empty file.")
        _check_space(job, output)
        _write_vectors(job, elmo, settings, output)
        job.finish(output)
    return _result(out, settings, shape, len(job.counts), int(job.counts.sum()))


def _write_vectors(job: PartialOutput, elmo: "Elmo", settings: _Settings, output: Output) -> None:
    """Compute and write the vectors of all lines that are not safe yet."""
    last = time.monotonic()
    number = job.n_committed
    with progress("embed", len(job.counts), done=number, unit="lines") as advance:
        for block in _embed_blocks(elmo, job, settings):
            for vectors in block:
                job.append(output.encode(number, vectors.astype(output.dtype, order="C")))
                number += 1
                advance(1)
            # A carried state is lost with the process: a run with it can only be resumed when all vectors are written.
            if settings.state == "reset" and time.monotonic() - last >= COMMIT_SECONDS:
                job.commit()
                last = time.monotonic()
        job.commit()


def _embed_blocks(elmo: "Elmo", job: PartialOutput, settings: _Settings) -> Iterator[Iterator[Array]]:
    """Yield the vectors of all lines that are not safe yet, block by block.

    Equal vectors, bit for bit, need equal batches, also of the words that are not in the cache. A resumed run therefore
    has the same blocks, and the same cache: its own, which is emptied every few blocks and filled again up to here.
    """
    embedder = _make_embedder(elmo, settings)
    if job.n_committed == len(job.counts):
        return
    if settings.state == "carry":
        yield _embed(embedder, job.lines(), settings)
        return
    starts = [0]
    for block in _blocks(job.lines(), settings):
        if starts[-1] >= job.n_committed:
            break
        starts.append(starts[-1] + len(block))
    if starts[-1] != job.n_committed:
        raise OutputError(
            f"{job.folder}: cannot be resumed: journal.jsonl: expected whole blocks of lines, such as {starts[-1]:,}, "
            f"found {job.n_committed:,}. Start again with overwrite=True."
        )
    n_done = len(starts) - 1  # blocks that are safe
    first = n_done - n_done % _BLOCKS_PER_CACHE
    for number, block in enumerate(_blocks(job.lines(starts[first]), settings), first):
        if number % _BLOCKS_PER_CACHE == 0:
            embedder.cache.clear()
        if number < n_done:
            embedder.fill_cache([token.text for token in sentence] for line in block for sentence in line.sentences)
        else:
            yield _embed(embedder, iter(block), settings)


def _blocks(lines: Iterator[Line], settings: _Settings) -> Iterator[list[Line]]:
    """Yield lines that are sorted by length together: the number of batches is fixed."""
    block: list[Line] = []
    n_tokens = 0
    for line in lines:
        block.append(line)
        n_tokens += 1 + sum(len(sentence) + 2 for sentence in line.sentences)
        if n_tokens >= _BATCHES_PER_BLOCK * settings.batch_tokens:
            yield block
            block, n_tokens = [], 0
    if block:
        yield block


def _make_embedder(elmo: "Elmo", settings: _Settings) -> "Embedder":
    """Return an embedder with a cache of its own, so that earlier uses of the model do not change the last digits."""
    from torchelmo.bilm.fast.cache import TokenVectorCache
    from torchelmo.embedder import Embedder, EmbedSettings

    choice: Any = settings.layers
    if choice in ("sum", "concat"):
        choice = "all"  # combined later, see _combine
    elif choice not in LAYERS:
        choice = int(choice)
    embed_settings = EmbedSettings(
        choice,
        batch_tokens=settings.batch_tokens,
        precision=settings.precision,  # type: ignore[arg-type]
        state=settings.state,  # type: ignore[arg-type]
    )
    return Embedder(elmo.bilm, elmo.mixes[0], TokenVectorCache(elmo.token_cache.capacity), embed_settings)


def _embed(embedder: "Embedder", lines: Iterator[Line], settings: _Settings) -> Iterator[Array]:
    """Yield the array of each line. Its sentences are embedded one by one and joined."""
    waiting: deque[int] = deque()  # the number of sentences of each line that was read

    def sentences() -> Iterator[list[str]]:
        for line in lines:
            waiting.append(len(line.sentences))
            for sentence in line.sentences:
                yield [token.text for token in sentence]

    config = embedder.bilm.config
    whole = embedder.settings.layers == "all"
    empty = np.zeros((*([config.n_layers + 1] if whole else []), 0, config.dim), dtype=np.float32)
    parts: list[Array] = []
    for array in embedder(sentences()):
        while waiting and waiting[0] == len(parts):  # blank lines, and a line that is complete
            waiting.popleft()
            yield _combine(parts or [empty], settings)
            parts = []
        parts.append(array)
    while waiting:
        assert waiting[0] == len(parts)
        waiting.popleft()
        yield _combine(parts or [empty], settings)
        parts = []


def _combine(parts: list[Array], settings: _Settings) -> Array:
    """Join the arrays of a line's sentences, combine their layers and pool their tokens."""
    array = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-2)
    if settings.layers == "sum":
        array = array.sum(axis=0)
    elif settings.layers == "concat":
        array = np.concatenate(list(array), axis=-1)
    if settings.pool is None:
        return array
    if not array.shape[-2]:
        return np.zeros_like(array, shape=(*array.shape[:-2], array.shape[-1]))
    pooled: Array = array.mean(axis=-2) if settings.pool == "mean" else array.max(axis=-2)
    return pooled


def _shape_function(elmo: "Elmo", layers: str, pool: str | None) -> Shape:
    """Return a function from the number of a line's tokens to the shape of its array."""
    n_layers, dim = elmo.bilm.config.n_layers + 1, elmo.bilm.config.dim
    leading = (n_layers,) if layers == "all" else ()
    width = n_layers * dim if layers == "concat" else dim
    return lambda n_tokens: (*leading, *(() if pool else (n_tokens,)), width)


def _split_rows(reader: RowReader, lang: str | None, n_lines: int | None) -> Iterator[Line]:
    """Yield the rows of the text, split into sentences of tokens."""
    rows = reader.rows()
    if n_lines is None:  # the rows were not checked
        rows = reader.unique(rows)
    with progress("tokenize", n_lines, unit="lines") as advance:
        for row in rows:
            if row.tokens is None and lang is not None:
                sentences = tokenizer_for(lang).spans(row.text)
            else:
                words = row.text.split() if row.tokens is None else row.tokens
                sentences = align([words], row.text) if words else []
            yield Line(row.text, sentences, row.id)
            advance(1)


def check_paths(input: str | Path, out: Path, *, resume: bool, overwrite: bool) -> None:
    """Check everything about the paths of `embed_file` that can be known before any work."""
    if resume and overwrite:
        raise WrongCallError(
            "Expected resume=True, which continues a run, or overwrite=True, which starts again; got both."
        )
    if out.suffix not in FORMATS:
        raise WrongCallError(f"`out` {out}: expected a name that ends in {', '.join(FORMATS)}.")
    if str(input) != "-":
        require_file(input, "a text file")
        if out.exists() and os.path.samefile(input, out):
            raise WrongCallError(f"`out` {out}: is the input itself. Choose another name.")
    if out.is_dir():
        raise WrongCallError(f"`out` {out}: expected the name of a file, found a directory.")
    if out.exists() and not (overwrite or resume):
        raise OutputExistsError(f"`out` {out}: exists. Choose another name, or replace it with overwrite=True.")
    partial = partial_folder(out)
    if not partial.exists() and not partial.is_symlink():
        return
    if not is_ours(partial):
        raise OutputExistsError(
            f"{partial}: expected the unfinished output of an earlier run, found something else, which was left alone. "
            "Move it away, or choose another `out`."
        )
    if not (resume or overwrite):
        raise OutputExistsError(
            f"{partial}: an earlier run was interrupted. Continue it with resume=True, or start again with "
            "overwrite=True."
        )


def _check_text(reader: RowReader) -> int | None:
    """Read the text once, to find damage before hours of work; return its number of lines."""
    if str(reader.path) == "-" or not Path(reader.path).is_file():  # a pipe can be read only once
        return None
    n_lines = reader.count()
    if not n_lines:
        raise InputError(f"{reader.path}: expected text, found an empty file.")
    return n_lines


def _check_layers(layers: str, n_layers: int) -> str:
    if layers in LAYERS or (layers.isdecimal() and int(layers) <= n_layers):
        return layers
    near = difflib.get_close_matches(layers, LAYERS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise WrongCallError(f"`layers` {layers}: expected {', '.join(LAYERS)}, or an index from 0 to {n_layers}.{hint}")


def _check_space(job: PartialOutput, output: Output) -> None:
    """Check that the disk has room for the vectors, before they are computed."""
    needed = job.missing_bytes(output)
    free = shutil.disk_usage(job.folder).free
    if needed > free:
        raise OutputError(
            f"{job.out}: could not be written (No space left on device): the vectors need {needed / 1e9:,.1f} GB more, "
            f"{free / 1e9:,.1f} GB are free. Free some space, or choose another place, `pool`, `layers` or `dtype`."
        )


def _open_model(model: "str | Path | Elmo | None", device: str) -> "tuple[Elmo, str]":
    """Return the model and its name."""
    from torchelmo.elmo import Elmo
    from torchelmo.formats.load import DEFAULT_MODEL, load
    from torchelmo.runtime import choose_device

    if isinstance(model, Elmo):
        return model, str(model.bilm.origin)
    place = choose_device(device)
    return Elmo(load(model).to(place)).eval(), str(model or DEFAULT_MODEL)


def _already_complete(out: Path, settings: _Settings, shape: Shape, reader: RowReader) -> EmbedResult:
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
    if is_ours(partial_folder(out)):
        remove_partial(partial_folder(out))  # the process was killed after the output had got its name
    return _result(out, settings, shape, n_lines, n_tokens)._replace(already_complete=True)


def _result(out: Path, settings: _Settings, shape: Shape, n_lines: int, n_tokens: int) -> EmbedResult:
    # The number of tokens is negative here, and nothing else is: so it can be replaced by a word.
    sizes = tuple("tokens" if size < 0 else size for size in shape(-1))
    return EmbedResult(out, n_lines, n_tokens, sizes, settings.dtype, dataclasses.asdict(settings))
