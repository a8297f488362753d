"""embed: wrong settings and sentences are errors that say what was expected."""

import pytest

from torchelmo import Elmo
from torchelmo.errors import ConfigError, InputError


@pytest.fixture
def elmo(tiny_bilm) -> Elmo:
    return Elmo(tiny_bilm)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"layers": "bottom"},
            r"layers: expected 'all', 'top', 'average', 'mix' or an index from 0 to 2, got 'bottom'",
        ),
        ({"layers": 3}, r"an index from 0 to 2, got 3"),
        ({"layers": -4}, r"an index from 0 to 2, got -4"),
        ({"layers": 1.0}, r"an index from 0 to 2, got 1.0"),
        ({"layers": True}, r"an index from 0 to 2, got True"),
        ({"layers": None}, r"an index from 0 to 2, got None"),
        ({"batch_tokens": 0}, r"batch_tokens: expected at least 1, got 0"),
        ({"precision": "float64"}, r"precision: expected 'float32' or 'float16', got 'float64'"),
        ({"state": "keep"}, r"state: expected 'reset' or 'carry', got 'keep'"),
    ],
)
def test_wrong_settings_are_errors_at_the_call(options, words, elmo):
    with pytest.raises(ConfigError, match=words):
        elmo.stream([["bow"]], **options)


@pytest.mark.parametrize(
    ("sentences", "words"),
    [
        ("one string", r"expected a list of sentences, got one string. Pass \[text\] for a single text"),
        (b"bytes", r"expected a list of sentences, got one string"),
        (None, r"expected a list of sentences, got None"),
        (7, r"expected a list of sentences, got 7"),
        ([["a"], [3]], r"Sentence 1, token 0: expected a string, got 3"),
        ([["a"], 3], r"Sentence 1: expected a list of tokens, got 3"),
        ([["a"], None], r"Sentence 1: expected a list of tokens, got None"),
        ([b"bytes"], r"Sentence 0: expected a list of tokens, got b'bytes'"),
    ],
)
def test_wrong_sentences(sentences, words, elmo):
    with pytest.raises(InputError, match=words):
        elmo.embed(sentences)


def test_an_unknown_language(elmo):
    with pytest.raises(ConfigError, match=r"Language 'qq': expected a code that spaCy has rules for"):
        elmo.embed(["text"], lang="qq")
