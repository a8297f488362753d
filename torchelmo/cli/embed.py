"""torchelmo embed: one sentence per line in, one array per line out."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from torchelmo.bulk.job import LAYERS, Settings, check_size, embed_lines, put_together
from torchelmo.bulk.outputs import FORMATS
from torchelmo.bulk.partial import Spool
from torchelmo.cli.exit import echo
from torchelmo.config import suggest
from torchelmo.errors import InputError, WrongCallError
from torchelmo.files import read_lines, require_file

if TYPE_CHECKING:
    from torchelmo import Elmo

Float = Literal["float32", "float16"]


def embed(
    input_: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="One sentence per line: a file (also .gz, .bz2, .xz), or -."),
    ],
    out: Annotated[Path, typer.Option(help="File to write: .h5, .npz or .safetensors.")],
    model: Annotated[
        str | None, typer.Option(help="A model folder, official files, or a name; default: english-small.")
    ] = None,
    layers: Annotated[
        str, typer.Option(help="all: every layer; top; average; or one by its index, 0 for the token layer.")
    ] = "all",
    tokenize: Annotated[
        str | None,
        typer.Option(metavar="LANG", help="For raw text: split by spaCy's rules for this language (en, de, …)."),
    ] = None,
    pool: Annotated[
        Literal["mean", "max"] | None,
        typer.Option(help="One vector per line: mean or maximum over its tokens."),
    ] = None,
    dtype: Annotated[Float, typer.Option(help="Numbers in the file.")] = "float32",
    precision: Annotated[Float, typer.Option(help="Numbers to compute with.")] = "float32",
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens at once; fewer need less memory.")] = 2048,
    state: Annotated[
        Literal["reset", "carry"],
        typer.Option(help="reset: every sentence starts from zero; carry: where the one before it ended."),
    ] = "reset",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …, or mps.")] = "cpu",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file; start again where a run was interrupted.")
    ] = False,
) -> None:
    """Turn text into vectors.

    Line N (counted from 0) becomes the array "N" of the file, (layers, tokens, dim) for all layers and else
    (tokens, dim); a blank line has no tokens, and a vector of zeros with --pool. A run that ends early leaves
    OUT.partial, never OUT; --resume goes on from it.
    """
    partial = out.with_name(out.name + ".partial")
    _check_call(input_, out, partial, resume=resume, overwrite=overwrite, carry=state == "carry")
    n_lines = _count_lines(input_)
    check_size(out, n_lines or 0)
    elmo = load_elmo(model, device)
    _check_layers(layers, elmo.bilm.config.n_layers)
    # Not before the call is checked: PyTorch takes seconds.
    from torchelmo.text.tokenize import tokenizer_for

    if tokenize is not None:
        tokenizer_for(tokenize)  # an unknown language is an error now, before a file is begun
    settings = Settings(elmo.bilm.fingerprint(), layers, tokenize, pool, dtype, precision, batch_tokens, state, device)
    start = Spool.resume if resume and partial.exists() else Spool.create
    spool = start(partial, dataclasses.asdict(settings))
    try:
        embed_lines(spool, elmo, input_, settings, n_lines)
        check_size(out, spool.n_lines)
        put_together(spool, out)
    except BaseException as error:
        spool.leave(error)
        raise
    echo(f"{out}: {spool.n_lines:,} lines")


def _check_call(input_: str, out: Path, partial: Path, *, resume: bool, overwrite: bool, carry: bool) -> None:
    """Everything about the files that can be known before any work."""
    if out.suffix not in FORMATS:
        raise WrongCallError(f"--out {out}: expected a name that ends in {', '.join(FORMATS)}.")
    if resume and carry:
        raise WrongCallError(
            "--resume: a run with --state carry cannot go on, because the state it had is gone. "
            "Start again with --overwrite, or use --state reset."
        )
    if input_ != "-":
        require_file(input_, "a text file")
        if out.exists() and os.path.samefile(input_, out):
            raise WrongCallError(f"--out {out}: is the input itself. Choose another name.")
    if out.is_dir():
        raise WrongCallError(f"--out {out}: expected the name of a file, found a directory.")
    if out.exists() and not overwrite:
        raise WrongCallError(f"--out {out}: exists. Choose another name, or replace it with --overwrite.")
    if partial.exists() and not (resume or overwrite):
        raise WrongCallError(
            f"{partial}: an earlier run was interrupted there. Go on with --resume, or start again with --overwrite."
        )


def _count_lines(input_: str) -> int | None:
    """For the progress, and to find damage and bytes that are not UTF-8 before hours of work, not after."""
    if input_ == "-" or not Path(input_).is_file():  # a pipe can be read only once
        return None
    n_lines = sum(1 for _ in read_lines(input_))
    if not n_lines:
        raise InputError(f"{input_}: expected text, one sentence per line; it is empty.")
    return n_lines


def _check_layers(layers: str, n_layers: int) -> None:
    if layers not in LAYERS and not (layers.isdecimal() and int(layers) <= n_layers):
        hint = "" if layers.lstrip("-").isdecimal() else suggest(layers, LAYERS)
        raise WrongCallError(
            f"--layers {layers}: expected {', '.join(LAYERS)}, or an index from 0 to {n_layers}.{hint}"
        )


def load_elmo(model: str | None, device: str) -> "Elmo":
    """The model of --model on --device."""
    import torch

    from torchelmo import Elmo, load

    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise WrongCallError(f"--device {device}: cannot be used here ({reason}). Try cpu.") from error
    return Elmo(load(model).to(place)).eval()
