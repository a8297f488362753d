"""Helpers of all benchmarks: sentences to measure on, and a header with machine, commit and command."""

import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch

from torchelmo.files import read_lines
from torchelmo.runtime import processor_name
from torchelmo.text.tokenize import Tokenizer


@cache
def sample_sentences(text: Path | None, n: int) -> list[list[str]]:
    """Return the first `n` sentences of 3 to 80 tokens of a text file. Without a file, sentences of random words."""
    if text is None:
        return _random_sentences(n)
    tokenizer = Tokenizer("en")
    sentences: list[list[str]] = []
    for line in read_lines(text):
        sentences += [sentence for sentence in tokenizer.sentences(line) if 3 <= len(sentence) <= 80]
        if len(sentences) >= n:
            break
    return sentences[:n]


def print_header(*notes: str) -> None:
    """Print the machine, the commit and the command as a Markdown list, followed by `notes`."""
    module = sys.modules["__main__"].__spec__
    program = f"python -m {module.name}" if module else "python"
    lines = [
        f"machine: {machine()}",
        f"commit: {commit()}",
        f"command: `{shlex.join([*program.split(), *sys.argv[1:]])}`",
    ]
    print(*(f"- {line}" for line in [*lines, *notes]), "", sep="\n")


def machine() -> str:
    """Describe the processor and the software that the numbers depend on."""
    versions = f"Python {platform.python_version()}, PyTorch {torch.__version__}"
    return f"{processor_name()}, {os.cpu_count()} cores, {versions}"


def commit() -> str:
    """Return the commit of this repository, marked if files were changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _random_sentences(n: int) -> list[list[str]]:
    """Draw words by Zipf's law, with word and sentence lengths as in English. The result is always the same."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    lengths = np.clip(random.gamma(4.0, 1.3, size=50_000).astype(int), 1, 20)
    words = ["".join(random.choice(letters, size=length)) for length in lengths]
    ranks = 1.0 / np.arange(1, len(words) + 1)
    sizes = np.clip(random.gamma(3.0, 6.3, size=n).astype(int), 3, 80)
    drawn = random.choice(len(words), size=int(sizes.sum()), p=ranks / ranks.sum())
    return [[words[i] for i in part] for part in np.split(drawn, np.cumsum(sizes)[:-1])]
