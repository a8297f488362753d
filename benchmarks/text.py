"""Sentences to measure on, and the machine's name."""

import os
import platform
from functools import cache
from pathlib import Path

import numpy as np

from torchelmo.files import read_lines
from torchelmo.text.tokenize import Tokenizer


@cache
def sample_sentences(text: Path | None, n: int) -> list[list[str]]:
    """The first `n` sentences of 3 to 80 tokens; without a text, made-up words by Zipf's law."""
    if text is None:
        return _made_up(n)
    tokenizer = Tokenizer("en")
    sentences: list[list[str]] = []
    for line in read_lines(text):
        sentences += [sentence for sentence in tokenizer.sentences(line) if 3 <= len(sentence) <= 80]
        if len(sentences) >= n:
            break
    return sentences[:n]


def machine() -> str:
    """Processor and cores, as people know them."""
    try:
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        name = names[0].split(":")[1].strip()
    except (OSError, IndexError):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _made_up(n: int) -> list[list[str]]:
    """Word lengths and sentence lengths like those of English; the same on every machine."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    lengths = np.clip(random.gamma(4.0, 1.3, size=50_000).astype(int), 1, 20)
    words = ["".join(random.choice(letters, size=length)) for length in lengths]
    ranks = 1.0 / np.arange(1, len(words) + 1)
    sizes = np.clip(random.gamma(3.0, 6.3, size=n).astype(int), 3, 80)
    drawn = random.choice(len(words), size=int(sizes.sum()), p=ranks / ranks.sum())
    return [[words[i] for i in part] for part in np.split(drawn, np.cumsum(sizes)[:-1])]
