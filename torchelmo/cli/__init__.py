"""The command line: each command builds its settings, calls the library and prints.

A command is a function with typed arguments; adding it to COMMANDS puts it on the command line. Modules here
import what is heavy (torch, h5py, spaCy) inside their functions, so that --help is quick.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from torchelmo.cli import embed, measure, models, prepare, train
from torchelmo.cli.ending import echo, run

COMMANDS: dict[str, Callable[..., None]] = {
    "embed": embed.embed,
    "info": models.info,
    "convert": models.convert,
    "prepare": prepare.prepare,
    "pretrain": train.pretrain,
    "fine-tune": train.fine_tune,
    "perplexity": measure.perplexity,
    "surprisal": measure.surprisal,
    "substitutes": measure.substitutes,
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `torchelmo …` and end with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(lambda: _call(given)))


def _call(arguments: list[str]) -> None:
    # Not app(): that ends the process by itself and prints errors in a way of its own.
    command: Any = typer.main.get_command(app)
    with command.make_context("torchelmo", arguments) as context:
        command.invoke(context)


def _print_version(wanted: bool) -> None:
    if wanted:
        from torchelmo import __version__

        echo(f"torchelmo {__version__}")
        raise typer.Exit


def _about(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit."),
    ] = False,
) -> None:
    """ELMo: deep contextual word vectors.

    MODEL is a model folder, a folder with official files, or the name of a model inside the package.
    """


app = typer.Typer(name="torchelmo", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.callback()(_about)
for _name, _function in COMMANDS.items():
    app.command(_name)(_function)
