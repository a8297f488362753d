"""embed: wrong settings and sentences are errors that say what was expected."""

import copy

import pytest
import torch
from facts import mentions

from torchelmo import Elmo
from torchelmo.embedder import _warn_of_single_words
from torchelmo.errors import ConfigError, InputError, WeightsError


@pytest.fixture
def elmo(tiny_bilm) -> Elmo:
    return Elmo(tiny_bilm)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"layers": "bottom"}, ["layers", "'all'", "'top'", "'average'", "'mix'", 0, 2, "'bottom'"]),
        ({"layers": 3}, ["layers", 0, 2, 3]),
        ({"layers": -4}, ["layers", 0, 2, -4]),
        ({"layers": 1.0}, ["layers", 0, 2, 1.0]),
        ({"layers": True}, ["layers", 0, 2, True]),
        ({"layers": None}, ["layers", 0, 2, None]),
        ({"batch_tokens": 0}, ["batch_tokens", 1, 0]),
        ({"precision": "float64"}, ["precision", "'float32'", "'float16'", "'float64'"]),
        ({"state": "keep"}, ["state", "'reset'", "'carry'", "'keep'"]),
        ({"pool": "sum"}, ["pool", "'mean'", "'max'", "'sum'"]),
        ({"layers": "1"}, ["layers", 0, 2, "'1'"]),
        ({"batch_tokens": "12"}, ["batch_tokens", 1, "'12'"]),
        ({"batch_tokens": True}, ["batch_tokens", 1, True]),
        ({"batch_tokens": None}, ["batch_tokens", 1, None]),
    ],
)
def test_wrong_settings_are_errors_at_the_call(options, facts, elmo):
    with pytest.raises(ConfigError, match=mentions(*facts)):
        elmo.stream([["bow"]], **options)


@pytest.mark.parametrize(
    ("sentences", "facts"),
    [
        ("one string", ["embed", "[text]"]),
        (b"bytes", ["embed", "[text]"]),
        (None, ["embed", None]),
        (7, ["embed", 7]),
        ([["a"], [3]], [1, "token 0", 3]),
        ([["a"], 3], [1, 3]),
        ([["a"], None], [1, None]),
        ([b"bytes"], [0, "b'bytes'"]),
        ({"a": 1}, ["embed", {"a": 1}]),
        ({"a b", "c"}, ["embed", "list"]),
        ([["a"], {"b", "a"}], [1, "list of tokens"]),
        ([{"a": 1}], [0, {"a": 1}]),
        (["fine", "bad \ud800 text"], [1, "surrogate", "\\ud800"]),
        ([float("nan")], [0, "nan"]),
    ],
)
def test_wrong_sentences(sentences, facts, elmo):
    with pytest.raises(InputError, match=mentions(*facts)):
        elmo.embed(sentences)


def test_an_unknown_language(elmo):
    with pytest.raises(ConfigError, match=mentions("'qq'", "spaCy")):
        elmo.embed(["text"], lang="qq")


def test_a_data_frame(elmo):
    class DataFrame(list):  # iterating over a pandas.DataFrame gives the names of its columns
        pass

    with pytest.raises(InputError, match=mentions("DataFrame", "df['text']")):
        elmo.embed(DataFrame(["text"]))


def test_one_tokenized_sentence_is_warned_about_once(elmo, caplog):
    _warn_of_single_words.cache_clear()
    for _ in range(2):
        assert len(elmo.embed(["I", "took", "a", "bow"])) == 4
    assert caplog.text.count("embed([tokens])") == 1


@pytest.mark.parametrize("sentences", [["bow"], ["I took", "bow"], [["I"], ["bow"]], ["bow", ["a"]], []])
def test_other_inputs_are_not_warned_about(sentences, elmo, caplog):
    _warn_of_single_words.cache_clear()
    elmo.embed(sentences)
    assert caplog.text == ""


@pytest.mark.parametrize("value", [float("nan"), 1e38])
def test_vectors_that_are_not_finite(value, tiny_bilm):
    bilm = copy.deepcopy(tiny_bilm)
    with torch.no_grad():
        bilm.encoder.projection.weight.fill_(value)
    with pytest.raises(WeightsError, match=mentions(bilm.source)):
        Elmo(bilm).embed([["a", "bow"]])
