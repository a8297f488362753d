"""torchelmo embed: turn text into vectors on disk."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from torchelmo.cli.exit import echo, log, name_flags
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
    check_resume,
    use_device,
)
from torchelmo.errors import WrongCallError
from torchelmo.progress import count
from torchelmo.text.rows import Format, RowReader

Float = Literal["float32", "float16"]
_FILES = (".h5", ".hdf5", ".npz", ".parquet")
_OTHER_FILES = (".csv", ".json", ".jsonl", ".npy", ".pt", ".safetensors", ".tsv", ".txt")  # not names of folders


def _print_status(folder: Path | None) -> None:
    """Print how far a collection is, and exit."""
    if folder is None:
        return
    from torchelmo.bulk.shards import read_status

    status = read_status(folder)
    left = "" if status.seconds_left is None else f", {timedelta(seconds=round(status.seconds_left))} left"
    state = "complete" if status.complete else f"not complete{left}"
    echo(
        f"{folder}: {status.n_done:,} of {count(status.n_shards, 'shards')}, {status.n_rows_done:,} of "
        f"{count(status.n_rows, 'rows')}, {count(status.n_tokens_done, 'tokens')}; {state}"
    )
    for name, error in status.failed.items():
        echo(f"failed: {name}: {name_flags(error)}")
    raise typer.Exit


def embed(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT…",
            help="A text file, of which each line is embedded, a .csv, .tsv, .jsonl, .conllu or .parquet file, or "
            "proteins in a .fasta, .fa or .faa file (also .gz, .bz2, .xz); - for standard input. Several files, "
            "folders and globs are a collection.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="File to write: .h5, .npz or .parquet; or the folder of a collection, such as vectors/."),
    ],
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
    shards: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of files of a collection, approximately.")
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Text for one file of a collection, such as 64MB. Default: 4MB."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, metavar="K", help="Processes for a collection; they share the threads.")
    ] = 1,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Run part I of N of a collection, counted from 1; other jobs run the others."),
    ] = None,
    out_format: Annotated[
        Literal["parquet", "h5", "npz"], typer.Option(help="Format of the files of a collection.")
    ] = "parquet",
    status: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            is_eager=True,
            callback=_print_status,
            help="Print what is done of the collection in DIR and how long the rest takes, and exit.",
        ),
    ] = None,
) -> None:
    """Turn text into vectors.

    The first line becomes the array "0" of the file, the second "1", and so on: (layers, tokens, dim) for all layers,
    else (tokens, dim). With --id-column, and for FASTA, the ids are the names of the arrays. In a FASTA file, every
    residue is a token; CoNLL-U has tokens, too. A blank line has no tokens, and a vector of zeros with --pool. The file
    also holds the tokens, their character offsets and the settings. A run that is interrupted leaves OUT.partial, never
    OUT; --resume continues it.

    If OUT is a folder, the inputs are divided into shards, each of which becomes a file in OUT; manifest.json lists
    them when all are there. The same command again continues an interrupted run.
    """
    settings: dict[str, Any] = {
        "layers": layers,
        "pool": pool,
        "dtype": dtype,
        "precision": precision,
        "batch_tokens": batch_tokens,
        "lang": lang,
        "pretokenized": pretokenized,
        "format": format_,
        "text_column": text_column,
        "id_column": id_column,
    }
    if out.suffix in _OTHER_FILES and not out.is_dir():
        raise WrongCallError(f"--out {out}: expected a folder, or a name that ends in {', '.join(_FILES)}.")
    if out.suffix in _FILES and not out.is_dir():
        if len(inputs) > 1 or shards or shard_size or shard or workers > 1:
            raise WrongCallError(
                f"--out {out}: expected a folder, such as {out.with_suffix('')}/, for several inputs and for --shards, "
                "--shard-size, --shard and --workers."
            )
        from torchelmo.bulk.job import check_paths, embed_file

        # Before PyTorch is loaded, which takes seconds.
        check_paths(inputs[0], out, resume=resume, overwrite=overwrite)
        RowReader(inputs[0], format=format_, text_column=text_column, id_column=id_column)
        place = use_device(device, threads)
        one = embed_file(
            inputs[0], out, model=model, device=place, state=state, resume=resume, overwrite=overwrite, **settings
        )
        if one.already_complete:
            log.info("%s: was already complete; nothing was done.", out)
        shape = ", ".join(map(str, one.shape))
        about = f"{count(one.n_lines, 'lines')}, {count(one.n_tokens, 'tokens')}, arrays ({shape}) {one.dtype}"
        echo(f"{out}: {about}, model {one.settings['model']}")
        return
    from torchelmo.bulk.plan import find_files, parse_size
    from torchelmo.bulk.workers import embed_files

    check_resume(resume, overwrite)
    if state == "carry":
        raise WrongCallError("--state carry: the shards of a collection are independent. Write one file instead.")
    part = _parse_part(shard)
    for path in find_files(inputs, out):
        RowReader(path, format=format_, text_column=text_column, id_column=id_column)
    if shard_size is not None:
        parse_size(shard_size)
    settings |= {"n_shards": shards, "shard_size": shard_size, "file_format": out_format, "overwrite": overwrite}
    place = use_device(device, threads)
    many = embed_files(inputs, out, model=model, device=place, workers=workers, threads=threads, part=part, **settings)
    if many.already_complete:
        log.info("%s: was already complete; nothing was done.", out)
    of_all = f"{many.n_done:,} of " if many.n_done < many.n_shards else ""
    about = f"{of_all}{count(many.n_shards, 'shards')}, {count(many.n_rows, 'rows')}, {count(many.n_tokens, 'tokens')}"
    echo(f"{out}: {about}, model {many.settings['model']}")


def _parse_part(shard: str | None) -> tuple[int, int] | None:
    """Return (1, 8) for "1/8"."""
    if shard is None:
        return None
    numbers = shard.split("/")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise WrongCallError(f"--shard {shard}: expected I/N, such as 1/8.")
    return int(numbers[0]), int(numbers[1])
