"""Whether a command line that a file shows can be called at all."""

import re

import pytest

from torchelmo.cli import main


def check_command(words, monkeypatch, capsys):
    """`words` of a call of torchelmo: its command exists, and so do the options."""
    # "task" and "analyse" are groups: the name of their command is the next word.
    name = words[1:3] if words[1] in ("task", "analyse") else words[1:2]
    monkeypatch.setenv("COLUMNS", "200")  # a narrow help would cut long options
    monkeypatch.setattr("sys.argv", ["torchelmo", *name, "--help"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code, f"torchelmo {' '.join(name)} is not a command"
    check_options(words, capsys.readouterr().out)


def check_options(words, known):
    for option in (word for word in words if word.startswith("--")):
        assert re.search(rf"{option.split('=')[0]}\b", known), f"{' '.join(words)}: no option {option}"
