"""The vectorised character encoder against an obvious loop."""

import numpy as np
import pytest
from facts import mentions
from hypothesis import given
from hypothesis import strategies as st
from oracle import character_ids

from torchelmo.text.characters import CharacterEncoder

any_text = st.text(st.characters(), max_size=30)  # every code point, lone surrogates left out


def plain(token: str, max_length: int) -> list[int]:
    return [i + 1 for i in character_ids(token, max_length)]


@given(st.lists(any_text | st.sampled_from(["<S>", "</S>", "<UNK>", ""]), max_size=8), st.integers(3, 60))
def test_equals_the_obvious_loop(tokens, max_length):
    ids = CharacterEncoder(max_length).encode(tokens)
    assert ids.dtype == np.int64
    assert ids.shape == (len(tokens), max_length)
    assert ids.tolist() == [plain(token, max_length) for token in tokens]


def test_the_official_layout():
    ids = CharacterEncoder()("bow").tolist()
    assert ids == [259, ord("b") + 1, ord("o") + 1, ord("w") + 1, 260] + [261] * 45


@pytest.mark.parametrize(("mark", "id"), [("<S>", 257), ("</S>", 258)])
def test_sentence_marks_are_one_character(mark, id):
    assert CharacterEncoder()(mark).tolist() == [259, id, 260] + [261] * 47
    assert CharacterEncoder().mark(mark).tolist() == CharacterEncoder()(mark).tolist()


def test_48_bytes_fit_and_the_49th_is_cut():
    encoder = CharacterEncoder()
    assert encoder("x" * 48).tolist() == [259] + [121] * 48 + [260]
    assert encoder("x" * 49).tolist() == encoder("x" * 48).tolist()
    assert encoder("x" * 47).tolist() == [259] + [121] * 47 + [260, 261]


def test_the_cut_may_fall_into_the_middle_of_a_character():
    ids = CharacterEncoder()("x" * 47 + "é").tolist()
    assert "é".encode() == b"\xc3\xa9"
    assert ids[-3:] == [121, 0xC3 + 1, 260]


def test_an_empty_token_is_two_marks():
    assert CharacterEncoder(5)("").tolist() == [259, 260, 261, 261, 261]


def test_a_token_of_ten_thousand_characters():
    assert CharacterEncoder()("日" * 10_000).tolist() == plain("日" * 10_000, 50)


def test_lone_surrogates_have_no_bytes():
    assert CharacterEncoder(6)("a\ud800b").tolist() == CharacterEncoder(6)("ab").tolist()


def test_null_bytes_are_characters():
    assert CharacterEncoder(5)("\x00").tolist() == [259, 1, 260, 261, 261]


def test_other_kinds_of_strings_and_sequences():
    encoder = CharacterEncoder(6)
    tokens = np.array(["the", "bow"])
    assert encoder.encode(tokens).tolist() == encoder.encode(["the", "bow"]).tolist()
    assert encoder.encode(("the", np.str_("bow"))).tolist() == encoder.encode(["the", "bow"]).tolist()


def test_batch_pads_with_zeros():
    ids = CharacterEncoder(5).batch([["a"], [], ["b", "c"]])
    assert ids.shape == (3, 2, 5)
    assert ids[0].tolist() == [plain("a", 5), [0] * 5]
    assert not ids[1].any()
    assert ids[2].tolist() == [plain("b", 5), plain("c", 5)]


@pytest.mark.parametrize(("sentences", "shape"), [([], (0, 0, 5)), ([[]], (1, 0, 5)), ([[], []], (2, 0, 5))])
def test_batch_of_nothing(sentences, shape):
    ids = CharacterEncoder(5).batch(sentences)
    assert ids.shape == shape
    assert ids.dtype == np.int64


def test_no_tokens():
    assert CharacterEncoder(5).encode([]).shape == (0, 5)


@pytest.mark.parametrize("max_length", [2, 0, -1])
def test_too_short_is_refused(max_length):
    with pytest.raises(ValueError, match=mentions("max_length", max_length)):
        CharacterEncoder(max_length)
