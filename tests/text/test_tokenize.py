"""Strings through spaCy's rules."""

import timeit
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from facts import mentions
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.errors import ConfigError
from torchelmo.text.tokenize import Tokenizer, tokenizer_for


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


@pytest.mark.parametrize("lang", ["de", "xx", "es"])
def test_other_languages(lang):
    assert Tokenizer(lang).tokens("Das ist gut.") == ["Das", "ist", "gut", "."]


@pytest.mark.parametrize("lang", ["qq", "klingon", "", "../en"])
def test_an_unknown_language_is_an_error_at_once(lang):
    with pytest.raises(ConfigError, match=mentions(repr(lang), "spaCy")):
        Tokenizer(lang)


def test_longer_than_spacy_takes_by_itself(english):
    assert len(english.tokens("bow " * 260_000)) == 260_000


def by_spacy(pipeline: Any, text: str) -> list[list[str]]:
    """What spaCy's own sentencizer and tokenizer give for the text as one document."""
    sentences = ([token.text for token in span if not token.is_space] for span in pipeline(text).sents)
    return [tokens for tokens in sentences if tokens]


@pytest.fixture(scope="module")
def pipelines() -> dict[str, Any]:
    import spacy

    built = {lang: spacy.blank(lang) for lang in ("en", "de", "es", "zh")}
    for pipeline in built.values():
        pipeline.add_pipe("sentencizer")
    return built


TRICKY = [
    "He said: “Go!” (Then he went.) And then?",
    'One. \n "Two" three.  "Four."',
    " leading, trailing.  ",
    "a\tb \t c\u00a0d. e\u2003f",
    "U.S. e.g. i.e. Mr. O'Neill's 10km/h well-known http://a.b/c?d=e. :-) :( ...",
    "I can't, won't, shan't've; it's you're. What?! No... Yes.",
    "!!! ??? . . . a . b",
    "… ... “…” end",
    "the EE. UU. son grandes. Sí.",
    "我来了。你呢？他走了",
    "\ufefffirst \u200b zero \u00ad soft",
]


@pytest.mark.parametrize("lang", ["en", "de", "es", "zh"])
def test_words_are_split_and_sentences_end_as_spacy_does_it(lang, pipelines):
    tokenizer = Tokenizer(lang)
    for text in [*TRICKY, " ".join(TRICKY), "\n".join(TRICKY)]:
        assert tokenizer.sentences(text) == by_spacy(pipelines[lang], text), text


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            [*"abA.!?\"'()[],;:-%$…“”’", " ", "  ", "\t", "\n", "\u00a0", "n't", "'s", "U.S.", "3", "km", "é"]
        ),
        max_size=30,
    ).map("".join)
)
def test_any_text_is_split_as_spacy_does_it(english, pipelines, text):
    assert english.sentences(text) == by_spacy(pipelines["en"], text)


def test_a_rule_over_a_space_holds_where_the_language_has_one():
    assert "EE. UU." in Tokenizer("es").tokens("En EE. UU. hay")


def test_many_texts_as_numbers(english):
    types, ids, lengths, texts = english.encode(["A bow. A rose.", "  ", "", "Rose!"])
    assert types == ["A", "bow", ".", "rose", "Rose", "!"]
    assert ids.tolist() == [0, 1, 2, 0, 3, 2, 4, 5]
    assert lengths.tolist() == [3, 3, 2]
    assert texts.tolist() == [0, 0, 3]


def test_no_texts(english):
    types, ids, lengths, texts = english.encode([])
    assert (types, len(ids), len(lengths), len(texts)) == ([], 0, 0, 0)


def test_forgetting_words_changes_nothing(english, monkeypatch):
    expected = [english.sentences(text) for text in TRICKY[:3]]
    monkeypatch.setattr("torchelmo.text.tokenize._MOST_WORDS", 3)
    forgetful = Tokenizer("en")
    assert [forgetful.sentences(text) for text in TRICKY[:3]] == expected


def test_whole_texts_are_forgotten_too(monkeypatch):
    """Where a rule joins words over a space, no word is remembered, but every type is."""
    monkeypatch.setattr("torchelmo.text.tokenize._MOST_WORDS", 3)
    forgetful = Tokenizer("es")
    assert forgetful.tokens("En EE. UU. hay rosas") == ["En", "EE. UU.", "hay", "rosas"]
    assert len(forgetful._words.types) == 1


def test_a_line_takes_no_longer_after_many_types(english):
    def best() -> float:
        return min(timeit.repeat(lambda: experienced.tokens("I took a bow."), number=5, repeat=20))

    experienced = Tokenizer("en")
    experienced.tokens("I took a bow.")
    before = best()
    words = experienced._words
    words.types.extend(f"type {i}" for i in range(300_000))
    words.kinds.extend([0] * 300_000)
    assert best() < 5 * before
    assert experienced.tokens("Types come still.") == english.tokens("Types come still.")


def test_each_thread_keeps_one_tokenizer_of_a_language():
    ours = tokenizer_for("en")
    assert tokenizer_for("en") is ours
    assert tokenizer_for("de") is not ours
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(tokenizer_for, "en").result() is not ours
