"""What `torchelmo.load` takes, and the names and origins of models."""

import re

import pytest
from facts import mentions
from tiny_folders import SHAPE, assert_same, folder_bilm

import torchelmo
from torchelmo import BiLM, BiLMConfig
from torchelmo.errors import (
    InputError,
    MissingFileError,
    TorchelmoError,
)
from torchelmo.formats import load as weights
from torchelmo.lm.predict import surprisal


@pytest.fixture
def bilm() -> BiLM:
    return folder_bilm()


def test_official_files_in_a_folder(tiny_official, tiny_bilm, tmp_path):
    tiny_official.write(tmp_path)
    assert_same(tiny_bilm, torchelmo.load(tmp_path))
    assert_same(tiny_bilm, torchelmo.load(str(tmp_path)))


def test_two_weight_files_are_one_too_many(tiny_official, tmp_path):
    _, weights = tiny_official.write(tmp_path)
    (tmp_path / "more.hdf5").write_bytes(weights.read_bytes())
    with pytest.raises(MissingFileError, match=mentions(tmp_path, "*.hdf5", "more.hdf5", "weights.hdf5")):
        torchelmo.load(tmp_path)
    weights.unlink()
    (tmp_path / "more.hdf5").unlink()
    with pytest.raises(MissingFileError, match=mentions(tmp_path, "*.hdf5")):
        torchelmo.load(tmp_path)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(MissingFileError, match=mentions(tmp_path, "config.json", "options.json")):
        torchelmo.load(tmp_path)


def test_a_file_instead_of_a_folder(bilm, tmp_path):
    bilm.save(tmp_path)
    with pytest.raises(MissingFileError, match=mentions("model.safetensors")):
        torchelmo.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["no-such-model", "nowhere/at/all"])
def test_no_such_folder_or_model(name):
    with pytest.raises(MissingFileError, match=mentions(name)):
        torchelmo.load(name)


def test_a_model_inside_the_package(bilm, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "PRETRAINED", tmp_path)
    with pytest.raises(MissingFileError, match="english-small"):
        torchelmo.load()
    bilm.save(tmp_path / "english-small")
    assert_same(bilm, torchelmo.load())
    assert_same(bilm, torchelmo.load("english-small"))
    with pytest.raises(MissingFileError, match=mentions("english-large", "english-small")):
        torchelmo.load("english-large")


def test_where_a_model_came_from_is_kept(tiny_official, tmp_path):
    bilm = torchelmo.load_official(*tiny_official.write(tmp_path))
    bilm.save(tmp_path / "ours")
    assert re.search(mentions("options.json", "weights.hdf5"), torchelmo.load(tmp_path / "ours").origin)
    assert torchelmo.load(tmp_path / "ours").official_options == tiny_official.options


def test_released_files_load_under_their_own_names(tiny_official, tmp_path):
    options, weights = tiny_official.write(tmp_path)
    options.rename(tmp_path / "elmo_2x1024_options.json")
    weights.rename(tmp_path / "elmo_2x1024_weights.hdf5")
    origin = torchelmo.load(tmp_path).origin
    assert re.search(mentions("elmo_2x1024_options.json", "elmo_2x1024_weights.hdf5"), origin)


@pytest.mark.parametrize("content", [{}, {"config.json": "{}"}])
def test_a_folder_does_not_hide_a_model_in_the_package(content, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "english-small").mkdir()
    for name, text in content.items():
        (tmp_path / "english-small" / name).write_text(text)
    assert torchelmo.load("english-small").config.cell_dim == 768
    assert ("./english-small" in caplog.text) == bool(content)
    for folder in ("./english-small", tmp_path / "english-small"):
        with pytest.raises(TorchelmoError, match="english-small"):
            torchelmo.load(folder)


def test_the_folder_that_was_given_is_named_by_later_errors(tmp_path):
    config = BiLMConfig(**{**SHAPE, "softmax_words": 4})
    torchelmo.save_official(BiLM(config), tmp_path / "options.json", tmp_path / "weights.hdf5")
    torchelmo.load(tmp_path).save(tmp_path / "mine")
    with pytest.raises(InputError, match=mentions(tmp_path / "mine", "vocab.txt")):
        list(surprisal(torchelmo.load(tmp_path / "mine"), [["a", "bow"]]))
