"""The names of all commands and options, and a help text for each of them.

`python tests/pinned/make_pins.py commands` writes the snapshot anew; the changelog names every change of it.
"""

import json
import os
import subprocess
import sys

import pytest
from pinned.make_pins import COMMANDS, list_commands, walk_commands


def test_commands_and_options_are_those_of_the_snapshot():
    found, pinned = _names(list_commands()), _names(json.loads(COMMANDS.read_text(encoding="utf-8")))
    assert len(pinned) > 50
    advice = "If this is intended: python tests/pinned/make_pins.py commands"
    assert not pinned - found, f"Missing: {sorted(pinned - found)}. {advice}"
    assert not found - pinned, f"New: {sorted(found - pinned)}. {advice}"


@pytest.mark.parametrize(
    "words", [words for words, _ in walk_commands()], ids=lambda words: " ".join(words) or "(main)"
)
def test_every_command_option_and_argument_has_help(words):
    command = dict(walk_commands())[words]
    assert command.help
    without = [parameter.name for parameter in command.params if not parameter.help]
    assert not without, f"torchelmo {' '.join(words)}: no help text for {', '.join(without)}."


@pytest.mark.parametrize(
    ("words", "expected"), [("torchelmo perp", "perplexity"), ("torchelmo task predict --for", "--format")]
)
def test_a_shell_can_complete_commands_and_options(words, expected):
    environment = {"_TORCHELMO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-m", "torchelmo"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    assert done.stdout.split() == [expected]


def _names(commands: dict[str, list[str]]) -> set[str]:
    """Return each command and each of its options as it is typed."""
    lines = [(name, option) for name, options in commands.items() for option in ["", *options]]
    return {" ".join(["torchelmo", name, option]).replace("  ", " ").strip() for name, option in lines}
