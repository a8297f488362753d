"""Check command lines that a file shows, without running them."""

import re
from pathlib import Path

import pytest
import typer

from torchelmo.cli import app, main
from torchelmo.config import find_recipe, load_config

ROOT = Path(__file__).parent.parent


def check_call(words, where=""):
    """Parse a complete call of torchelmo with the parser of the command line, and check the settings of --set."""
    command, name = typer.main.get_command(app), []
    rest = list(words[1:])
    while hasattr(command, "commands"):
        if rest[0] in ("--help", "--version", "-h"):
            return
        name.append(rest.pop(0))
        assert name[-1] in command.commands, f"{where}: torchelmo {' '.join(name)} is not a command"
        command = command.commands[name[-1]]
    if {"--help", "--status"} & set(rest):  # they act while the arguments are parsed
        return
    try:
        context = command.make_context(" ".join(name), rest)
    except Exception as error:
        raise AssertionError(f"{where}: {' '.join(words)}: {error}") from error
    if name == ["pretrain"]:
        _check_pretrain_settings(context.params)
    if name == ["task", "train"] and context.params["config"]:
        find_recipe("tasks", context.params["config"])


def check_command(words, monkeypatch, capsys):
    """`words` of a call of torchelmo, possibly incomplete: its command exists, and so do the options."""
    # "task" and "analyse" are groups: the name of their command is the next word.
    name = words[1:3] if words[1] in ("task", "analyse") else words[1:2]
    monkeypatch.setenv("COLUMNS", "200")  # a narrow help would cut long options
    monkeypatch.setattr("sys.argv", ["torchelmo", *name, "--help"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code, f"torchelmo {' '.join(name)} is not a command"
    check_options(words, capsys.readouterr().out)


def check_module(words, where=""):
    """`words` of a call of `python -m benchmarks.…` or of a script: the file exists, and it has the options."""
    file = ROOT / (f"{words[2].replace('.', '/')}.py" if words[1] == "-m" else words[1])
    assert file.exists(), f"{where}: {file} does not exist"
    check_options(words, file.read_text(encoding="utf-8"))


def check_options(words, known):
    for option in (word for word in words if word.startswith("--")):
        assert re.search(rf"{option.split('=')[0]}\b", known), f"{' '.join(words)}: no option {option}"


def _check_pretrain_settings(params):
    from torchelmo.lm.config import PretrainConfig

    path = find_recipe("pretrain", params["config"])
    if (ROOT / path).exists():
        load_config(PretrainConfig, ROOT / path, params["settings"] or [])
