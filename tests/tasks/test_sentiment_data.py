"""Sentiment files: trees and labelled lines, five classes and two."""

from pathlib import Path

import pytest
from facts import mentions

from torchelmo.errors import ConfigError, InputError
from torchelmo.tasks.sentiment import FINE, Sentiment, SentimentData, SentimentExample, add_phrases, read

TREES = """\
(3 (2 It) (4 (2 works) (2 .)))
(2 (2 So) (0 (1 (2 what) (2 (2 is) (2 that))) (2 ?)))
(0 (1 (2 what) (2 (2 is) (2 that))) (0 Awful))
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        (tmp_path / "train.txt").write_text(text, encoding="utf-8")
        return tmp_path / "train.txt"

    return write


def plain(examples: list[SentimentExample]) -> list[tuple[str, str | None]]:
    return [(" ".join(example.tokens), example.label) for example in examples]


def test_trees_are_read_as_whole_sentences(write):
    assert plain(read(write(TREES), SentimentData())) == [
        ("It works .", "positive"),
        ("So what is that ?", "neutral"),
        ("what is that Awful", "very negative"),
    ]


def test_training_adds_long_phrases_once_and_keeps_short_sentences(write):
    options = SentimentData(min_phrase=3)
    examples = read(write(TREES + TREES), options)
    assert len(examples) == 6
    assert plain(add_phrases(examples, options)) == [
        ("It works .", "positive"),
        ("So what is that ?", "neutral"),
        ("what is that ?", "very negative"),
        ("what is that", "negative"),
        ("what is that Awful", "very negative"),
    ]
    assert ("It works .", "positive") in plain(add_phrases(examples, SentimentData(min_phrase=4)))


def test_a_minimum_of_0_trains_on_whole_sentences_only(write):
    examples = read(write(TREES), SentimentData(min_phrase=0))
    assert plain(add_phrases(examples, SentimentData(min_phrase=0))) == plain(examples)


def test_binary_has_no_neutral_sentence_and_no_neutral_phrase(write):
    options = SentimentData(classes="binary", min_phrase=1)
    examples = read(write(TREES), options)
    assert plain(examples) == [("It works .", "positive"), ("what is that Awful", "negative")]
    assert plain(add_phrases(examples, options)) == [
        ("It works .", "positive"),
        ("works .", "positive"),
        ("what is that Awful", "negative"),
        ("what is that", "negative"),
        ("Awful", "negative"),
    ]


@pytest.mark.parametrize(
    ("classes", "text", "expected"),
    [
        (
            "fine",
            "4\tIt works\n\nvery negative\tno  good\r\n",
            [("It works", "very positive"), ("no good", "very negative")],
        ),
        ("binary", "1\tIt works\n0\tno good\n", [("It works", "positive"), ("no good", "negative")]),
        ("binary", "very positive\tIt works\nneutral\tso so\n", [("It works", "positive")]),
    ],
)
def test_labelled_lines_have_names_or_numbers_of_their_classes(write, classes, text, expected):
    options = SentimentData(classes=classes)
    examples = read(write(text), options)
    assert plain(examples) == expected
    assert plain(add_phrases(examples, options)) == expected


def test_raw_text_is_split_into_tokens(write):
    assert read(write("1\tIt doesn't (really) work.\n"), SentimentData(classes="fine"))[0].tokens == (
        *("It", "does", "n't", "(", "really", ")", "work", "."),
    )


@pytest.mark.parametrize(
    ("classes", "text", "message"),
    [
        (
            *("fine", "1\tbad\n5\tgood\n"),
            ("line 2", 0, 4, "very negative", "neutral", "very positive", "'5'"),
        ),
        (
            *("binary", "2\tgood\n"),
            ("line 1", 0, 1, "negative", "positive", "'2'"),
        ),
        (
            *("fine", "3\tgood\n3 good\n"),
            ("line 2", "'3 good'"),
        ),
        (
            *("fine", "3\t \n"),
            ("line 1", r"'3\t '"),
        ),
        (
            *("fine", "3\tgood\n\n(3 (2 It)\n"),
            ("line 3", "column 10", "'('", "(3 (2 It) (4 works))"),
        ),
        (
            *("fine", "\n"),
            ("fine",),
        ),
        (
            *("binary", "(2 So)\n"),
            ("binary",),
        ),
    ],
)
def test_a_malformed_file_is_named_with_its_line(write, classes, text, message):
    path = write(text)
    with pytest.raises(InputError, match=mentions(path, *message)):
        read(path, SentimentData(classes=classes))


def test_labels_may_have_any_names(write):
    text = "spam\tBuy now!\nham\tSee you.\nham\tSee you.\n"
    examples = read(write(text), SentimentData())
    assert plain(examples) == [("Buy now !", "spam"), ("See you .", "ham"), ("See you .", "ham")]
    assert add_phrases(examples, SentimentData()) == examples
    assert Sentiment().vocabularies(examples, SentimentData()) == {"labels": ["ham", "spam"]}


def test_trees_have_the_five_classes_by_default(write):
    examples = read(write("(3 (2 It) (4 works))\n"), SentimentData())
    assert Sentiment().vocabularies(examples, SentimentData()) == {"labels": FINE}


def test_text_is_raw_unless_the_settings_say_that_it_is_tokenized(write):
    assert read(write("a\tIt's.\n"), SentimentData())[0].tokens == ("It", "'s", ".")
    assert read(write("a\tIt's.\n"), SentimentData(pretokenized=True))[0].tokens == ("It's.",)


def test_a_negative_phrase_length_is_refused():
    with pytest.raises(ConfigError, match=mentions("min_phrase", -1)):
        SentimentData(min_phrase=-1)
