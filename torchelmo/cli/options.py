"""The options that commands share, so that one idea has one name everywhere, and the model that they name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from torchelmo.errors import ConfigError, WrongCallError, shorten
from torchelmo.files import require_file

if TYPE_CHECKING:
    from torchelmo import BiLM, Elmo

Model = Annotated[
    str | None,
    typer.Option(help="A model folder, a folder with official files, or a name. Default: english-small."),
]
ModelAndTexts = Annotated[
    list[str],
    typer.Argument(
        metavar="[MODEL] TEXT",
        help="The model (default: english-small), then text files (also .gz, .bz2, .xz), globs, or - for standard "
        "input. A line is a paragraph.",
    ),
]
Lang = Annotated[
    str | None,
    typer.Option(
        metavar="CODE",
        help="Language of the text, whose rules split it into tokens: en, de, xx, … Default: that of the model, or en.",
    ),
]
Pretokenized = Annotated[
    bool,
    typer.Option("--pretokenized", help="The text is tokenized: a line is a sentence, with spaces between its tokens."),
]
State = Annotated[
    Literal["reset", "carry"],
    typer.Option(help="reset: every sentence starts from zero state; carry: from the state after the one before it."),
]
BatchTokens = Annotated[int, typer.Option(min=1, metavar="N", help="Tokens in a batch; fewer need less memory.")]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:1, …")]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="CPU threads. Default: one for each core.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, for example optim.lr=0.01. Can be repeated."),
]
TableOut = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write the results to this file, which --resume can continue."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run. A finished run is left as it is.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]


def split_model_and_texts(arguments: list[str], model: str | None = None) -> tuple[str | None, list[str]]:
    """Separate the optional MODEL from TEXT….

    The first argument is the model if it is a folder with a model, an archive or no file at all. So
    `torchelmo surprisal text.txt` uses the default model.

    >>> split_model_and_texts(["english-small", "text.txt"])
    ('english-small', ['text.txt'])
    >>> split_model_and_texts(["-"])
    (None, ['-'])
    """
    if model is not None:
        return model, arguments
    first, *texts = arguments
    if not _is_model(first, alone=not texts):
        return None, arguments
    if not texts:
        raise WrongCallError(f"Missing argument 'TEXT': expected text files after the model {first}, found none.")
    return first, texts


def check_resume(resume: bool, overwrite: bool) -> None:
    """Refuse --resume together with --overwrite."""
    if resume and overwrite:
        raise WrongCallError("Expected --resume, which continues a run, or --overwrite, which starts again; got both.")


def check_text(path: str) -> None:
    """Check that a text file exists, before a model is loaded, which takes longer."""
    if path != "-":
        require_file(path, "a text file")


def language_of(bilm: "BiLM", lang: str | None, pretokenized: bool) -> str | None:
    """Return the language whose rules split the text, or None for text that is already tokenized."""
    if pretokenized and lang is not None:
        raise WrongCallError("Expected --lang, for raw text, or --pretokenized; got both.")
    return None if pretokenized else lang or getattr(bilm, "lang", None) or "en"


def use_device(device: str, threads: int | None = None) -> str:
    """Check --device, set the number of threads, and return the device."""
    import torch

    from torchelmo.runtime import choose_device

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        place = choose_device(device)
        torch.empty(1, device=place)
    except ConfigError as error:
        raise WrongCallError(f"--device {device}: {str(error).removeprefix('device: ')}") from error
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:  # of the driver
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise WrongCallError(
            f"--device {device}: cannot be used here ({shorten(reason)}). Use auto, cpu, or cuda with a GPU."
        ) from error
    return str(place)


def load_bilm(model: str | None, device: str = "auto", threads: int | None = None) -> "BiLM":
    """Load the model of --model to --device."""
    place = use_device(device, threads)
    from torchelmo import load

    return load(model).to(place)


def load_elmo(model: str | None, device: str = "auto", threads: int | None = None) -> "Elmo":
    """Load the model of --model to --device, ready to embed."""
    from torchelmo import Elmo

    return Elmo(load_bilm(model, device, threads)).eval()


def _is_model(argument: str, *, alone: bool) -> bool:
    path = Path(argument)
    if path.is_dir():
        return not (path / "card.json").exists()  # prepared text, whose held-out part perplexity measures
    if path.exists() or argument == "-" or any(sign in argument for sign in "*?["):
        return argument.endswith((".zip", ".tar", ".tar.gz", ".tgz"))
    from torchelmo.formats.load import PRETRAINED

    return not alone or (PRETRAINED / argument / "config.json").exists()
