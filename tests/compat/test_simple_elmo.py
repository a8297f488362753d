"""simple_elmo's class: its methods, shapes and attributes."""

from pathlib import Path

import numpy as np
import pytest
from facts import mentions

import torchelmo
from torchelmo import Elmo
from torchelmo.compat.simple_elmo import ElmoModel
from torchelmo.errors import ConfigError, InputError, MissingFileError, WrongCallError
from torchelmo.lm.predict import scores

CHECKPOINT = Path(__file__).parent.parent / "fixtures" / "tf_checkpoint_chars"
TEXTS = [["I", "took", "a", "bow"], ["bow"], []]


@pytest.fixture
def model(files):
    model = ElmoModel()
    assert model.load(files[0].parent, max_batch_size=2) == "The model is now loaded."
    return model


@pytest.fixture(scope="module")
def full():
    model = ElmoModel()
    model.load(CHECKPOINT, full=True)
    return model


def test_attributes(model, bilm):
    assert (model.batch_size, model.max_chars, model.vector_size, model.n_layers) == (2, 50, 12, 3)
    assert model.vocab is None
    empty = ElmoModel()
    assert empty.batch_size is empty.vector_size is empty.n_layers is None


def test_vectors_are_padded_with_zeros(model, bilm):
    vectors = model.get_elmo_vectors(TEXTS)
    assert (vectors.shape, vectors.dtype) == ((3, 4, 12), np.float64)
    for found, expected in zip(vectors, Elmo(bilm).embed(TEXTS, "average")):
        np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-6, atol=1e-6)
        assert not found[len(expected) :].any()
    layers = model.get_elmo_vectors(TEXTS, layers="all")
    assert layers.shape == (3, 3, 4, 12)
    np.testing.assert_allclose(layers.mean(axis=1), vectors, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.get_elmo_vectors(TEXTS, layers="top"), layers[:, -1])
    assert model.get_elmo_vectors([]).shape == (0, 0, 12)


def test_a_sentence_does_not_depend_on_others_or_on_earlier_calls(model):
    alone = model.get_elmo_vectors(TEXTS[:1], warmup=False, session=object())
    for _ in range(2):
        np.testing.assert_allclose(model.get_elmo_vectors(TEXTS)[:1], alone, rtol=1e-5, atol=1e-6)


def test_averages_have_length_1(model, bilm):
    averages = model.get_elmo_vector_average(TEXTS)
    assert (averages.shape, averages.dtype) == ((3, 12), np.float64)
    mean = Elmo(bilm).embed(TEXTS, "average")[0].mean(axis=0)
    np.testing.assert_allclose(averages[0], mean / np.linalg.norm(mean), rtol=1e-5, atol=1e-6)
    assert not averages[2].any()
    layers = model.get_elmo_vector_average(TEXTS, layers="all")
    assert layers.shape == (3, 3, 12)
    mean = Elmo(bilm).embed(TEXTS)[0].mean(axis=1)  # of each layer: not of a reshaped array
    np.testing.assert_allclose(layers[0], mean / np.linalg.norm(mean), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("nodelimiters", [True, False])
def test_substitutes(full, nodelimiters):
    words = [word for word in full.vocab if word[0] != "<"]
    data = [" ".join(words[:3]), "", f"{words[1]} unknown-word"]
    found = full.get_elmo_substitutes(data, topn=2, nodelimiters=nodelimiters)
    assert [[entry["word"] for entry in sentence] for sentence in found] == [text.split() for text in data]
    bilm = torchelmo.load(CHECKPOINT)
    everything = full.get_elmo_substitutes(data, topn=len(full.vocab), nodelimiters=False)
    for sentence, all_of_it, expected in zip(
        [found[0], found[2]], [everything[0], everything[2]], scores(bilm, [data[0].split(), data[2].split()])
    ):
        for i, (entry, whole) in enumerate(zip(sentence, all_of_it)):
            for direction, log_p in (("forward", expected.forward[i]), ("backward", expected.backward[i + 1])):
                best, every = entry[direction], whole[direction]
                assert best["candidate_words"] == [full.vocab[i] for i in best["candidates"]]
                assert len(best["logp"]) == 2
                assert best["logp"] == sorted(best["logp"], reverse=True)
                assert not (nodelimiters and {"<S>", "</S>"} & set(best["candidate_words"]))
                np.testing.assert_allclose(np.exp(every["logp"]).sum(), 1, atol=1e-2)  # rounded to 4 digits
                target = full.vocab.ids([entry["word"]])[0]
                place = every["candidates"].index(target)
                assert every["logp"][place] == pytest.approx(float(log_p), abs=1e-4)


def test_errors(model, full, tmp_path):
    with pytest.raises(WrongCallError, match="load"):
        ElmoModel().get_elmo_vectors(TEXTS)
    with pytest.raises(InputError, match=mentions(0)):
        model.get_elmo_vectors(["a string"])
    with pytest.raises(ConfigError, match="'mix'"):
        model.get_elmo_vectors(TEXTS, layers="mix")
    with pytest.raises(InputError, match="softmax"):
        model.get_elmo_substitutes(["a b"])
    model.elmo.bilm.save(tmp_path / "m")
    with pytest.raises(InputError, match="softmax"):
        ElmoModel().load(tmp_path / "m", full=True)
    with pytest.raises(InputError, match="string"):
        full.get_elmo_substitutes([["a", "b"]])
    with pytest.raises(ConfigError, match="topn"):
        full.get_elmo_substitutes(["a"], topn=0)
    with pytest.raises(ConfigError, match="max_batch_size"):
        ElmoModel().load(tmp_path / "m", max_batch_size=0)
    with pytest.raises(MissingFileError):
        ElmoModel().load(tmp_path / "none")
    model.warmup(None, None)
