"""Strings through spaCy's rules."""

import pytest

from torchelmo.errors import ConfigError
from torchelmo.text.tokenize import Tokenizer


@pytest.fixture(scope="module")
def english() -> Tokenizer:
    return Tokenizer("en")


def test_sentences_and_tokens(english):
    assert english.sentences("I took a bow. Don't!") == [["I", "took", "a", "bow", "."], ["Do", "n't", "!"]]
    assert english.tokens("I took a bow. Don't!") == ["I", "took", "a", "bow", ".", "Do", "n't", "!"]


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\t \u00a0"])
def test_text_without_words(text, english):
    assert english.sentences(text) == []
    assert english.tokens(text) == []


def test_white_space_is_not_a_token(english):
    assert english.tokens("a  bow\n and \t arrow") == ["a", "bow", "and", "arrow"]


def test_many_texts_in_order(english):
    assert list(english.pipe(["A bow.", "", "An arrow."])) == [
        [["A", "bow", "."]],
        [],
        [["An", "arrow", "."]],
    ]


@pytest.mark.parametrize("lang", ["de", "xx", "es"])
def test_other_languages(lang):
    assert Tokenizer(lang).tokens("Das ist gut.") == ["Das", "ist", "gut", "."]


@pytest.mark.parametrize("lang", ["qq", "klingon", "", "../en"])
def test_an_unknown_language_is_an_error_at_once(lang):
    with pytest.raises(ConfigError, match=r"expected a code that spaCy has rules for, such as en, de or xx"):
        Tokenizer(lang)


def test_longer_than_spacy_takes_by_itself(english):
    assert len(english.tokens("bow " * 260_000)) == 260_000
