"""What is said about official files that cannot be used."""

import json
import re

import h5py
import numpy as np
import pytest
from official_files import WORDS, Official, random_official

import torchelmo
from torchelmo.errors import ConfigError, InputError, MissingFileError, TorchelmoError, WeightsError

CELL = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell"


@pytest.fixture
def official() -> Official:
    return random_official()


def load(official: Official, folder) -> torchelmo.BiLM:
    return torchelmo.load_official(*official.write(folder))


def test_no_options(official, tmp_path):
    _, weights = official.write(tmp_path)
    with pytest.raises(MissingFileError, match=r"none.json: expected an official options.json, found nothing"):
        torchelmo.load_official(tmp_path / "none.json", weights)
    with pytest.raises(MissingFileError, match=r"expected an official options.json, found a directory"):
        torchelmo.load_official(tmp_path, weights)


def test_no_weights(official, tmp_path):
    options, _ = official.write(tmp_path)
    with pytest.raises(MissingFileError, match=r"none.hdf5: expected an official weights.hdf5, found nothing"):
        torchelmo.load_official(options, tmp_path / "none.hdf5")
    with pytest.raises(MissingFileError, match=r"expected an official weights.hdf5, found a directory"):
        torchelmo.load_official(options, tmp_path)


@pytest.mark.parametrize("data", [b"", b"not HDF5 at all", b"\x89HDF\r\n\x1a\n", b"\x00" * 4096])
def test_weights_that_are_something_else(data, official, tmp_path):
    options, weights = official.write(tmp_path)
    weights.write_bytes(data)
    with pytest.raises(WeightsError, match=r"weights.hdf5: expected an HDF5 file, but it is damaged, cut short or"):
        torchelmo.load_official(options, weights)


@pytest.mark.parametrize("percent", [1, 10, 25, 50, 75, 90, 99])
def test_weights_that_are_cut_short(percent, official, tmp_path):
    options, weights = official.write(tmp_path)
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) * percent // 100])
    with pytest.raises(WeightsError, match=r"weights.hdf5: .*(damaged|cut short)"):
        torchelmo.load_official(options, weights)


def test_bytes_overwritten_anywhere_give_our_error_or_numbers(official, tmp_path):
    """A damaged header may be found or not; it is never another exception."""
    options, weights = official.write(tmp_path)
    data = weights.read_bytes()
    rng = np.random.default_rng(3)
    failures = 0
    for _ in range(60):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), 40):
            broken[place] = rng.integers(256)
        weights.write_bytes(bytes(broken))
        try:
            torchelmo.load_official(options, weights)
        except TorchelmoError:
            failures += 1
    assert failures > 10


def test_compressed_data_that_is_damaged(official, tmp_path):
    options, weights = official.write(tmp_path)
    with h5py.File(weights, "w") as file:
        for name, array in official.arrays.items():
            file.create_dataset(name, data=array, compression="gzip")
        place, size = (
            file["char_embed"].id.get_chunk_info(0).byte_offset,
            file["char_embed"].id.get_storage_size(),
        )
    data = bytearray(weights.read_bytes())
    data[place : place + size] = bytes(size)
    weights.write_bytes(bytes(data))
    with pytest.raises(WeightsError, match=r"weights.hdf5: the HDF5 file is damaged or cut short"):
        torchelmo.load_official(options, weights)


@pytest.mark.parametrize(
    "name", ["char_embed", "CNN/W_cnn_1", "CNN_high_0/b_carry", "CNN_proj/W_proj", f"{CELL}/W_P_0"]
)
def test_a_missing_dataset(name, official, tmp_path):
    del official.arrays[name]
    with pytest.raises(WeightsError, match=rf"expected the dataset '{name}' by options.json; it is missing"):
        load(official, tmp_path)


def test_a_missing_direction(official, tmp_path):
    for name in [name for name in official.arrays if name.startswith("RNN_1")]:
        del official.arrays[name]
    with pytest.raises(WeightsError, match=r"expected the dataset 'RNN_1/.*W_0' by options.json; it is missing"):
        load(official, tmp_path)


def test_an_extra_dataset(official, tmp_path):
    official.arrays["surprise"] = np.zeros(3, np.float32)
    with pytest.raises(WeightsError, match=r"found the dataset 'surprise', which options.json has no place for\."):
        load(official, tmp_path)
    official.arrays["zz/more"] = np.zeros(3, np.float32)
    with pytest.raises(WeightsError, match=r"'surprise', which options.json has no place for \(and 1 more\)"):
        load(official, tmp_path)


@pytest.mark.parametrize("name", ["char_embed", "CNN/W_cnn_1", "CNN_proj/b_proj", f"{CELL}/W_0", f"{CELL}/B"])
def test_a_misshapen_dataset(name, official, tmp_path):
    official.arrays[name] = official.arrays[name][..., :-1]
    shape = official.arrays[name].shape
    with pytest.raises(
        WeightsError, match=rf"{name}: expected shape \(.*\) by options.json, found {re.escape(str(shape))}"
    ):
        load(official, tmp_path)


@pytest.mark.parametrize("name", ["char_embed", "softmax/b", f"{CELL}/B"])
def test_a_single_number_or_nothing_where_an_array_should_be(name, official, tmp_path):
    for value in (np.float32(1.0), h5py.Empty("f4")):
        official.arrays[name] = value
        with pytest.raises(WeightsError, match=rf"(expected shape .*found \(\)|{name})"):
            load(official, tmp_path)


def test_a_single_number_for_the_embedding_of_words(tmp_path):
    official = random_official(words=len(WORDS))
    official.arrays["embedding"] = np.float32(1.0)
    with pytest.raises(WeightsError, match=r"embedding: expected shape \(8, 5\) by options.json, found \(\)"):
        load(official, tmp_path)


def test_a_group_where_a_dataset_should_be(official, tmp_path):
    del official.arrays["char_embed"]
    official.arrays["char_embed/inside"] = np.zeros(3, np.float32)
    with pytest.raises(WeightsError, match=r"expected the dataset 'char_embed'"):
        load(official, tmp_path)


@pytest.mark.parametrize("dtype", ["int32", "bool", "S4", "complex64"])
def test_a_wrong_dtype(dtype, official, tmp_path):
    official.arrays["char_embed"] = np.zeros(official.arrays["char_embed"].shape, dtype)
    with pytest.raises(WeightsError, match=r"char_embed: expected float32 numbers, found"):
        load(official, tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite(value, official, tmp_path):
    official.arrays[f"{CELL}/W_P_0"][0, 0] = value
    with pytest.raises(WeightsError, match=rf"{CELL}/W_P_0: expected finite numbers, found NaN or Inf"):
        load(official, tmp_path)


def test_a_float64_beyond_float32(official, tmp_path):
    official.arrays["CNN_proj/b_proj"] = np.full(5, 1e300)
    with pytest.raises(WeightsError, match=r"CNN_proj/b_proj: expected finite numbers"):
        load(official, tmp_path)


# Options that contradict the weights


@pytest.mark.parametrize(
    ("table", "key", "value", "words"),
    [
        ("lstm", "n_layers", 3, r"expected the dataset 'RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0'"),
        ("lstm", "n_layers", 1, r"found the dataset 'RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/B'"),
        ("lstm", "n_layers", 10**12, r"expected the dataset 'RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0'"),
        ("lstm", "dim", 8, r"W_0: expected shape \(10, 32\) by options.json, found \(10, 28\)"),
        ("lstm", "dim", 10**12, r"W_0: expected shape"),
        ("lstm", "projection_dim", 6, r"CNN_proj/W_proj: expected shape \(8, 6\)"),
        ("char_cnn", "n_highway", 2, r"expected the dataset 'CNN_high_1/W_carry'"),
        (
            "char_cnn",
            "n_highway",
            0,
            r"found the dataset 'CNN_high_0/W_carry'.*Are the options those of another",
        ),
        ("char_cnn", "n_highway", 10**12, r"expected the dataset 'CNN_high_1/W_carry'"),
        ("char_cnn", "filters", [[1, 3], [2, 2]], r"CNN_high_0/W_carry: expected shape \(5, 5\)"),
        ("char_cnn", "filters", [[1, 3], [2, 2], [4, 4]], r"CNN/W_cnn_2: expected shape \(1, 4, 3, 4\)"),
        (
            "char_cnn",
            "embedding",
            {"dim": 4},
            r"char_embed: expected shape \(261, 4\) by options.json, found \(261, 3\)",
        ),
    ],
)
def test_options_contradict_the_weights(table, key, value, words, official, tmp_path):
    official.options[table][key] = value
    with pytest.raises(WeightsError, match=words):
        load(official, tmp_path)


def test_a_softmax_without_its_weights(official, tmp_path):
    official.arrays["softmax/b"] = np.zeros(9, np.float32)
    with pytest.raises(WeightsError, match=r"expected the dataset 'softmax/W' by options.json; it is missing"):
        load(official, tmp_path)


def test_forward_only_options_with_two_directions(official, tmp_path):
    official.options["bidirectional"] = False
    with pytest.raises(WeightsError, match=r"found the dataset 'RNN_1/"):
        load(official, tmp_path)


# Options that are wrong in themselves


@pytest.mark.parametrize(
    ("table", "key", "value", "words"),
    [
        ("lstm", "n_layers", "two", r"options.json: lstm: n_layers: expected int, got 'two'"),
        ("lstm", "n_layers", 0, r"options.json: n_layers must be at least 1, got 0"),
        ("lstm", "dim", -4, r"options.json: cell_dim must be at least 1, got -4"),
        ("lstm", "dim", 4.5, r"options.json: lstm: dim: expected int, got 4.5"),
        ("lstm", "dim", None, r"options.json: lstm: dim: expected int, got None"),
        ("lstm", "cell_clip", -3, r"cell_clip must be positive, or left out for no clipping; got -3"),
        ("lstm", "proj_clip", "3", r"options.json: lstm: proj_clip: expected float, got '3'"),
        ("lstm", "cell_clip", float("nan"), r"cell_clip must be positive"),
        (
            "lstm",
            "use_skip_connections",
            "no",
            r"options.json: lstm: use_skip_connections: expected bool, got 'no'",
        ),
        (
            "char_cnn",
            "activation",
            "gelu",
            r"char_cnn: activation: expected one of 'relu', 'tanh', got 'gelu'",
        ),
        ("char_cnn", "n_characters", 300, r"char_cnn: n_characters: expected 261 or 262, found 300"),
        ("char_cnn", "n_characters", [261], r"char_cnn: n_characters: expected 261 or 262, found \[261\]"),
        ("char_cnn", "max_characters_per_token", 2, r"max_characters must hold two marks and a byte, got 2"),
        (
            "char_cnn",
            "max_characters_per_token",
            3,
            r"filter \(4, 3\): the width must be 1 to max_characters = 3",
        ),
        ("char_cnn", "filters", [], r"filters must have at least one"),
        ("char_cnn", "filters", 3, r"char_cnn: filters: expected a list, got 3"),
        ("char_cnn", "filters", [3], r"char_cnn: filters\[0\]: expected a list, got 3"),
        ("char_cnn", "filters", [[1, 2, 3]], r"char_cnn: filters\[0\]: expected 2 values, got \[1, 2, 3\]"),
        ("char_cnn", "filters", [["1", 2]], r"char_cnn: filters\[0\]\[0\]: expected int, got '1'"),
        ("char_cnn", "n_highway", "x", r"char_cnn: n_highway: expected int, got 'x'"),
        ("char_cnn", "n_highway", -1, r"n_highway must not be negative, got -1"),
        ("char_cnn", "embedding", 16, r"char_cnn: embedding: expected an object, found 16"),
        ("char_cnn", "embedding", {}, r"char_cnn: embedding: the key 'dim' is missing"),
    ],
)
@pytest.mark.parametrize("projection", [True, False])
def test_a_wrong_value(table, key, value, words, projection, official, tmp_path):
    official.options[table][key] = value
    if not projection:
        del official.arrays["CNN_proj/W_proj"]
    with pytest.raises(ConfigError, match=words):
        load(official, tmp_path)


@pytest.mark.parametrize(
    ("table", "key"),
    [("lstm", "dim"), ("lstm", "n_layers"), ("lstm", "projection_dim"), ("char_cnn", "filters")],
)
def test_a_missing_key(table, key, official, tmp_path):
    del official.options[table][key]
    with pytest.raises(ConfigError, match=rf"options.json: {table}: the key '{key}' is missing; these are not"):
        load(official, tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected JSON in UTF-8"),
        ("", "expected JSON in UTF-8"),
        ("[" * 100_000, "expected JSON in UTF-8"),
        ("[]", "expected a JSON object with the key 'lstm', found list"),
        ("{}", "the key 'lstm' is missing"),
        ('{"lstm": 3}', "lstm: expected an object, found 3"),
    ],
)
def test_wrong_json(text, words, official, tmp_path):
    options, weights = official.write(tmp_path)
    options.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"options.json: {words}"):
        torchelmo.load_official(options, weights)


def test_json_that_is_not_text(official, tmp_path):
    options, weights = official.write(tmp_path)
    options.write_bytes(b'{"lstm": "\xff"}')
    with pytest.raises(ConfigError, match=r"options.json: expected JSON in UTF-8"):
        torchelmo.load_official(options, weights)


# Links, and data that is elsewhere


def test_links_are_refused(official, tmp_path):
    options, weights = official.write(tmp_path)
    other = tmp_path / "other.hdf5"
    weights.rename(other)
    links = {
        "soft": h5py.SoftLink("/CNN_proj/b_proj"),
        "external": h5py.ExternalLink(str(other), "/char_embed"),
    }
    for link in links.values():
        for name in ("char_embed", "extra"):
            with h5py.File(weights, "w") as file:
                for key, array in official.arrays.items():
                    if key != name:
                        file.create_dataset(key, data=array)
                file[name] = link
            with pytest.raises(WeightsError, match=rf"weights.hdf5: {name}: expected data, found a soft or external"):
                torchelmo.load_official(options, weights)


def test_a_linked_group_and_a_dangling_link(official, tmp_path):
    options, weights = official.write(tmp_path)
    for target in (h5py.ExternalLink("/etc/hostname", "/"), h5py.SoftLink("/nowhere")):
        with h5py.File(weights, "a") as file:
            file.pop("link", None) if "link" in file else None
            file[f"link{len(file)}"] = target
        with pytest.raises(WeightsError, match=r"link\d+: expected data, found a soft or external link"):
            torchelmo.load_official(options, weights)


def test_external_storage_is_refused(official, tmp_path):
    options, weights = official.write(tmp_path)
    raw = tmp_path / "raw.bin"
    raw.write_bytes(official.arrays["char_embed"].tobytes())
    with h5py.File(weights, "a") as file:
        del file["char_embed"]
        file.create_dataset("char_embed", (261, 3), "f4", external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(WeightsError, match=r"char_embed: expected a dataset stored in this file"):
        torchelmo.load_official(options, weights)


def test_a_virtual_dataset_is_refused(official, tmp_path):
    options, weights = official.write(tmp_path)
    layout = h5py.VirtualLayout((261, 3), "f4")
    layout[:] = h5py.VirtualSource(str(weights), "other", (261, 3))
    with h5py.File(weights, "a") as file:
        file.move("char_embed", "other")
        file.create_virtual_dataset("char_embed", layout)
    with pytest.raises(WeightsError, match=r"char_embed: expected a dataset stored in this file"):
        torchelmo.load_official(options, weights)


def test_a_type_where_data_should_be(official, tmp_path):
    options, weights = official.write(tmp_path)
    with h5py.File(weights, "a") as file:
        file["named"] = np.dtype("f4")
    with pytest.raises(WeightsError, match=r"named: expected a dataset stored in this file, found"):
        torchelmo.load_official(options, weights)


def test_a_group_that_holds_itself(official, tmp_path):
    options, weights = official.write(tmp_path)
    with h5py.File(weights, "a") as file:
        file["CNN/again"] = file["CNN"]
    with pytest.raises(WeightsError, match=r"weights.hdf5: .*again"):
        torchelmo.load_official(options, weights)


# Vocabularies


def test_a_vocabulary_of_another_model(tmp_path):
    options, weights = random_official(words=len(WORDS)).write(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS[:5]), encoding="utf-8")
    with pytest.raises(InputError, match=r"vocab.txt: expected the 8 words of the model, found 5"):
        torchelmo.load_official(options, weights, tmp_path / "vocab.txt")


def test_a_missing_vocabulary(tmp_path):
    options, weights = random_official(words=len(WORDS)).write(tmp_path)
    with pytest.raises(MissingFileError, match=r"vocab.txt: expected a text file, found nothing"):
        torchelmo.load_official(options, weights, tmp_path / "vocab.txt")


def test_options_are_read_as_json_only(official, tmp_path):
    """What is in the file is kept; nothing of it is run or guessed."""
    official.options["note"] = "__import__('os')"
    assert json.dumps(load(official, tmp_path).official_options) == json.dumps(official.options)
