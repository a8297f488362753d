"""SNLI and MultiNLI files, and pairs to predict."""

import json
from pathlib import Path

import pytest
from facts import mentions

from torchelmo.errors import InputError
from torchelmo.tasks.nli import NliData, NliExample, read, read_pairs
from torchelmo.tasks.task import Source

PLAIN = {"gold_label": "neutral", "sentence1": "A dog runs .", "sentence2": "It's happy."}
PARSED = {
    **PLAIN,
    "sentence1_binary_parse": "( ( A dog ) ( runs . ) )",
    "sentence2_binary_parse": "( It ( ( 's ( -LRB- happy -RRB- ) ) . ) )",
}


@pytest.fixture
def write(tmp_path):
    def write(*lines: object) -> Path:
        path = tmp_path / "train.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return write


@pytest.mark.parametrize(
    ("pretokenized", "pair", "hypothesis"),
    [
        (True, PLAIN, ("It's", "happy.")),
        (False, PLAIN, ("It", "'s", "happy", ".")),
        (True, PARSED, ("It", "'s", "(", "happy", ")", ".")),
        (False, PARSED, ("It", "'s", "(", "happy", ")", ".")),
    ],
)
def test_tokens_come_from_the_parse_or_from_the_tokenization_of_the_settings(write, pretokenized, pair, hypothesis):
    assert read(write(pair), NliData(pretokenized=pretokenized)) == [
        NliExample(("A", "dog", "runs", "."), hypothesis, "neutral")
    ]


def test_pairs_without_an_agreed_label_and_blank_lines_are_left_out(write):
    examples = read(write({**PLAIN, "gold_label": "-"}, "", PLAIN, {**PLAIN, "gold_label": "entailment"}), NliData())
    assert [example.label for example in examples] == ["neutral", "entailment"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"gold_label": "neutral",', ("JSON",)),
        ("[1]", ("JSON", "'[1]'")),
        ({"sentence1": "a", "sentence2": "b"}, ("'gold_label'", "'sentence1'", "'sentence2'")),
        ({"gold_label": "neutral", "sentence1": "a"}, ("'sentence2'",)),
        ({}, ("'gold_label'",)),
        ({**PLAIN, "gold_label": "yes"}, ("gold_label", "entailment", "neutral", "contradiction", "'yes'")),
        ({**PLAIN, "sentence1": 3}, ("'sentence1'", 3)),
        ({**PLAIN, "sentence2": " "}, ("'sentence2'",)),
        ({**PLAIN, "sentence1_binary_parse": "( )"}, ("'sentence1'",)),
        ("[" * 100_000, ("JSON",)),
    ],
)
def test_a_malformed_line_is_named(write, line, message):
    path = write(PLAIN, line)
    with pytest.raises(InputError, match=mentions(path, "line 2", *message)):
        read(path, NliData())


@pytest.mark.parametrize("lines", [[], [{**PLAIN, "gold_label": "-"}]])
def test_a_file_without_labelled_pairs_is_refused(write, lines):
    path = write(*lines)
    with pytest.raises(InputError, match=mentions(path, "gold_label", "sentence1", "sentence2")):
        read(path, NliData())


@pytest.mark.parametrize(("lang", "hypothesis"), [(None, ("It's", "happy.")), ("en", ("It", "'s", "happy", "."))])
def test_pairs_to_predict_are_lines_with_a_tab_or_json(write, lang, hypothesis):
    unlabelled = {key: value for key, value in PLAIN.items() if key != "gold_label"}
    path = write("A dog runs .\tIt's happy.", "", PLAIN, unlabelled)
    expected = NliExample(("A", "dog", "runs", "."), hypothesis, None)
    found = list(read_pairs(Source(str(path), lang), NliData()))
    assert [example._replace(places=(None, None)) for example in found] == [expected] * 3
    assert [example.places[1].line for example in found] == [1, 3, 4]
    assert [example.places[1].offsets[-1][1] for example in found] == [len("It's happy.")] * 3


def test_prediction_tokenizes_as_training_did(write):
    path = write("A dog runs.\tIt's happy.")
    for options in (NliData(), NliData(pretokenized=True), NliData(lang="de")):
        labeled = write({**PLAIN, "sentence1": "A dog runs."})
        (trained,) = read(labeled, options)
        (predicted,) = read_pairs(Source(str(write("A dog runs.\tIt's happy.")), "auto"), options)
        assert (predicted.premise, predicted.hypothesis) == (trained.premise, trained.hypothesis)
    assert path.is_file()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A dog runs .", ("JSON", 0, "'A dog runs .'")),
        ("a\tb\tc", ("JSON", 2, r"'a\tb\tc'")),
        ("a\t", ("'sentence2'",)),
        ('{"sentence1": "a"}', ("'sentence2'", "'sentence1'")),
    ],
)
def test_a_malformed_pair_to_predict_is_named(write, line, message):
    path = write("a\tb", line)
    with pytest.raises(InputError, match=mentions(path, "line 2", *message)):
        list(read_pairs(Source(str(path), lang=None), NliData()))
