"""The model that comes with the package: whole, small, and one that knows some English."""

import random
import re
import runpy
from pathlib import Path

import pytest
from safetensors import safe_open

import torchelmo
from torchelmo import Elmo
from torchelmo.analysis import compare
from torchelmo.formats.load import DEFAULT_MODEL, PRETRAINED
from torchelmo.lm.predict import perplexity

FOLDER = PRETRAINED / DEFAULT_MODEL
ROOT = Path(__file__).parent.parent

TEXT = [
    "The old man walked slowly down to the river and sat on a stone .",
    "He had lived in the village for many years , and everyone knew his name .",
    "In the morning the children went to school , and in the evening they came home .",
    "The war ended in 1945 , and the city was rebuilt by the people who had stayed .",
    "She did not know what to say , so she said nothing .",
    "The company was founded in London and moved to New York in the following year .",
]


@pytest.fixture(scope="module")
def bilm():
    return torchelmo.load()


def test_it_is_small_and_complete():
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert files.keys() == {"config.json", "model.safetensors", "vocab.txt", "README.md"}
    assert sum(files.values()) <= 40_000_000
    with safe_open(FOLDER / "model.safetensors", framework="pt") as tensors:
        assert {tensors.get_slice(name).get_dtype() for name in tensors.keys()} == {"F16"}  # noqa: SIM118


def test_it_has_a_name_a_softmax_and_its_words(bilm):
    assert bilm.config == torchelmo.load("english-small").config
    assert bilm.softmax is not None
    assert len(bilm.vocabulary) == bilm.config.softmax_words >= 30_000
    assert {"the", "The", "bow", ","} <= set(bilm.vocabulary.words)


def test_its_card_has_the_shape_of_the_model(bilm):
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    n_parameters = sum(parameter.numel() for parameter in bilm.parameters())
    assert f"{n_parameters / 1e6:.1f} M" in card
    assert re.search(rf"^(?=.*\b{bilm.config.cell_dim}\b)(?=.*\b{bilm.config.projection_dim}\b)", card, re.M)
    assert f"{bilm.config.softmax_words:,}" in card


def test_it_expects_english_in_its_order(bilm):
    """Words of simple sentences are no surprise in either direction, unless they are shuffled."""
    sentences = [sentence.split() for sentence in TEXT]
    chance = random.Random(0)
    shuffled = [chance.sample(sentence, len(sentence)) for sentence in sentences]
    found, mixed = perplexity(bilm, sentences), perplexity(bilm, shuffled)
    assert found.oov_rate == 0
    assert max(found.forward, found.backward) < 60
    assert min(mixed.forward, mixed.backward) > 10 * found.average


def test_a_sense_stands_nearer_to_itself_than_to_another(bilm):
    words = runpy.run_path(str(ROOT / "examples" / "demo.py"))["WORDS"]
    elmo, n_right = Elmo(bilm), 0
    for word, *sentences in words:
        cosines = compare(elmo, word, sentences)
        assert cosines[0, 0, 1] == pytest.approx(cosines[0, 0, 2]) == pytest.approx(1.0)
        n_right += bool(cosines[2, 0, 1] > cosines[2, 0, 2])
    assert n_right >= len(words) - 1
