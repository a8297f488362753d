"""What is said about an official options.json that is wrong, or that contradicts the weights."""

import json

import numpy as np
import pytest
from facts import mentions
from official_files import random_official

import torchelmo
from torchelmo.errors import ConfigError, WeightsError

# Options that contradict the weights


@pytest.mark.parametrize(
    ("table", "key", "value", "facts"),
    [
        ("lstm", "n_layers", 3, ["'RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0'"]),
        ("lstm", "n_layers", 1, ["'RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/B'"]),
        ("lstm", "n_layers", 100, ["'RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0'"]),
        ("lstm", "dim", 8, ["W_0", (10, 32), "options.json", (10, 28)]),
        ("lstm", "dim", 10**6, ["W_0", 4 * 10**6]),
        ("lstm", "projection_dim", 6, ["CNN_proj/W_proj", (8, 6)]),
        ("char_cnn", "n_highway", 2, ["'CNN_high_1/W_carry'"]),
        ("char_cnn", "n_highway", 0, ["'CNN_high_0/W_carry'"]),
        ("char_cnn", "n_highway", 100, ["'CNN_high_1/W_carry'"]),
        ("char_cnn", "filters", [[1, 3], [2, 2]], ["CNN_high_0/W_carry", (5, 5)]),
        ("char_cnn", "filters", [[1, 3], [2, 2], [4, 4]], ["CNN/W_cnn_2", (1, 4, 3, 4)]),
        ("char_cnn", "embedding", {"dim": 4}, ["char_embed", (261, 4), "options.json", (261, 3)]),
    ],
)
def test_options_contradict_the_weights(table, key, value, facts, official, load):
    official.options[table][key] = value
    with pytest.raises(WeightsError, match=mentions(*facts)):
        load(official)


@pytest.mark.parametrize(
    ("table", "key"), [("lstm", "n_layers"), ("lstm", "dim"), ("lstm", "cell_clip"), ("char_cnn", "n_highway")]
)
@pytest.mark.parametrize("value", [10**12, 10**18, 10**30, 10**400])
def test_numbers_out_of_range(table, key, value, official, load):
    official.options[table][key] = value
    with pytest.raises(ConfigError, match=mentions("options.json", key if key != "dim" else "dim")):
        load(official)


def test_a_softmax_without_its_weights(official, load):
    official.arrays["softmax/b"] = np.zeros(9, np.float32)
    with pytest.raises(WeightsError, match=mentions("'softmax/W'", "options.json")):
        load(official)


def test_forward_only_options_with_two_directions(official, load):
    official.options["bidirectional"] = False
    with pytest.raises(WeightsError, match="'RNN_1/"):
        load(official)


# Options that are wrong in themselves


@pytest.mark.parametrize(
    ("table", "key", "value", "facts"),
    [
        ("lstm", "n_layers", "two", ["options.json", "lstm", "n_layers", "'two'"]),
        ("lstm", "n_layers", 0, ["options.json", "n_layers", 1, 0]),
        ("lstm", "dim", -4, ["options.json", "cell_dim", 1, -4]),
        ("lstm", "dim", 4.5, ["options.json", "lstm", "dim", 4.5]),
        ("lstm", "dim", None, ["options.json", "lstm", "dim", None]),
        ("lstm", "cell_clip", -3, ["cell_clip", 0, -3]),
        ("lstm", "proj_clip", "3", ["options.json", "lstm", "proj_clip", "'3'"]),
        ("lstm", "cell_clip", float("nan"), ["cell_clip", "nan"]),
        ("lstm", "use_skip_connections", "no", ["options.json", "lstm", "use_skip_connections", "'no'"]),
        ("char_cnn", "activation", "gelu", ["char_cnn", "activation", "'relu'", "'tanh'", "'gelu'"]),
        ("char_cnn", "n_characters", 300, ["char_cnn", "n_characters", 261, 262, 300]),
        ("char_cnn", "n_characters", [261], ["char_cnn", "n_characters", 262, [261]]),
        ("char_cnn", "max_characters_per_token", 2, ["max_characters", 2]),
        ("char_cnn", "max_characters_per_token", 3, [(4, 3), 1, "max_characters", 3]),
        ("char_cnn", "filters", [], ["options.json", "filters"]),
        ("char_cnn", "filters", 3, ["char_cnn", "filters", 3]),
        ("char_cnn", "filters", [3], ["char_cnn", "filters[0]", 3]),
        ("char_cnn", "filters", [[1, 2, 3]], ["char_cnn", "filters[0]", 2, [1, 2, 3]]),
        ("char_cnn", "filters", [["1", 2]], ["char_cnn", "filters[0][0]", "'1'"]),
        ("char_cnn", "n_highway", "x", ["char_cnn", "n_highway", "'x'"]),
        ("char_cnn", "n_highway", -1, ["n_highway", -1]),
        ("char_cnn", "embedding", 16, ["char_cnn", "embedding", 16]),
        ("char_cnn", "embedding", {}, ["char_cnn", "embedding", "'dim'"]),
    ],
)
@pytest.mark.parametrize("projection", [True, False])
def test_a_wrong_value(table, key, value, facts, projection, official, load):
    official.options[table][key] = value
    if not projection:
        del official.arrays["CNN_proj/W_proj"]
    with pytest.raises(ConfigError, match=mentions(*facts)):
        load(official)


@pytest.mark.parametrize(
    ("table", "key"),
    [("lstm", "dim"), ("lstm", "projection_dim"), ("char_cnn", "filters")],
)
def test_a_missing_key(table, key, official, load):
    del official.options[table][key]
    with pytest.raises(ConfigError, match=mentions("options.json", table, repr(key))):
        load(official)


@pytest.mark.parametrize("n_layers", [1, 3])
def test_the_number_of_layers_is_that_of_the_weights(n_layers, load):
    """bilm-tf takes 1 if the options do not have it."""
    official = random_official(n_layers=n_layers)
    del official.options["lstm"]["n_layers"]
    assert load(official).config.n_layers == n_layers


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("{", ["JSON"]),
        (" ", ["JSON"]),
        ("[" * 100_000, ["JSON"]),
        ("[]", ["JSON", "'lstm'", "list"]),
        ("{}", ["'lstm'"]),
        ('{"lstm": 3}', ["lstm", 3]),
    ],
)
def test_wrong_json(text, facts, official, tmp_path):
    options, weights = official.write(tmp_path)
    options.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=mentions("options.json", *facts)):
        torchelmo.load_official(options, weights)


def test_json_that_is_not_text(official, tmp_path):
    options, weights = official.write(tmp_path)
    options.write_bytes(b'{"lstm": "\xff"}')
    with pytest.raises(ConfigError, match=mentions("options.json", "UTF-8", "0xff")):
        torchelmo.load_official(options, weights)


def test_options_are_read_as_json_only(official, load):
    """What is in the file is kept; nothing of it is run or guessed."""
    official.options["note"] = "__import__('os')"
    assert json.dumps(load(official).official_options) == json.dumps(official.options)
