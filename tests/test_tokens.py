"""Tokens and their character offsets beside the vectors, and the vector of a span of characters."""

import numpy as np
import pytest
from facts import mentions
from hypothesis import given
from hypothesis import strategies as st

from torchelmo import Elmo
from torchelmo.errors import InputError
from torchelmo.text.tokenize import Token, find_tokens

TEXT = "It's  mine, isn't it?\nYes, in 東京! 🎭"


@pytest.fixture(scope="module")
def elmo(tiny_bilm):
    return Elmo(tiny_bilm)


def test_tokens_have_their_place_in_the_text(elmo):
    tokens = elmo.tokenize(TEXT)
    assert [token.text for token in tokens][:5] == ["It", "'s", "mine", ",", "is"]
    assert [TEXT[token.start : token.end] for token in tokens] == [token.text for token in tokens]
    assert elmo.tokenize("") == elmo.tokenize("  ") == elmo.tokenize([]) == []


def test_a_list_of_tokens_is_placed_in_its_words_joined_by_spaces(elmo):
    words = ["10 000", "a", "bow"]
    tokens = elmo.tokenize(words)
    assert [" ".join(words)[token.start : token.end] for token in tokens] == words


def test_the_language_splits_the_text(elmo):
    assert len(elmo.tokenize("z.B. gestern", lang="de")) == 2
    assert len(elmo.tokenize("z.B. gestern", lang="en")) > 2


@pytest.mark.parametrize("layers", ["all", "top"])
@pytest.mark.parametrize("pool", [None, "mean"])
def test_embed_returns_tokens_beside_vectors(elmo, layers, pool):
    texts = [TEXT, ["bow", "and", "arrow"], ""]
    vectors, tokens = elmo.embed(iter(texts), layers, pool=pool, return_tokens=True)
    for one, other in zip(vectors, elmo.embed(texts, layers, pool=pool)):
        np.testing.assert_array_equal(one, other)
    assert tokens == [elmo.tokenize(text) for text in texts]
    if pool is None:
        assert [array.shape[-2] for array in vectors] == [len(of_one) for of_one in tokens]


@given(st.text(max_size=30))
def test_there_is_a_token_for_every_vector_of_any_text(elmo, text):
    text = text.encode("utf-8", "replace").decode("utf-8")  # no lone surrogates
    vectors, tokens = elmo.embed([text], 0, return_tokens=True)
    assert len(vectors[0]) == len(tokens[0])
    assert [text[token.start : token.end] for token in tokens[0]] == [token.text for token in tokens[0]]


def test_a_span_of_characters_has_a_vector(elmo):
    vectors = elmo.embed([TEXT])[0]
    place = TEXT.index("mine")
    np.testing.assert_array_equal(elmo.vectors_at(TEXT, place, place + 4), vectors[:, 2])
    np.testing.assert_array_equal(elmo.vectors_at(TEXT, place + 1, place + 2), vectors[:, 2])
    mean = elmo.vectors_at(TEXT, 0, place + 4, layers="top")
    np.testing.assert_allclose(mean, vectors[-1, :3].mean(axis=0), rtol=1e-6, atol=1e-6)
    words = ["bow", "and", "arrow"]
    np.testing.assert_array_equal(elmo.vectors_at(words, 4, 7, 1), elmo.embed([words], 1)[0][1])


@pytest.mark.parametrize(("start", "end"), [(4, 5), (3, 3), (100, 105), (-5, 0), (5, 2)])
def test_a_span_without_a_token_is_named(elmo, start, end):
    with pytest.raises(InputError, match=mentions(start, end, len(TEXT))):
        elmo.vectors_at(TEXT, start, end)
    with pytest.raises(InputError):
        elmo.vectors_at("", 0, 1)


def test_tokens_are_found_by_characters():
    tokens = [Token("a", 0, 1), Token("bow", 2, 5), Token(".", 5, 6)]
    assert [find_tokens(tokens, *span) for span in [(0, 1), (0, 6), (1, 2), (4, 5), (5, 9)]] == [
        [0],
        [0, 1, 2],
        [],
        [1],
        [2],
    ]


def test_wrong_texts_are_refused(elmo):
    with pytest.raises(InputError, match="42"):
        elmo.tokenize(42)
    with pytest.raises(InputError, match="surrogate"):
        elmo.tokenize("a\ud800")
