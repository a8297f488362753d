"""experiments/senses: the list of ambiguous words, and the comparison of pairs."""

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from facts import mentions

FOLDER = Path(__file__).parents[1] / "experiments/senses"


@pytest.fixture(scope="module")
def pairs():
    spec = importlib.util.spec_from_file_location("pairs", FOLDER / "pairs.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.dont_write_bytecode", True)  # the folder is part of the wheel
        spec.loader.exec_module(module)
    return module


def test_every_word_has_two_senses_with_two_sentences_each(pairs):
    uses = pairs.read_uses(FOLDER / "words.tsv")
    assert len({use.word for use in uses}) >= 60
    assert len({tuple(use.tokens) for use in uses}) == len(uses)
    counts = Counter((use.word, use.sense) for use in uses)
    assert set(counts.values()) == {2}
    assert set(Counter(word for word, _ in counts).values()) == {2}
    assert all(use.tokens[use.position] == use.word and use.tokens.count(use.word) == 1 for use in uses)


def test_pairs_are_counted(pairs):
    uses = [pairs.Use("bat", sense, ["bat"], 0) for sense in ("animal", "animal", "sport", "sport")]
    separated = pairs.compare_pairs(uses, np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], dtype=np.float32))
    assert separated == (1.0, 1.0, 1.0, [])
    equal = pairs.compare_pairs(uses, np.ones((4, 2), dtype=np.float32))
    assert equal == (0.0, 0.0, 0.0, ["bat"])


def test_contexts_are_means_of_the_other_words(pairs, tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("bat 9 9\nthe 1 0\nbird 0 3\n", encoding="utf-8")
    found = pairs.average_contexts(str(path), [pairs.Use("bat", "animal", ["The", "bat", "unknown", "bird"], 1)])
    assert found.tolist() == [[0.5, 1.5]]


def test_a_sentence_without_its_word_is_named(pairs, tmp_path):
    path = tmp_path / "words.tsv"
    path.write_text("bat\tanimal\tA [bat] flies .\nbat\tsport\tA bat breaks .\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=mentions("words.tsv:2", "[bat]")):
        pairs.read_uses(path)
