"""What is said about an official options.json that is wrong, or that contradicts the weights."""

import json

import numpy as np
import pytest

import torchelmo
from torchelmo.errors import ConfigError, WeightsError

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
def test_options_contradict_the_weights(table, key, value, words, official, load):
    official.options[table][key] = value
    with pytest.raises(WeightsError, match=words):
        load(official)


def test_a_softmax_without_its_weights(official, load):
    official.arrays["softmax/b"] = np.zeros(9, np.float32)
    with pytest.raises(WeightsError, match=r"expected the dataset 'softmax/W' by options.json; it is missing"):
        load(official)


def test_forward_only_options_with_two_directions(official, load):
    official.options["bidirectional"] = False
    with pytest.raises(WeightsError, match=r"found the dataset 'RNN_1/"):
        load(official)


# Options that are wrong in themselves


@pytest.mark.parametrize(
    ("table", "key", "value", "words"),
    [
        ("lstm", "n_layers", "two", r"options.json: lstm: n_layers: expected int, got 'two'"),
        ("lstm", "n_layers", 0, r"options.json: n_layers must be at least 1, got 0"),
        ("lstm", "dim", -4, r"options.json: cell_dim must be at least 1, got -4"),
        ("lstm", "dim", 4.5, r"options.json: lstm: dim: expected int, got 4.5"),
        ("lstm", "dim", None, r"options.json: lstm: dim: expected int, got None"),
        ("lstm", "cell_clip", -3, r"cell_clip must be positive, or 0 for no clipping; got -3"),
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
def test_a_wrong_value(table, key, value, words, projection, official, load):
    official.options[table][key] = value
    if not projection:
        del official.arrays["CNN_proj/W_proj"]
    with pytest.raises(ConfigError, match=words):
        load(official)


@pytest.mark.parametrize(
    ("table", "key"),
    [("lstm", "dim"), ("lstm", "n_layers"), ("lstm", "projection_dim"), ("char_cnn", "filters")],
)
def test_a_missing_key(table, key, official, load):
    del official.options[table][key]
    with pytest.raises(ConfigError, match=rf"options.json: {table}: the key '{key}' is missing; these are not"):
        load(official)


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


def test_options_are_read_as_json_only(official, load):
    """What is in the file is kept; nothing of it is run or guessed."""
    official.options["note"] = "__import__('os')"
    assert json.dumps(load(official).official_options) == json.dumps(official.options)
