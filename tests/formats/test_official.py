"""Official files → ours → official files: the same numbers, bit for bit, and the same options."""

import json
import re

import h5py
import numpy as np
import pytest
import torch
from facts import mentions
from hypothesis import given, settings
from hypothesis import strategies as st
from official_files import WORDS, Official, random_official, read_hdf5

import torchelmo
from torchelmo import BiLM, BiLMConfig, Elmo
from torchelmo.errors import OutputError
from torchelmo.text.vocabulary import Vocabulary

TRAINING_KEYS = {
    "bidirectional": True,
    "dropout": 0.1,
    "all_clip_norm_val": 10.0,
    "n_epochs": 10,
    "n_train_tokens": 768648884,
    "batch_size": 128,
    "n_tokens_vocab": 793471,
    "unroll_steps": 20,
    "n_negative_samples_batch": 8192,
    "note": {"text": "naïve", "values": [1, None, 0.1]},
}
KINDS = {
    "plain": {},
    "261 characters": {"n_characters": 261},
    "262 rows": {"char_rows": 262},
    "training keys": {"extra": TRAINING_KEYS},
    "words": {"words": len(WORDS)},
    "forward only": {"bidirectional": False},
    "no projection": {"char_projection": False, "filters": ((1, 2), (2, 3))},
    "a projection between equal widths": {"filters": ((1, 2), (2, 3))},
    "n_highway left out": {"n_highway": None},
    "no clips": {"cell_clip": None, "proj_clip": 0},
    "three layers, not residual": {"n_layers": 3, "residual": False},
    "tanh, other length": {"activation": "tanh", "max_characters": 20},
}


def assert_same_files(official: Official, options: object, weights: object) -> None:
    assert json.loads(options.read_text(encoding="utf-8")) == official.options
    found = read_hdf5(weights)
    assert found.keys() == official.arrays.keys()
    for name, array in official.arrays.items():
        assert found[name].dtype == np.float32
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind, tmp_path):
    official = random_official(**KINDS[kind])
    bilm = torchelmo.load_official(*official.write(tmp_path / "one"))
    options, weights = tmp_path / "two" / "options.json", tmp_path / "two" / "weights.hdf5"
    torchelmo.save_official(bilm, options, weights)
    assert_same_files(official, options, weights)
    # … and by way of a model folder.
    bilm.save(tmp_path / "ours")
    torchelmo.save_official(torchelmo.load(tmp_path / "ours"), str(options), str(weights))
    assert_same_files(official, options, weights)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**31),
    n_layers=st.integers(1, 3),
    n_highway=st.integers(0, 2),
    cell_dim=st.integers(1, 6),
    char_rows=st.sampled_from([261, 262]),
)
def test_there_and_back_for_any_shape(seed, n_layers, n_highway, cell_dim, char_rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    official = random_official(seed, n_layers=n_layers, n_highway=n_highway, cell_dim=cell_dim, char_rows=char_rows)
    options, weights = official.write(folder)
    torchelmo.save_official(torchelmo.load_official(options, weights), options, weights)
    assert_same_files(official, options, weights)


def test_special_floats_survive(tmp_path):
    """Denormals, negative zero and the largest float32 are numbers like any other."""
    official = random_official()
    official.arrays["CNN/b_cnn_0"][:] = [-0.0, 1e-45, np.finfo(np.float32).max]
    options, weights = official.write(tmp_path)
    torchelmo.save_official(torchelmo.load_official(options, weights), options, weights)
    assert_same_files(official, options, weights)


def test_both_values_of_n_characters_are_the_same_model(tmp_path):
    ours = [torchelmo.load_official(*random_official(n_characters=n).write(tmp_path / str(n))) for n in (261, 262)]
    assert ours[0].config == ours[1].config
    assert all(torch.equal(a, b) for a, b in zip(ours[0].parameters(), ours[1].parameters()))


@pytest.mark.parametrize("kind", ["characters", "words", "tied words", "forward"])
def test_a_model_of_ours_there_and_back(kind, tmp_path):
    changes = {
        "characters": {"softmax_words": 8},
        "words": {"input": "words", "n_words": 8, "softmax_words": 8},
        "tied words": {"input": "words", "n_words": 8, "softmax_words": 8, "tied_softmax": True},
        "forward": {
            "direction": "forward",
            "cell_clip": None,
            "char_projection": False,
            "filters": ((2, 4),),
        },
    }[kind]
    shape = {
        "filters": ((1, 3), (2, 4)),
        "char_dim": 3,
        "projection_dim": 4,
        "cell_dim": 5,
        "max_characters": 10,
    }
    bilm = BiLM(BiLMConfig(**shape | changes), None if kind == "forward" else Vocabulary(WORDS))
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    torchelmo.save_official(bilm, options, weights)
    back = torchelmo.load(tmp_path)  # takes the vocab.txt beside them
    expected = bilm.config
    if kind.endswith("words"):  # what a word-input model does not use is not in its files
        expected = BiLMConfig(**config_without_characters(bilm.config))
    assert back.config == expected
    assert back.vocabulary == bilm.vocabulary
    assert {k: v.tolist() for k, v in back.state_dict().items()} == {
        k: v.tolist() for k, v in bilm.state_dict().items()
    }
    if kind == "tied words":
        assert back.softmax.weight is back.encoder.embedding


def config_without_characters(config: BiLMConfig) -> dict[str, object]:
    names = ["input", "n_words", "projection_dim", "cell_dim", "softmax_words", "tied_softmax"]
    return {name: getattr(config, name) for name in names}


def test_backward_only_has_no_official_form(tmp_path):
    bilm = BiLM(BiLMConfig(filters=((1, 4),), projection_dim=4, cell_dim=4, direction="backward"))
    with pytest.raises(OutputError, match="backward"):
        torchelmo.save_official(bilm, tmp_path / "options.json", tmp_path / "weights.hdf5")
    assert not list(tmp_path.iterdir())


def test_more_characters_than_the_official_files_know(tmp_path):
    bilm = BiLM(BiLMConfig(filters=((1, 4),), projection_dim=4, cell_dim=4, n_characters=300))
    with pytest.raises(OutputError, match=mentions(263, 300)):
        torchelmo.save_official(bilm, tmp_path / "options.json", tmp_path / "weights.hdf5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4"])
def test_other_float_types_are_read_as_float32(dtype, tmp_path):
    official = random_official()
    arrays = {name: array.astype(dtype) for name, array in official.arrays.items()}
    bilm = torchelmo.load_official(*Official(official.options, arrays).write(tmp_path))
    bias = bilm.forward_lstms[0].bias
    assert bias.dtype == torch.float32
    expected = arrays["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B"].astype(np.float32)
    assert bias.detach().numpy().tobytes() == expected.tobytes()


def test_compressed_and_chunked_datasets(tmp_path, tiny_official, tiny_bilm):
    options, weights = tiny_official.write(tmp_path)
    with h5py.File(weights, "w") as file:
        for name, array in tiny_official.arrays.items():
            file.create_dataset(name, data=array, compression="gzip", shuffle=True)
    bilm = torchelmo.load_official(options, weights)
    assert all(torch.equal(a, b) for a, b in zip(bilm.parameters(), tiny_bilm.parameters()))


def test_a_loaded_model_can_be_trained_and_says_where_it_is_from(tiny_bilm, tmp_path, tiny_official):
    bilm = torchelmo.load_official(*tiny_official.write(tmp_path))
    assert all(parameter.requires_grad for parameter in bilm.parameters())
    assert re.search(mentions("options.json", "weights.hdf5"), bilm.origin)


def test_words_know_their_vocabulary(load_random):
    bilm = load_random(random_official(words=len(WORDS)))
    assert bilm.vocabulary.words == WORDS
    assert Elmo(bilm).encode([["bow", "unheard"], ["the"]]).tolist() == [[5, 3], [4, 0]]
    begin, end = bilm.boundary_ids()
    assert (int(begin), int(end)) == (2, 1)  # <S> and </S> are at their places in the vocabulary


def test_an_old_file_is_kept_when_writing_fails(tmp_path, tiny_bilm, monkeypatch):
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    weights.write_text("old")

    def refuse(*arguments: object, **keywords: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(h5py.Group, "create_dataset", refuse)
    with pytest.raises(OutputError, match=mentions("weights.hdf5", "No space left on device")):
        torchelmo.save_official(tiny_bilm, options, weights)
    assert weights.read_text() == "old"
    assert list(tmp_path.iterdir()) == [weights]


def test_the_words_of_a_model_that_was_there_before_go_with_it(tmp_path, tiny_bilm):
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    torchelmo.save_official(tiny_bilm, tmp_path / "options.json", tmp_path / "weights.hdf5")
    assert torchelmo.load(tmp_path).vocabulary is None


def test_the_vocabulary_beside_the_weights_is_kept(tmp_path):
    """Also by load_official, which is not told about it."""
    config = BiLMConfig(filters=((1, 4),), projection_dim=4, cell_dim=4, softmax_words=len(WORDS))
    files = tmp_path / "options.json", tmp_path / "weights.hdf5"
    torchelmo.save_official(BiLM(config, Vocabulary(WORDS)), *files)
    bilm = torchelmo.load_official(*files)
    assert list(bilm.vocabulary) == WORDS
    bilm.save(tmp_path / "folder")
    assert list(torchelmo.load(tmp_path / "folder").vocabulary) == WORDS


def test_the_vocabulary_of_another_model_beside_the_weights_is_not_used(tmp_path, caplog):
    config = BiLMConfig(filters=((1, 4),), projection_dim=4, cell_dim=4, softmax_words=len(WORDS))
    files = tmp_path / "options.json", tmp_path / "weights.hdf5"
    torchelmo.save_official(BiLM(config), *files)
    Vocabulary(WORDS[:5]).write(tmp_path / "vocab.txt")
    assert torchelmo.load_official(*files).vocabulary is None
    assert all(fact in caplog.text for fact in (str(tmp_path / "vocab.txt"), "5", str(len(WORDS))))
