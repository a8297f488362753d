"""Text for `predict`, and the tasks by name."""

import gzip

import pytest

from torchelmo.errors import ConfigError, InputError
from torchelmo.tasks.registry import TASKS, find_task
from torchelmo.tasks.task import Source
from torchelmo.tasks.text_input import read_paragraphs, read_sentences

TEXT = "Ann's cat sees it. Bob, too!\n\n  \nA fox\n"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    return str(tmp_path / "text.txt.gz")


def test_raw_lines_are_split_by_rules(path):
    first, second = ["Ann", "'s", "cat", "sees", "it", "."], ["Bob", ",", "too", "!"]
    assert list(read_paragraphs(Source(path))) == [[first, second], [], [], [["A", "fox"]]]
    assert list(read_sentences(Source(path))) == [first, second, ["A", "fox"]]


def test_pretokenized_lines_are_split_at_spaces(path):
    line = ["Ann's", "cat", "sees", "it.", "Bob,", "too!"]
    assert list(read_paragraphs(Source(path, pretokenized=True))) == [[line], [], [], [["A", "fox"]]]
    assert list(read_sentences(Source(path, pretokenized=True))) == [line, ["A", "fox"]]


def test_a_language_that_is_not_known_is_named(path):
    with pytest.raises((ConfigError, InputError), match="Language 'klingon': expected a code"):
        list(read_sentences(Source(path, lang="klingon")))


@pytest.mark.parametrize("name", ["ner", "pos"])
def test_a_task_is_found_by_its_name(name):
    task = find_task(name)
    assert task.name == name
    assert name in TASKS


def test_an_unknown_task_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match="There is no task 'nre'. Did you mean 'ner'?"):
        find_task("nre")
