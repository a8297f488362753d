"""Reading and writing CoNLL-U."""

import pytest
from facts import mentions
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.tasks.pos import PosData, read, write
from torchelmo.tasks.tagging import Tagged


def row(number, word, upos="X", xpos="FW"):
    return "\t".join([number, word, "_", upos, xpos, "_", "_", "_", "_", "_"]) + "\n"


SAMPLE = (
    "# sent_id = 1\n# text = Vámonos # al mar\n"
    + row("1-2", "Vámonos", "_", "_")
    + row("1", "Vamos", "VERB", "V")
    + row("2", "nos", "PRON", "P")
    + row("3", "#", "SYM", "S")
    + row("4-5", "al", "_", "_")
    + row("4", "a", "ADP", "A")
    + row("5", "el", "DET", "D")
    + row("5.1", "gran", "ADJ", "J")
    + row("6", "mar", "NOUN", "N")
    + "\n# sent_id = 2\n"
    + row("1", "diez mil", "NUM", "Z")
    + "\n"
)
WORDS = [["Vamos", "nos", "#", "a", "el", "mar"], ["diez mil"]]
UPOS = [["VERB", "PRON", "SYM", "ADP", "DET", "NOUN"], ["NUM"]]
XPOS = [["V", "P", "S", "A", "D", "N"], ["Z"]]


def file(folder, text):
    path = folder / "train.conllu"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("column", "tags"), [("upos", UPOS), ("xpos", XPOS)])
def test_words_are_kept_and_multiword_tokens_and_empty_nodes_skipped(tmp_path, column, tags):
    assert read(file(tmp_path, SAMPLE), PosData(column=column)) == list(map(Tagged, WORDS, tags))


@pytest.mark.parametrize("column", ["upos", "xpos"])
def test_what_is_written_reads_back(tmp_path, column):
    sentences = list(map(Tagged, WORDS, UPOS))
    write(tmp_path / "out.conllu", sentences, PosData(column=column))
    assert read(tmp_path / "out.conllu", PosData(column=column)) == sentences


words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=4)


@given(st.lists(st.lists(words, min_size=1, max_size=5), min_size=1, max_size=3))
def test_any_word_reads_back(tmp_path_factory, sentences):
    path = tmp_path_factory.mktemp("pos") / "out.conllu"
    tagged = [Tagged(tokens, ["X"] * len(tokens)) for tokens in sentences]
    write(path, tagged, PosData())
    assert read(path, PosData()) == tagged


def test_what_is_written_has_the_ten_columns(tmp_path):
    write(tmp_path / "out.conllu", [Tagged(["go"], ["VERB"])], PosData())
    assert (tmp_path / "out.conllu").read_bytes() == b"1\tgo\t_\tVERB\t_\t_\t_\t_\t_\t_\n\n"


@pytest.mark.parametrize("word", ["a\tb", "a\nb", ""])
def test_a_word_that_would_not_read_back_is_refused(tmp_path, word):
    with pytest.raises(InputError, match=mentions("out.conllu", repr(word))):
        write(tmp_path / "out.conllu", [Tagged([word], ["X"])], PosData())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# a\n1\tgo\tVERB\n", ("line 2", 10, "CoNLL-U", 3)),
        ("1 go go VERB VB _ 0 root _ _\n", ("line 1", 10, "CoNLL-U", 1)),
        (row("1", "a") + row("3", "b"), ("line 2", 2, "'3'")),
        (row("one", "a"), ("line 1", 1, "'one'")),
        (row("1", "a") + row("1", "b"), ("line 2", 2, "'1'")),
        (row("1", ""), ("line 1",)),
        (row("1", "a", "_"), ("line 1", "upos", "'_'", 'column = "xpos"')),
        (row("1-2", "a") + row("1.1", "b"), ("line 2",)),
        ("", ("CoNLL-U",)),
        ("# only a comment\n\n", ("CoNLL-U",)),
    ],
)
def test_malformed_files_are_refused_with_the_line(tmp_path, text, message):
    with pytest.raises(InputError, match=mentions("train.conllu", *message)):
        read(file(tmp_path, text), PosData())


def test_a_treebank_without_its_own_tags_says_which_column_to_take(tmp_path):
    with pytest.raises(InputError, match=mentions("line 1", "xpos", "'_'", 'column = "upos"')):
        read(file(tmp_path, row("1", "a", "X", "_")), PosData(column="xpos"))
