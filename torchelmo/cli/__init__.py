"""The command line: every command parses its arguments, calls a function of the library and prints.

A command is a function with typed arguments, listed in COMMANDS or in the dict of its group. The modules import what
is slow to import (torch, h5py, spaCy) inside functions, so that --help is quick.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from torchelmo.cli import analyse, change, embed, lm, models, predict, surprisal, task
from torchelmo.cli.exit import echo, run, use_utf8_output

COMMANDS: dict[str, Callable[..., None]] = {
    "embed": embed.embed,
    "info": models.info,
    "convert": models.convert,
    "models": models.models,
    "prepare": lm.prepare,
    "pretrain": lm.pretrain,
    "fine-tune": lm.fine_tune,
    "perplexity": predict.perplexity,
    "surprisal": surprisal.surprisal,
    "minimal-pairs": surprisal.minimal_pairs,
    "substitutes": predict.substitutes,
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
    "usages": change.usages,
    "change": change.change,
    "words": analyse.words,
    "align": analyse.align,
}
_COMPLETION = "_TORCHELMO_COMPLETE"  # set by the completion script that Typer writes
_HELP_NAMES = {"help_option_names": ["-h", "--help"]}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `torchelmo …` and exit with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    use_utf8_output()
    sys.exit(run(lambda: _call(given)))


def _call(arguments: list[str]) -> None:
    if _COMPLETION in os.environ:  # a shell asks for the possible next words
        app(prog_name="torchelmo")
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    # app() would handle Ctrl-C, SIGTERM and a closed pipe itself, and lose the notes on how to resume.
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

    MODEL is a model folder, a folder with official files, or the name of a model in the package.
    """


def _group(name: str, commands: dict[str, Callable[..., None]], *, completion: bool = False) -> typer.Typer:
    group = typer.Typer(
        name=name,
        add_completion=completion,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_HELP_NAMES,
    )
    for command, function in commands.items():
        summary = (function.__doc__ or "").partition("\n")[0]  # Typer would cut it in the list of commands
        group.command(command, short_help=summary, context_settings=_HELP_NAMES)(function)
    return group


app = _group("torchelmo", COMMANDS, completion=True)
app.callback()(_about)
app.add_typer(_group("task", TASK_COMMANDS), help="Train, evaluate and use the task models of the paper.")
app.add_typer(_group("analyse", ANALYSE_COMMANDS), help="Examine what the layers encode, as in the paper.")
app.add_typer(_group("analyze", ANALYSE_COMMANDS), help="The same as analyse.", hidden=True)
