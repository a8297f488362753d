"""torchelmo embed: turn text into vectors on disk."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from torchelmo.cli.exit import echo, log
from torchelmo.cli.options import (
    BatchTokens,
    Device,
    Lang,
    Model,
    Overwrite,
    Pretokenized,
    Resume,
    State,
    Threads,
    use_device,
)
from torchelmo.progress import count
from torchelmo.text.rows import Format, RowReader

Float = Literal["float32", "float16"]


def embed(
    input_: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A text file, of which each line is embedded, a .csv, .tsv, .jsonl, .conllu or .parquet file, or "
            "proteins in a .fasta, .fa or .faa file (also .gz, .bz2, .xz); - for standard input.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write: .h5, .npz or .parquet.")],
    model: Model = None,
    layers: Annotated[
        str,
        typer.Option(help="all: every layer; top, average, sum or concat; or a layer by its index, 0 for the tokens'."),
    ] = "all",
    pool: Annotated[
        Literal["mean", "max"] | None,
        typer.Option(help="Write one vector per line: the mean or maximum over its tokens."),
    ] = None,
    lang: Lang = None,
    pretokenized: Pretokenized = False,
    format_: Annotated[
        Format | None, typer.Option("--format", help="Format of INPUT. Default: by its suffix, else text.")
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column with the text (or lists of tokens). Default: text, or the only one."),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column with the names of the arrays. Default: rows are numbered from 0."),
    ] = None,
    dtype: Annotated[Float, typer.Option(help="Type of the numbers in the file.")] = "float32",
    precision: Annotated[
        Literal["float32", "float16", "int8"],
        typer.Option(
            help="Type of the weights in the computation. float16 and int8 are faster for large models; int8 is less "
            "exact and needs a CPU with VNNI instructions."
        ),
    ] = "float32",
    batch_tokens: BatchTokens = 2048,
    state: State = "reset",
    device: Device = "auto",
    threads: Threads = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Turn text into vectors.

    The first line becomes the array "0" of the file, the second "1", and so on: (layers, tokens, dim) for all layers,
    else (tokens, dim). With --id-column, and for FASTA, the ids are the names of the arrays. In a FASTA file, every
    residue is a token; CoNLL-U has tokens, too. A blank line has no tokens, and a vector of zeros with --pool. The file
    also holds the tokens, their character offsets and the settings. A run that is interrupted leaves OUT.partial, never
    OUT; --resume continues it.
    """
    from torchelmo.bulk.job import check_paths, embed_file

    # Before PyTorch is loaded, which takes seconds.
    check_paths(input_, out, resume=resume, overwrite=overwrite)
    RowReader(input_, format=format_, text_column=text_column, id_column=id_column)
    result = embed_file(
        input_,
        out,
        model=model,
        device=use_device(device, threads),
        layers=layers,
        pool=pool,
        dtype=dtype,
        precision=precision,
        batch_tokens=batch_tokens,
        state=state,
        lang=lang,
        pretokenized=pretokenized,
        format=format_,
        text_column=text_column,
        id_column=id_column,
        resume=resume,
        overwrite=overwrite,
    )
    shape = ", ".join(map(str, result.shape))
    about = f"{count(result.n_lines, 'lines')}, {count(result.n_tokens, 'tokens')}, arrays ({shape}) {result.dtype}"
    if result.already_complete:
        log.info("%s: was already complete; nothing was done.", out)
    echo(f"{out}: {about}, model {result.settings['model']}")
