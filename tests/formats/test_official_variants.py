"""Variants of official files that bilm-tf and other programs really write."""

import gzip
import logging
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from facts import mentions
from official_files import WORDS, Official, random_official, read_hdf5
from oracle import Oracle

import torchelmo
from torchelmo import Elmo
from torchelmo.errors import InputError, MissingFileError, WeightsError
from torchelmo.files import read_json

FIXTURES = Path(__file__).parent.parent / "fixtures"
SENTENCE = ["the", "bow", "and", "zebra", "arrow"]


def cell(direction: int, layer: int) -> str:
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"


def renamed(official: Official, names: dict[str, str]) -> Official:
    """The same arrays, with the start and the end of their names replaced."""
    arrays = {}
    for name, array in official.arrays.items():
        for old, new in names.items():
            name = name.replace(old, new)
        arrays[name] = array
    return Official(official.options, arrays)


ONE_LAYER = {"MultiRNNCell/Cell0/": ""}
FORWARD = {"RNN_0/RNN/": "rnn/", "/W_0": "/kernel", "/B": "/bias", "/W_P_0": "/projection/kernel"}


def assert_layers(bilm: torchelmo.BiLM, oracle: Oracle) -> None:
    expected = oracle.layers(SENTENCE)[0]
    ids = Elmo(bilm).encode([SENTENCE])
    for path in ("reference", "fast"):
        found = bilm(ids, path=path).layers[:, 0].detach().numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)


def without_projection(**settings: object) -> tuple[Official, Official]:
    """A model as bilm-tf writes it, and the same with an identity projection, for the oracle."""
    official = random_official(projection_dim=6, cell_dim=6, proj_clip=0.1, **settings)
    for name in official.arrays:
        if name.endswith("W_P_0"):
            official.arrays[name] = np.eye(6, dtype=np.float32)
    arrays = {name: array for name, array in official.arrays.items() if not name.endswith("W_P_0")}
    plain = official.copy()
    plain.options["lstm"]["proj_clip"] = None
    return Official(official.options, arrays), plain


def test_one_layer_of_bilm_tf():
    folder = FIXTURES / "tf_dump_onelayer"
    bilm = torchelmo.load(folder)
    arrays = read_hdf5(folder / "model.hdf5")
    assert "RNN_1/RNN/LSTMCell/W_0" in arrays
    named = {name.replace("RNN/LSTMCell", "RNN/MultiRNNCell/Cell0/LSTMCell"): array for name, array in arrays.items()}
    assert_layers(bilm, Oracle(read_json(folder / "options.json", "options"), named))


def test_one_layer(tmp_path):
    official = random_official(n_layers=1)
    bilm = torchelmo.load_official(*renamed(official, ONE_LAYER).write(tmp_path))
    assert_layers(bilm, Oracle(official.options, official.arrays))


@pytest.mark.parametrize("stated", [False, None])
@pytest.mark.parametrize("n_layers", [1, 2])
def test_forward_only(stated, n_layers, tmp_path):
    official = random_official(bidirectional=False, n_layers=n_layers)
    if stated is None:
        del official.options["bidirectional"]
    written = renamed(official, FORWARD | (ONE_LAYER if n_layers == 1 else {}))
    assert any(name.endswith("projection/kernel") for name in written.arrays)
    bilm = torchelmo.load_official(*written.write(tmp_path))
    assert bilm.config.direction == "forward"
    assert_layers(bilm, Oracle(official.options, official.arrays, direction="forward"))


@pytest.mark.parametrize("settings", [{}, {"n_layers": 1}, {"bidirectional": False}])
def test_no_projection(settings, tmp_path):
    """The clip of the options is that of a projection: a model without one does not clip its output."""
    written, plain = without_projection(**settings)
    oracle = Oracle(
        plain.options, plain.arrays, direction="forward" if settings.get("bidirectional") is False else "both"
    )
    bilm = torchelmo.load_official(*written.write(tmp_path / "one"))
    assert bilm.config.projection_clip is None
    assert_layers(bilm, oracle)
    bilm.save(tmp_path / "folder")
    assert_layers(torchelmo.load(tmp_path / "folder"), oracle)
    torchelmo.save_official(bilm, tmp_path / "two" / "options.json", tmp_path / "two" / "weights.hdf5")
    assert_layers(torchelmo.load(tmp_path / "two"), oracle)


def test_no_projection_needs_equal_widths(tmp_path):
    official = random_official()
    arrays = {name: array for name, array in official.arrays.items() if not name.endswith("W_P_0")}
    with pytest.raises(WeightsError, match=mentions(f"'{cell(0, 0)}/W_P_0'")):
        torchelmo.load_official(*Official(official.options, arrays).write(tmp_path))


def test_two_names_for_the_same_weight(tmp_path):
    official = random_official(n_layers=1)
    official.arrays["RNN_0/RNN/LSTMCell/B"] = official.arrays[f"{cell(0, 0)}/B"]
    with pytest.raises(WeightsError, match=mentions("RNN_0/RNN/LSTMCell/B", f"{cell(0, 0)}/B")):
        torchelmo.load_official(*official.write(tmp_path))


# Softmax


@pytest.fixture
def softmax() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "softmax/W": rng.standard_normal((len(WORDS), 5)).astype(np.float32),
        "softmax/b": rng.standard_normal(len(WORDS)).astype(np.float32),
    }


def write_hdf5(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    return path


def test_a_softmax_in_a_second_file(tmp_path, official, softmax):
    """Under the names of the published files."""
    options, weights = official.write(tmp_path)
    options.rename(tmp_path / "elmo_2x4096_512_2048cnn_2xhighway_options.json")
    weights.rename(tmp_path / "elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5")
    file = write_hdf5(tmp_path / "elmo_2x4096_512_2048cnn_2xhighway_softmax_weights.hdf5", softmax)
    (tmp_path / "vocab-2016-09-10.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    bilm = torchelmo.load(tmp_path)
    assert bilm.vocabulary.words == WORDS
    assert bilm.softmax.weight.detach().numpy().tobytes() == softmax["softmax/W"].tobytes()
    assert bilm.softmax.bias.detach().numpy().tobytes() == softmax["softmax/b"].tobytes()
    assert file.name in bilm.origin


def test_a_softmax_by_name(tmp_path, official, softmax):
    options, weights = official.write(tmp_path)
    words = tmp_path / "words.txt.gz"
    words.write_bytes(gzip.compress(("\n".join(WORDS) + "\n").encode()))
    file = write_hdf5(tmp_path / "other.hdf5", softmax)
    bilm = torchelmo.load_official(options, weights, vocabulary=words, softmax=file)
    assert bilm.vocabulary.words == WORDS
    assert torch.equal(bilm.softmax.bias.detach(), torch.from_numpy(softmax["softmax/b"]))


def test_a_softmax_file_without_a_softmax(tmp_path, official, softmax):
    options, weights = official.write(tmp_path)
    file = write_hdf5(tmp_path / "other.hdf5", {"softmax/W": softmax["softmax/W"]})
    with pytest.raises(WeightsError, match=mentions("other.hdf5", "softmax/b")):
        torchelmo.load_official(options, weights, softmax=file)
    with pytest.raises(WeightsError, match=mentions("weights.hdf5", "'CNN/W_cnn_0'")):
        torchelmo.load_official(options, weights, softmax=weights)


def test_two_softmaxes(tmp_path, official, softmax):
    official.arrays.update(softmax)
    options, weights = official.write(tmp_path)
    with pytest.raises(WeightsError, match=mentions("other.hdf5", "weights.hdf5", "'softmax/W'")):
        torchelmo.load_official(options, weights, softmax=write_hdf5(tmp_path / "other.hdf5", softmax))


def test_vectors_beside_the_weights():
    """lm_embeddings_*.hdf5 are not weights."""
    assert torchelmo.load(FIXTURES / "bilm_tiny").config.n_layers == 2


def test_two_weight_files(tmp_path, official):
    _, weights = official.write(tmp_path)
    (tmp_path / "copy.hdf5").write_bytes(weights.read_bytes())
    with pytest.raises(MissingFileError, match=mentions("copy.hdf5", "weights.hdf5")):
        torchelmo.load(tmp_path)


def test_weights_without_options(tmp_path, official):
    options, _ = official.write(tmp_path)
    options.unlink()
    with pytest.raises(MissingFileError, match=mentions("'weights.hdf5'", "options.json beside")):
        torchelmo.load(tmp_path)


@pytest.mark.parametrize("name", ["options262.json", "elmo_pt_options.json"])
def test_other_names_of_the_options(name, tmp_path, official):
    options, _ = official.write(tmp_path)
    options.rename(tmp_path / name)
    assert torchelmo.load(tmp_path).config.n_layers == 2


def test_two_options(tmp_path, official):
    """options.json is the one to use; without it, nobody knows."""
    options, _ = official.write(tmp_path)
    for name in ("options261.json", "options262.json"):
        (tmp_path / name).write_bytes(options.read_bytes())
    assert torchelmo.load(tmp_path).config.n_layers == 2
    options.unlink()
    with pytest.raises(MissingFileError, match=mentions("options261.json", "options262.json")):
        torchelmo.load(tmp_path)


# Vocabularies


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("the\nbow\n", "<S>"),
        ("<S>\n</S>\n<UNK>\nthe\nthe\n", "'the'"),
        ("<S>\n</S>\n\n<UNK>\n", "blank"),
        ("\xff", "<S>"),
    ],
)
@pytest.mark.parametrize("given", [True, False])
def test_a_vocabulary_that_is_not_needed(text, fact, given, tmp_path, official, caplog):
    files = official.write(tmp_path)
    (tmp_path / "vocab.txt").write_text(text, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        bilm = torchelmo.load_official(*files, *([tmp_path / "vocab.txt"] if given else []))
    assert bilm.vocabulary is None
    assert "vocab.txt" in caplog.text
    assert fact in caplog.text


def test_a_damaged_vocabulary_that_is_needed(tmp_path, official, softmax):
    official.arrays.update(softmax)
    files = official.write(tmp_path)
    (tmp_path / "vocab.txt").write_text("the\nbow\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions("vocab.txt", "<S>")):
        torchelmo.load_official(*files)


def test_a_vocabulary_that_bilm_tf_trains_with(tmp_path, official, softmax, caplog):
    """Blank lines have a row of the softmax; of equal words the last one has the number."""
    official.arrays.update(softmax)
    files = official.write(tmp_path)
    words = [*WORDS[:-3], WORDS[-1], "", WORDS[-1]]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    vocabulary = torchelmo.load_official(*files).vocabulary
    assert vocabulary.ids([WORDS[-1], WORDS[0]]).tolist() == [len(WORDS) - 1, 0]
    assert len(vocabulary) == len(WORDS)
    assert "vocab.txt" in caplog.text
    (tmp_path / "vocab.txt").write_text("\n".join([*words, "more"]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions("vocab.txt", "blank line")):
        torchelmo.load_official(*files)


def test_a_compressed_vocabulary(tmp_path, official):
    files = official.write(tmp_path)
    (tmp_path / "vocab.txt.gz").write_bytes(gzip.compress(("\n".join(WORDS) + "\n").encode()))
    assert torchelmo.load_official(*files).vocabulary.words == WORDS


# Failed downloads


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 374434792\n", "git lfs pull"),
        ("<!DOCTYPE html>\n<title>404</title>", "HTML"),
        ("\n<html><body>Not found</body></html>", "HTML"),
        ('<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML"),
    ],
)
@pytest.mark.parametrize("name", ["options.json", "weights.hdf5"])
def test_a_failed_download(content, fact, name, tmp_path, official):
    official.write(tmp_path)
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(WeightsError, match=mentions(name, fact)):
        torchelmo.load(tmp_path)


def test_a_pointer_in_a_model_folder(tmp_path, tiny_bilm):
    tiny_bilm.save(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(WeightsError, match=mentions("model.safetensors", "git lfs pull")):
        torchelmo.load(tmp_path / "model")


@pytest.mark.parametrize("name", ["options.json", "weights.hdf5", "vocab.txt"])
def test_an_empty_file(name, tmp_path, official, softmax):
    official.arrays.update(softmax)
    official.write(tmp_path)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(WeightsError, match=mentions(name, "empty")):
        torchelmo.load(tmp_path)


def test_half_a_download(tmp_path, official):
    _, weights = official.write(tmp_path)
    weights.rename(tmp_path / "weights.hdf5.part")
    with pytest.raises(MissingFileError, match=mentions("*.hdf5", "weights.hdf5.part", "not finished")):
        torchelmo.load(tmp_path)
    official.write(tmp_path)
    (tmp_path / "weights.hdf5").write_bytes(weights.read_bytes()[:3000])
    with pytest.raises(WeightsError, match=mentions("weights.hdf5", "cut short")):
        torchelmo.load(tmp_path)


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        (["config.json", "char.dic", "word.dic", "encoder.pkl"], "token_embedder.pkl"),
        (["config.json", "vocabulary/labels.txt"], "weights.th"),
    ],
)
def test_a_missing_file_of_another_format_is_named(files, missing, tmp_path):
    """Such a folder has a config.json, too, but it is not ours."""
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        fixture = FIXTURES / "efml_tiny.model" / name
        (tmp_path / name).write_bytes(fixture.read_bytes() if fixture.exists() else b"x")
    if "encoder.pkl" in files:
        (tmp_path / "tiny.json").write_bytes((FIXTURES / "efml_tiny.model" / "tiny.json").read_bytes())
    else:
        (tmp_path / "config.json").write_text("{}")
    with pytest.raises(MissingFileError, match=mentions(missing)):
        torchelmo.load(tmp_path)


def test_other_files_are_listed(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(MissingFileError, match=mentions("pytorch_model.bin", "options.json", "weights.th")):
        torchelmo.load(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(MissingFileError, match=mentions("empty folder")):
        torchelmo.load(tmp_path)


def test_the_weights_by_their_path(tmp_path, official):
    """The options are those with the same start of the name, or the only ones."""
    options, weights = official.write(tmp_path)
    assert torchelmo.load(weights).config.n_layers == 2
    options.rename(tmp_path / "elmo_pt_options.json")
    (tmp_path / "elmo_2x_options.json").write_text("{}")
    assert torchelmo.load(weights.rename(tmp_path / "elmo_pt_weights_PubMed_only.hdf5")).config.n_layers == 2


@pytest.mark.parametrize("text", ["{} \n", "{}\t\n", " {}\n"])
def test_spaces_around_words(text, tmp_path, official, softmax):
    official.arrays.update(softmax)
    files = official.write(tmp_path)
    (tmp_path / "vocab.txt").write_text("".join(text.format(word) for word in WORDS), encoding="utf-8")
    assert torchelmo.load_official(*files).vocabulary.words == WORDS


def test_of_two_vocabularies_the_one_that_fits(tmp_path, official, softmax, caplog):
    """simple_elmo prefers vocab.txt.gz; the number of words decides."""
    official.arrays.update(softmax)
    files = official.write(tmp_path)
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n", encoding="utf-8")
    (tmp_path / "vocab.txt.gz").write_bytes(gzip.compress(("\n".join(WORDS) + "\n").encode()))
    assert torchelmo.load_official(*files).vocabulary.words == WORDS
    assert "vocab.txt" in caplog.text


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html>", b"\x1f\x8b\x08\x00damaged"])
@pytest.mark.parametrize("name", ["vocab.txt", "vocab.txt.gz"])
def test_any_damage_to_a_vocabulary_that_is_not_needed(content, name, tmp_path, official, caplog):
    files = official.write(tmp_path)
    (tmp_path / name).write_bytes(content)
    assert torchelmo.load_official(*files).vocabulary is None
    assert name in caplog.text
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert torchelmo.load_official(*files).vocabulary is None


def test_a_vocabulary_that_does_not_exist(tmp_path, official):
    with pytest.raises(MissingFileError, match=mentions("absent.txt")):
        torchelmo.load_official(*official.write(tmp_path), tmp_path / "absent.txt")


def test_options_of_a_training(tmp_path):
    """All keys of bilm-tf, n_characters of training, and keys that mean nothing."""
    official = random_official(n_characters=261, extra={"reverse": False, "batch_size": 3, "n_tokens_vocab": 8})
    official.options["char_cnn"]["projection_after_highway"] = True
    assert_layers(torchelmo.load_official(*official.write(tmp_path)), Oracle(official.options, official.arrays))


def test_words_without_characters(tmp_path):
    """No char_cnn, or none of it."""
    for extra in ({}, {"char_cnn": None}):
        official = random_official(words=len(WORDS), extra=extra)
        bilm = torchelmo.load_official(*official.write(tmp_path))
        assert bilm.config.input == "words"
