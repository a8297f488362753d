"""The command line: each command builds its settings, calls the library and prints.

A command is a function with typed arguments; adding it to COMMANDS puts it on the command line. Modules here
import what is heavy (torch, h5py, spaCy) inside their functions, so that --help is quick.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from torchelmo.cli import analyse, embed, models, task
from torchelmo.cli import lm as measure
from torchelmo.cli import lm as prepare
from torchelmo.cli import lm as train
from torchelmo.cli.exit import echo, run, speak_utf8

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
TASK_COMMANDS: dict[str, Callable[..., None]] = {
    "train": task.train,
    "evaluate": task.evaluate,
    "predict": task.predict,
    "table": task.table,
}
ANALYSE_COMMANDS: dict[str, Callable[..., None]] = {
    "wsd": analyse.wsd,
    "neighbours": analyse.neighbours,
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `torchelmo …` and end with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    speak_utf8()
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


def _group(name: str, commands: dict[str, Callable[..., None]]) -> typer.Typer:
    group = typer.Typer(name=name, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    for command, function in commands.items():
        group.command(command)(function)
    return group


app = _group("torchelmo", COMMANDS)
app.callback()(_about)
app.add_typer(_group("task", TASK_COMMANDS), help="Train, evaluate and use the task models of the paper.")
app.add_typer(_group("analyse", ANALYSE_COMMANDS), help="See what the layers know, by the analyses of the paper.")
