"""The minimal pairs of experiments/minimal_pairs."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

from torchelmo import load
from torchelmo.lm.pairs import read_pairs

FOLDER = Path(__file__).parent.parent / "experiments" / "minimal_pairs"


def test_the_file_is_what_the_script_writes():
    script = FOLDER / "make_pairs.py"
    written = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    assert written == (FOLDER / "agreement.jsonl").read_text(encoding="utf-8")


def test_pairs_differ_in_few_words_that_the_model_knows():
    vocabulary = load().vocabulary
    pairs = list(read_pairs(FOLDER / "agreement.jsonl"))
    assert len(set(pairs)) == len(pairs) >= 200
    assert set(Counter(pair.phenomenon for pair in pairs).values()) == {24}
    for pair in pairs:
        good, bad = (text.rstrip(".?").split() for text in pair[:2])
        differing = [words for words in zip(good, bad, strict=True) if words[0] != words[1]]
        assert len(differing) == 1
        assert all(word in vocabulary for words in differing for word in words)
