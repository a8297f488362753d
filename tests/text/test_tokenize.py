"""Strings through spaCy's rules."""

import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
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
    monkeypatch.setattr("torchelmo.text.tokenize._MAX_WORDS", 3)
    forgetful = Tokenizer("en")
    assert [forgetful.sentences(text) for text in TRICKY[:3]] == expected


def test_whole_texts_are_forgotten_too(monkeypatch):
    """Where a rule joins words over a space, no word is remembered, but every type is."""
    monkeypatch.setattr("torchelmo.text.tokenize._MAX_WORDS", 3)
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


@pytest.mark.parametrize("lang", ["en", "de", "es", "zh"])
def test_every_token_has_its_place_in_the_text(lang):
    tokenizer = Tokenizer(lang)
    for text in [*TRICKY, "\n".join(TRICKY)]:
        spans = tokenizer.spans(text)
        assert [[token.text for token in sentence] for sentence in spans] == tokenizer.sentences(text)
        tokens = [token for sentence in spans for token in sentence]
        assert [text[start:end] for _, start, end in tokens] == [token.text for token in tokens]
        rest = "".join(text[one.end : other.start] for one, other in pairwise(tokens))
        assert not rest.strip()


def test_half_a_surrogate_pair_is_a_replacement_character(english):
    assert english.sentences("bad \ud800 text") == [["bad", "\ufffd", "text"]]
    assert english.spans("bad \ud800x")[0][-1].end == 6


@pytest.mark.parametrize(("lang", "warned"), [("xx", True), ("en", True), ("zh", False)])
def test_a_script_without_spaces_is_warned_of_once(lang, warned, caplog):
    tokenizer = Tokenizer(lang)
    tokenizer.tokens("English and 東京 first")
    assert not caplog.records
    for _ in range(3):
        tokenizer.tokens("我们昨天晚上在北京的一家饭馆里吃了饭 and 我们昨天晚上在北京的一家饭馆里吃了面")
    assert [lang in record.getMessage() for record in caplog.records] == [True] * warned


@pytest.mark.parametrize("lang", ["ja", "th", "ko"])
def test_a_language_that_needs_another_package_names_it(lang):
    try:
        Tokenizer(lang)
    except ConfigError as error:
        assert mentions_all(str(error), lang, "`pretokenized`")  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017


def mentions_all(text: str, *facts: str) -> bool:
    return all(fact in text for fact in facts)


def test_long_words_and_lines_take_little_memory(english):
    fresh = Tokenizer("en")
    fresh.tokens("word " * 10_000)
    assert "".join(fresh.tokens("x" * 10_001)) == "x" * 10_001
    assert len(fresh._words) == 2  # "word" and the last "x"


@pytest.mark.parametrize("text", ["(" * 5000, "http://" * 5000, "a." * 5000])
def test_strange_words_take_no_long_time(text, english):
    start = time.monotonic()
    assert "".join(english.tokens(text)) == text
    assert time.monotonic() - start < 5
