"""Sentences of text files."""

import gzip

import pytest

from torchelmo.errors import ConfigError, InputError
from torchelmo.text.reading import read_paragraphs, read_sentences

TEXT = "Ann's cat sees it. Bob, too!\n\n  \nA fox\n"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    return str(tmp_path / "text.txt.gz")


def test_raw_lines_are_split_by_rules(path):
    first, second = ["Ann", "'s", "cat", "sees", "it", "."], ["Bob", ",", "too", "!"]
    assert list(read_paragraphs(path, "en")) == [[first, second], [], [], [["A", "fox"]]]
    assert list(read_sentences(path, "en")) == [first, second, ["A", "fox"]]


def test_pretokenized_lines_are_split_at_spaces(path):
    line = ["Ann's", "cat", "sees", "it.", "Bob,", "too!"]
    assert list(read_paragraphs(path, None)) == [[line], [], [], [["A", "fox"]]]
    assert list(read_sentences(path, None)) == [line, ["A", "fox"]]


def test_a_language_that_is_not_known_is_named(path):
    with pytest.raises((ConfigError, InputError), match="'klingon'"):
        list(read_sentences(path, "klingon"))
