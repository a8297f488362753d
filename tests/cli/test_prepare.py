"""torchelmo prepare, and the three commands that measure a language model."""

import csv
import io
import json
import re

import pytest
import torch
from facts import mentions

from torchelmo import BiLM, BiLMConfig
from torchelmo.lm import perplexity, substitutes, surprisal
from torchelmo.lm.corpus import Corpus
from torchelmo.text.vocabulary import Vocabulary

WORDS = ["<S>", "</S>", "<UNK>", "the", "bow", "and", "arrow", "."]


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("the bow . the\n\narrow and quiver\n", encoding="utf-8")
    return path


@pytest.fixture
def language_model(tmp_path):
    torch.manual_seed(3)
    config = BiLMConfig(
        filters=((1, 4), (2, 4)),
        char_dim=4,
        n_highway=1,
        projection_dim=6,
        cell_dim=8,
        softmax_words=len(WORDS),
    )
    bilm = BiLM(config, Vocabulary(WORDS))
    bilm.save(tmp_path / "model")
    return bilm


def rows(text):
    return [line.split("\t") for line in text.splitlines()]


def test_prepare_says_what_it_found(call, lines, tmp_path):
    done = call("prepare", lines, "--out", tmp_path / "data", "--vocab-size", 6, "--pretokenized", "--heldout", 0)
    assert done.code == 0
    train, vocabulary, ready = done.out.splitlines()
    assert re.search(mentions("train", "2 sentences", "7 tokens", "6 types", "57.14%"), train)
    assert re.search(mentions("vocabulary", 6, 9), vocabulary)
    assert re.search(mentions(tmp_path / "data", "torchelmo pretrain"), ready)
    assert Corpus(tmp_path / "data").n_tokens == 7


def test_prepare_takes_held_out_files_and_a_vocabulary(call, lines, language_model, tmp_path):
    (tmp_path / "other.txt").write_text("the arrow\n", encoding="utf-8")
    done = call(
        *("prepare", lines, "--out", tmp_path / "data", "--heldout", tmp_path / "other.txt"),
        *("--vocab", tmp_path / "model" / "vocab.txt"),
    )
    assert done.code == 0
    assert re.search(r"^heldout\b(?=.*\b1\b)(?=.*\b2 tokens)(?=.*\b2 types)(?=.*\b100\.00%)", done.out, re.M)
    assert list(Corpus(tmp_path / "data").vocabulary) == WORDS


def test_a_share_beside_a_file_is_a_wrong_call(call, lines, tmp_path):
    done = call("prepare", lines, "--out", tmp_path / "data", "--heldout", 0.1, "--heldout", lines)
    assert done.code == 2
    assert re.search(mentions("--heldout", 0.1, lines), done.err)


def test_a_missing_text_is_a_wrong_call(call, tmp_path):
    done = call("prepare", tmp_path / "no.txt", "--out", tmp_path / "data")
    assert done.code == 2
    assert str(tmp_path / "no.txt") in done.err


def test_a_missing_held_out_file_is_a_wrong_call(call, lines, tmp_path):
    done = call("prepare", lines, "--out", tmp_path / "data", "--heldout", tmp_path / "no.txt")
    assert done.code == 2
    assert str(tmp_path / "no.txt") in done.err


def test_perplexity_of_files_and_of_all_together(call, language_model, lines, tmp_path):
    (tmp_path / "other.txt").write_text("the arrow .\n", encoding="utf-8")
    files = [lines, tmp_path / "other.txt"]
    done = call("perplexity", tmp_path / "model", *files, "--pretokenized", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    texts = [[line.split() for line in file.read_text(encoding="utf-8").splitlines()] for file in files]
    for file, sentences in zip(files, texts):
        expected = perplexity(language_model, sentences)._asdict()
        assert found["files"][str(file)] == pytest.approx(expected, rel=1e-5)
    together = perplexity(language_model, texts[0] + texts[1])._asdict()
    assert found["all"] == pytest.approx(together, rel=1e-5)
    assert found["state"] == "reset"
    *_, last = call("perplexity", tmp_path / "model", *files, "--pretokenized").out.splitlines()
    assert re.search(rf"\ball\b.*\bforward\D*{together['forward']:.2f}\b", last)


def test_perplexity_in_words(call, language_model, lines, tmp_path):
    done = call("perplexity", tmp_path / "model", lines, "--state", "carry")
    text = [["the", "bow", "."], ["the"], ["arrow", "and", "quiver"]]
    found = perplexity(language_model, text, state="carry")
    values = {"forward": found.forward, "backward": found.backward, "average": found.average}
    for name, value in values.items():
        assert re.search(rf"\b{name}\D*{value:.2f}\b", done.out)
    assert re.fullmatch(mentions(lines, "7 tokens", "14.29%") + r"[^\n]*\n", done.out)


def test_perplexity_of_the_held_out_part_of_prepared_text(call, language_model, lines, tmp_path):
    (tmp_path / "other.txt").write_text("the arrow .\n", encoding="utf-8")
    call("prepare", lines, "--out", tmp_path / "data", "--heldout", tmp_path / "other.txt")
    done = call("perplexity", tmp_path / "model", tmp_path / "data", "--json")
    expected = perplexity(language_model, [["the", "arrow", "."]])
    assert json.loads(done.out)["all"]["average"] == pytest.approx(expected.average, rel=1e-5)


def test_surprisal_is_a_table_by_line_and_position(call, language_model, lines, tmp_path):
    done = call("surprisal", tmp_path / "model", lines)
    assert done.code == 0
    head, *table = rows(done.out)
    columns = ["file", "line", "sentence", "position", "start", "end", "token", "forward", "backward", "in_vocabulary"]
    assert head == columns
    assert {row[0] for row in table} == {str(lines)}
    assert [[row[1], row[3], row[6]] for row in table] == [
        *(["1", str(i), token] for i, token in enumerate("the bow . the".split())),
        *(["3", str(i), token] for i, token in enumerate("arrow and quiver".split())),
    ]
    assert [row[2] for row in table] == list("0001000")
    text_lines = lines.read_text(encoding="utf-8").splitlines()
    assert all(text_lines[int(row[1]) - 1][int(row[4]) : int(row[5])] == row[6] for row in table)
    assert [row[9] for row in table] == ["1"] * 6 + ["0"]
    text = [["the", "bow", "."], ["the"], ["arrow", "and", "quiver"]]
    bits = [bit for one in surprisal(language_model, text) for bit in one.forward]
    assert [float(row[7]) for row in table] == pytest.approx(bits, abs=1e-4)
    records = [json.loads(line) for line in call("surprisal", tmp_path / "model", lines, "--json").out.splitlines()]
    assert [list(map(str, record.values())) for record in records] == table


def test_substitutes_are_a_table_by_rank(call, language_model, lines, tmp_path):
    done = call("substitutes", tmp_path / "model", lines, "--pretokenized", "--top", 2, "--word", "the")
    head, *table = rows(done.out)
    assert head == [
        "file",
        "line",
        "sentence",
        "position",
        "start",
        "end",
        "token",
        "rank",
        "substitute",
        "probability",
    ]
    expected = [["1", str(i), "the", str(rank)] for i in (0, 3) for rank in (1, 2)]
    assert [[row[1], row[3], row[6], row[7]] for row in table] == expected
    expected = [s for found in substitutes(language_model, "the bow . the".split(), [0, 3], top=2) for s in found]
    assert [row[8] for row in table] == [substitute.word for substitute in expected]
    assert [float(row[9]) for row in table] == pytest.approx([s.probability for s in expected], rel=1e-4)


@pytest.mark.parametrize("command", ["perplexity", "surprisal", "substitutes"])
def test_a_model_without_a_softmax_says_to_fine_tune(command, call, model, lines):
    done = call(command, model, lines)
    assert (done.code, done.out) == (1, "")
    assert re.search(mentions("softmax", "torchelmo fine-tune"), done.err)


@pytest.mark.parametrize("command", ["perplexity", "surprisal", "substitutes"])
def test_a_missing_file_is_a_wrong_call_before_the_model_is_loaded(command, call, tmp_path):
    done = call(command, tmp_path / "no-model", tmp_path / "no.txt")
    assert done.code == 2
    assert str(tmp_path / "no.txt") in done.err


@pytest.mark.parametrize("command", ["perplexity", "surprisal", "substitutes"])
def test_an_empty_file_is_named(command, call, language_model, tmp_path):
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    done = call(command, tmp_path / "model", tmp_path / "empty.txt")
    assert (done.code, done.out) == (1, "")
    assert str(tmp_path / "empty.txt") in done.err


def test_a_word_that_does_not_occur_is_named(call, language_model, lines, tmp_path):
    done = call("substitutes", tmp_path / "model", lines, "--word", "Nowhere")
    assert (done.code, done.out) == (1, "")
    assert re.search(mentions(lines, "Nowhere"), done.err)


def test_quotation_marks_are_read_right(call, language_model, tmp_path):
    (tmp_path / "quotes.txt").write_text('" the " bow\n" arrow\n', encoding="utf-8")
    done = call("surprisal", tmp_path / "model", tmp_path / "quotes.txt", "--pretokenized")
    table = list(csv.reader(io.StringIO(done.out), delimiter="\t"))[1:]
    assert [row[6] for row in table] == ['"', "the", '"', "bow", '"', "arrow"]


def test_prepare_reads_proteins(call, tmp_path):
    (tmp_path / "p.fasta").write_text(">a\nMALL\n>b\nMAL\n")
    done = call("prepare", tmp_path / "p.fasta", "--format", "fasta", "--out", tmp_path / "data", "--heldout", 0)
    assert done.code == 0
    assert Corpus(tmp_path / "data").n_tokens == 7
