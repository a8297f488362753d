"""vocab.txt and the ids of its words."""

import pytest
from facts import mentions
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.text.vocabulary import Vocabulary

MARKS = ["<S>", "</S>", "<UNK>"]


def test_ids_and_unknown_words():
    vocabulary = Vocabulary(["</S>", "the", "<UNK>", "<S>"])
    assert vocabulary.ids(["the", "bow", "<S>"]).tolist() == [1, 2, 3]
    assert vocabulary.ids([]).tolist() == []
    assert vocabulary.unknown_id == 2


def test_behaves_like_a_list_of_words():
    vocabulary = Vocabulary([*MARKS, "bow"])
    assert len(vocabulary) == 4
    assert list(vocabulary) == [*MARKS, "bow"]
    assert "bow" in vocabulary
    assert "arrow" not in vocabulary
    assert vocabulary[3] == "bow"
    assert vocabulary == Vocabulary([*MARKS, "bow"])
    assert vocabulary != Vocabulary(MARKS)
    assert vocabulary != MARKS
    with pytest.raises(TypeError, match="Vocabulary"):
        hash(vocabulary)


@given(words=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), min_size=1)))
def test_write_then_read_is_the_same(words, tmp_path_factory):
    words = [word for word in dict.fromkeys(words) if word not in (*MARKS, "!!!MAXTERMID")]
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    Vocabulary([*MARKS, *words]).write(path)
    assert Vocabulary.read(path).words == [*MARKS, *words]


def test_the_mark_of_older_files_is_skipped(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("</S>\n<S>\n<UNK>\nthe\n!!!MAXTERMID\n", encoding="utf-8")
    assert Vocabulary.read(path).words == ["</S>", "<S>", "<UNK>", "the"]


def test_a_word_that_stands_twice(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("<S>\n</S>\n<UNK>\nbow\nthe\nbow\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions("vocab.txt", "line 6", "'bow'")):
        Vocabulary.read(path)


@pytest.mark.parametrize("mark", MARKS)
def test_a_missing_mark(mark):
    with pytest.raises(InputError, match=mentions(mark)):
        Vocabulary([word for word in MARKS if word != mark])


def test_a_blank_line(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("<S>\n</S>\n!!!MAXTERMID\n<UNK>\n\nthe\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions("vocab.txt", "line 5")):
        Vocabulary.read(path)


@pytest.mark.parametrize("word", ["", "two\nlines", "end\r", "\ud83d", "!!!MAXTERMID"])
def test_a_word_that_a_line_cannot_hold_is_not_written(word, tmp_path):
    with pytest.raises(InputError, match=mentions("vocab.txt", 3, repr(word))):
        Vocabulary([*MARKS, word]).write(tmp_path / "vocab.txt")
    assert not list(tmp_path.iterdir())


def test_invalid_text(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"<S>\n</S>\n<UNK>\nna\xefve\n")
    with pytest.raises(InputError, match=mentions("vocab.txt", "line 4", "UTF-8", "0xef", "column 3")):
        Vocabulary.read(path)
