"""Tokens with their places in a text, in files and in memory."""

import pytest
from facts import mentions

from torchelmo.errors import InputError
from torchelmo.tasks.task import Source
from torchelmo.text.places import Place, Sentence, TextData, join_sentences, place_record, read_sentences, span_record

RAW = "Hi!  It's me."


def test_a_file_gives_lines_and_characters(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(f"\n{RAW}\n", encoding="utf-8")
    first, second = read_sentences(Source(str(path)), TextData())
    assert first == Sentence(["Hi", "!"], Place(2, [(0, 2), (2, 3)]))
    assert [RAW[start:end] for start, end in second.place.offsets] == second.tokens == ["It", "'s", "me", "."]


def test_strings_and_token_lists_in_memory():
    found = list(read_sentences(Source(texts=[RAW, ["It's", "me."], ""]), TextData()))
    assert [sentence.tokens for sentence in found] == [["Hi", "!"], ["It", "'s", "me", "."], ["It's", "me."]]
    assert [sentence.place is None for sentence in found] == [False, False, True]
    assert found[0].place.line is None


@pytest.mark.parametrize(
    ("lang", "options", "tokens"),
    [
        ("auto", TextData(), ["It", "'s", "."]),
        ("auto", TextData(pretokenized=True), ["It's."]),
        (None, TextData(), ["It's."]),
    ],
)
def test_the_settings_decide_unless_the_source_does(lang, options, tokens):
    (sentence,) = read_sentences(Source(texts=["It's."], lang=lang), options)
    assert sentence.tokens == tokens


@pytest.mark.parametrize("text", [3, None, [1], [""], {"a"}])
def test_other_types_are_refused(text):
    with pytest.raises(InputError, match=mentions(repr(text))):
        list(read_sentences(Source(texts=[text]), TextData()))


def test_records_have_characters_only_if_they_are_known():
    sentence = join_sentences(TextData().sentences(RAW, line=4))
    assert place_record(sentence.place)["line"] == 4
    assert span_record(sentence.tokens, 2, 5, sentence.place) == {
        **{"start": 2, "end": 5, "start_char": 5, "end_char": 12, "text": "It 's me"},
    }
    assert place_record(None) == {}
    assert span_record(["a", "b"], 0, 2, None) == {"start": 0, "end": 2, "text": "a b"}
