"""Run a program that imports AllenNLP's ELMo: `python -m torchelmo.compat.allennlp SCRIPT.py [ARGUMENTS]`."""

import runpy
import sys
from pathlib import Path

from torchelmo.compat.allennlp.install import install

USAGE = """\
Usage: python -m torchelmo.compat.allennlp SCRIPT.py [ARGUMENTS]
       python -m torchelmo.compat.allennlp -m MODULE [ARGUMENTS]

Run a Python program that imports AllenNLP's ELMo, without AllenNLP. An installed AllenNLP is used instead."""


def main(arguments: list[str]) -> int:
    """Run the program that the arguments name, and return an exit code if there is none."""
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(USAGE + "\n")
        return 0
    is_module = arguments[:1] == ["-m"]
    program = arguments[is_module : is_module + 1]
    if not program or program[0].startswith("-"):
        sys.stderr.write(USAGE + "\n")
        return 2
    if not is_module and not Path(program[0]).is_file():
        sys.stderr.write(f"{program[0]}: expected a Python script, found nothing. Check the path.\n")
        return 2
    if not install():
        sys.stderr.write("AllenNLP is installed, so it is used instead of torchelmo.\n")
    if is_module:
        sys.argv = arguments[1:]
        sys.path.insert(0, "")  # as with python -m
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(program[0]).resolve().parent)  # as with python SCRIPT.py
        runpy.run_path(program[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
