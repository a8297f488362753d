"""torchelmo surprisal, minimal-pairs and substitutes --targets: formats of other programs, tables, accuracy."""

import csv
import io
import json
import math
import re

import pytest
from facts import mentions
from tiny_lm import tiny_lm

import torchelmo
from torchelmo.lm import Scorer, perplexity, pseudo_perplexity
from torchelmo.text.tokenize import tokenizer_for

TEXT = 'The rose and "the bow". An arrow!\nA bow (and) a rose.\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("lm") / "model"
    tiny_lm().save(path)
    return path


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def sentences():
    return [tokens for line in TEXT.splitlines() for tokens in tokenizer_for("en").sentences(line)]


def read_tsv(text):
    return list(csv.DictReader(io.StringIO(text), delimiter="\t"))


def test_bits_with_end_marks_sum_to_those_of_perplexity(call, folder, file):
    found = call("surprisal", folder, file, "--end-mark")
    assert found.code == 0
    rows = read_tsv(found.out)
    expected = perplexity(tiny_lm(), sentences())
    assert len(rows) == expected.n_targets
    for direction in ("forward", "backward"):
        bits = sum(float(row[direction]) for row in rows)
        assert bits == pytest.approx(expected.loss(direction) / math.log(2), abs=1e-3)
    ends = [row for row in rows if row["token"] == "</S>"]
    assert len(ends) == len(sentences())
    assert (ends[0]["position"], ends[0]["start"], ends[0]["end"]) == ("8", "23", "23")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_lm_zoo_columns(call, folder, file, direction):
    """Read as lm-zoo's users do: pandas, tab-separated, ids from 1, bits, and </s> after each sentence."""
    pandas = pytest.importorskip("pandas")
    out = call("surprisal", folder, file, "--format", "lm-zoo", "--direction", direction).out
    table = pandas.read_csv(io.StringIO(out), sep="\t", keep_default_na=False)
    assert list(table.columns) == ["sentence_id", "token_id", "token", "surprisal"]
    scorer = Scorer(tiny_lm(), direction)
    for number, (tokens, total) in enumerate(zip(sentences(), scorer.sequence_score(sentences(), end_mark=True)), 1):
        rows = table[table.sentence_id == number]
        assert rows.token.tolist() == [*tokens, "</s>"]
        assert rows.token_id.tolist() == list(range(1, len(tokens) + 2))
        assert rows.surprisal.mean() == pytest.approx(-total / math.log(2), abs=1e-3)


def test_minicons_columns(call, folder, file):
    """Read as the table that the command line of minicons prints: numbers from 1, token, score and rank, no names."""
    pandas = pytest.importorskip("pandas")
    out = call("surprisal", folder, file, "--format", "minicons", "--rank").out
    table = pandas.read_csv(io.StringIO(out), sep=r"\s+", quoting=csv.QUOTE_NONE, keep_default_na=False)
    assert list(table.columns) == ["0", "1", "2", "3", "4"]
    scores = Scorer(tiny_lm()).token_score(sentences(), surprisal=True, base_two=True, rank=True)
    expected = [(i, j, *score) for i, one in enumerate(scores, 1) for j, score in enumerate(one, 1)]
    assert len(table) == len(expected)
    for row, values in zip(table.itertuples(index=False), expected):
        assert tuple(row) == pytest.approx(values, abs=1e-3)


def test_columns_of_one_direction_with_rank_and_entropy(call, folder, file):
    found = call("surprisal", folder, file, "--direction", "backward", "--rank", "--entropy", "--json")
    rows = [json.loads(line) for line in found.out.splitlines()]
    assert list(rows[0])[6:] == ["token", "backward", "backward_rank", "backward_entropy", "in_vocabulary"]
    [first, *_] = Scorer(tiny_lm(), "backward").token_score(sentences(), True, False, True, True, True)
    assert [rows[3][name] for name in list(rows[3])[6:10]] == pytest.approx(list(first[3]), abs=1e-3)


def test_a_table_of_words_gives_a_row_for_each(call, folder, tmp_path):
    path = tmp_path / "stories.tok"
    words = "If you see a rose, and a bow. Look!".split()
    rows = [("word", "zone", "item"), *((word, str(i), "1") for i, word in enumerate(words, 1)), ('"Hi."', "1", "2")]
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    found = call("surprisal", folder, path, *"--words word --group item --state carry --spillover 1".split())
    assert found.code == 0
    table = read_tsv(found.out)
    assert [(row["word"], row["zone"], row["item"]) for row in table] == rows[1:]
    assert [row["length"] for row in table] == [str(len(word)) for word, *_ in rows[1:]]
    assert table[1]["forward_1"] == table[0]["forward"]
    assert table[-1]["forward_1"] == ""


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (["--group", "item"], ["--group", "--words"]),
        (["--words", "word", "--format", "lm-zoo"], ["--words", "--format"]),
        (["--format", "lm-zoo", "--direction", "both"], ["--direction", "both"]),
    ],
)
def test_options_that_do_not_fit_together(call, folder, file, options, facts):
    found = call("surprisal", folder, file, *options)
    assert found.code == 2
    assert re.search(mentions(*facts), found.err)


def test_a_direction_that_the_model_lacks(call, tmp_path, file):
    tiny_lm("forward").save(tmp_path / "forward")
    found = call("surprisal", tmp_path / "forward", file, "--direction", "backward")
    assert found.code == 2
    assert re.search(mentions("--direction", "backward", "forward"), found.err)
    assert "backward" not in call("surprisal", tmp_path / "forward", file).out


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    lines = [("the rose.", "the bow.", "a"), ("the bow.", "the rose.", "a"), ("and arrow", "and quiver", "b")]
    keys = ("sentence_good", "sentence_bad", "UID")
    path.write_text("".join(json.dumps(dict(zip(keys, line))) + "\n" for line in lines), encoding="utf-8")
    return path


def test_accuracy_by_phenomenon(call, folder, pairs):
    rows = read_tsv(call("minimal-pairs", folder, pairs).out)
    assert [(row["phenomenon"], row["pairs"], row["unknown"]) for row in rows] == [
        ("a", "2", "0"),
        ("b", "1", "1"),
        ("all", "3", "1"),
    ]
    # One of two opposite pairs is right.
    assert [rows[0][name] for name in ("forward", "backward", "both")] == ["0.5"] * 3


def test_the_scores_of_each_pair(call, folder, pairs):
    rows = read_tsv(call("minimal-pairs", folder, pairs, "--each").out)
    assert len(rows) == 3
    good = perplexity(tiny_lm(), [["the", "rose", "."]])
    assert float(rows[0]["good_forward"]) == pytest.approx(-good.loss("forward"), abs=1e-3)
    assert float(rows[1]["bad_both"]) == pytest.approx(-good.loss("forward") - good.loss("backward"), abs=1e-3)


def test_no_pairs_are_an_error(call, folder, tmp_path):
    (tmp_path / "none.jsonl").write_text("\n", encoding="utf-8")
    found = call("minimal-pairs", folder, tmp_path / "none.jsonl")
    assert found.code == 1
    assert re.search(mentions("none.jsonl", "minimal pairs"), found.err)


def test_substitutes_of_targets_by_direction(call, folder, tmp_path):
    """The keys are those of simple_elmo, and `candidate_words` at the top is what wsi_jsd.py of ltgoslo reads."""
    path, targets = tmp_path / "text.txt", tmp_path / "targets.txt"
    path.write_text("The bow and the arrow.\nNothing.\nA rose; the bows.\n", encoding="utf-8")
    targets.write_text("bow,bows\nrose\n", encoding="utf-8")
    found = call("substitutes", folder, path, "--targets", targets, "--top", "3")
    assert found.code == 0, found.err
    lines = [json.loads(line) for line in found.out.splitlines()]
    assert [(line["lemma"], line["token"], line["line"], line["position"]) for line in lines] == [
        ("bow", "bow", 1, 1),
        ("rose", "rose", 3, 1),
        ("bow", "bows", 3, 4),
    ]
    scorer = Scorer(tiny_lm(), "backward")
    log_p = scorer.next_word_distribution([["and", "the", "arrow", "."]])[0]
    backward = lines[0]["backward"]
    assert len(backward["candidates"]) == 3
    assert backward["logp"] == pytest.approx([float(log_p[i]) for i in backward["candidates"]], abs=1e-3)
    assert backward["candidate_words"] == [scorer.vocabulary[i] for i in backward["candidates"]]
    words = {"the", "and", "arrow", "rose", "."}  # without the marks and the token itself
    assert set(backward["candidate_words"] + lines[0]["forward"]["candidate_words"]) <= words
    assert len(lines[0]["candidate_words"]) == 3


def test_substitutes_of_targets_that_are_not_there(call, folder, tmp_path):
    (tmp_path / "text.txt").write_text("Nothing.\n", encoding="utf-8")
    (tmp_path / "targets.txt").write_text("bow\n", encoding="utf-8")
    options = ["--targets", tmp_path / "targets.txt"]
    found = call("substitutes", folder, tmp_path / "text.txt", *options)
    assert found.code == 1
    assert re.search(mentions("text.txt"), found.err)
    assert call("substitutes", folder, tmp_path / "text.txt", *options, "--word", "bow").code == 2


@pytest.fixture(scope="module")
def masked_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("masked") / "model"
    tiny_lm(objective="masked", joint=True).save(path)
    return path


@pytest.mark.parametrize("objective", ["masked", "bilm"])
def test_pseudo_perplexity(call, folder, masked_folder, file, objective):
    model = {"masked": masked_folder, "bilm": folder}[objective]
    expected = pseudo_perplexity(torchelmo.load(model), sentences())
    found = json.loads(call("perplexity", model, file, "--pseudo", "--json").out)
    assert found["all"] == pytest.approx(expected._asdict(), rel=1e-5)
    line = call("perplexity", model, file, "--pseudo").out
    assert re.search(mentions("pseudo-perplexity", f"{expected.pseudo_perplexity:.2f}", expected.n_tokens), line)
    assert call("perplexity", model, file, "--pseudo", "--state", "carry").code == 2


@pytest.mark.parametrize("command", ["perplexity", "surprisal", "minimal-pairs"])
def test_a_masked_model_has_only_a_pseudo_perplexity(call, masked_folder, file, command):
    found = call(command, masked_folder, file)
    assert found.code == 1
    assert not found.out
    assert re.search(mentions(masked_folder, "objective", "masked", "--pseudo"), found.err)


def test_substitutes_of_a_masked_model(call, masked_folder, tmp_path):
    path, targets = tmp_path / "text.txt", tmp_path / "targets.txt"
    path.write_text("The bow and the arrow.\n", encoding="utf-8")
    targets.write_text("bow\n", encoding="utf-8")
    rows = read_tsv(call("substitutes", masked_folder, path, "--word", "bow", "--top", "3").out)
    (line,) = call("substitutes", masked_folder, path, "--targets", targets, "--top", "3").out.splitlines()
    found = json.loads(line)
    assert found["candidate_words"] == found["masked"]["candidate_words"] == [row["substitute"] for row in rows]
    assert "forward" not in found


def test_info_describes_a_masked_model(call, masked_folder):
    assert re.search(mentions("masked", "joint"), call("info", masked_folder).out)
    assert json.loads(call("info", masked_folder, "--json").out)["parameters"]["mask_vector"] == 6
