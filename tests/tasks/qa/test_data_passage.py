import pytest
from facts import mentions
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.tasks.qa.data import make_passage, split_texts
from torchelmo.text.places import TextData
from torchelmo.text.tokenize import Tokenizer, align

ENGLISH = Tokenizer("en")
TEXT = st.text(st.sampled_from("ab.,'$€-( )\t\n\u00a0\u2003éß中😀\u0301\"3"), max_size=40)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(TEXT, st.text(max_size=20)), min_size=1, max_size=3))
def test_every_token_stands_where_its_offsets_say(texts):
    for text, sentences in zip(texts, split_texts(texts, TextData()), strict=True):
        tokens = [token for sentence in sentences for token in sentence]
        offsets = [(token.start, token.end) for token in align([tokens], text)[0]]
        assert [text[start:end] for start, end in offsets] == tokens
        gaps = zip([0, *(end for _, end in offsets)], [*(start for start, _ in offsets), len(text)])
        assert not "".join(text[left:right] for left, right in gaps).strip()


@settings(max_examples=100, deadline=None)
@given(TEXT, st.data())
def test_the_span_of_an_answer_is_the_smallest_that_covers_it(text, data):
    tokens = [token for sentence in split_texts([text], TextData())[0] for token in sentence]
    passage = make_passage(text, tokens)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    covering = [i for i, (left, right) in enumerate(passage.offsets) if left < end and start < right and start < end]
    assert passage.span(start, end) == ((covering[0], covering[-1]) if covering else None)


def test_tokens_that_are_not_in_the_text_are_named():
    with pytest.raises(InputError, match=mentions("'cat'", 1, "' dog'")):
        align([["a"], ["cat"]], "a dog")
    with pytest.raises(InputError, match=mentions("'c'", 1, "' b c'")):
        align([["a", "c"]], "a b c")
    with pytest.raises(InputError, match=mentions("' b c'")):
        align([["a"]], "a b c")


def numbered(n_tokens: int, **options):
    tokens = [str(i) for i in range(n_tokens)]
    return make_passage(" ".join(tokens), tokens, **options)


@pytest.mark.parametrize("n_tokens", [1, 7, 8, 9, 12, 13, 31])
def test_windows_cover_all_tokens_and_overlap_by_half(n_tokens):
    windows = numbered(n_tokens, window=8).windows
    for window in windows:
        assert window.tokens == [str(i) for i in range(window.start, window.start + len(window.tokens))]
        assert len(window.tokens) <= 8
    assert {token for window in windows for token in window.tokens} == {str(i) for i in range(n_tokens)}
    assert [window.start for window in windows] == list(range(0, 4 * len(windows), 4))
    ends = [window.start + len(window.tokens) for window in windows]
    assert ends == sorted(set(ends))


def test_a_short_passage_is_one_window():
    assert numbered(8, window=8).windows == numbered(8).windows
    assert len(numbered(9, window=8).windows) == 2
    assert len(numbered(9).windows) == 1


def test_an_answer_is_marked_in_its_sentence():
    text = "A dog.\nThe cat\n sat here. A fox."
    passage = make_passage(text, ENGLISH.tokens(text), sentences=[0, 3, 8])
    start = text.index("cat")
    assert passage.marked(start, start + 3) == "The [cat] sat here."
    assert passage.marked(2, 10) == "A [dog. The] cat sat here."
    start = text.index("fox")
    assert passage.marked(start, start + 3) == "A [fox]."
