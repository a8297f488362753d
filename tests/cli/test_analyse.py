"""torchelmo analyse: its commands, what they print, and their exit codes."""

import io
import json
import re
import sys

import pytest
import typer
from facts import mentions
from tiny_senses import TEST, TRAIN, as_xml, write_all

from torchelmo import Elmo, load
from torchelmo.analysis.senses import read_senses, read_tagged
from torchelmo.analysis.similarity import neighbours
from torchelmo.analysis.wsd import disambiguate
from torchelmo.cli import app
from torchelmo.cli.analyse import _in_context


@pytest.fixture
def files(tmp_path):
    return write_all(tmp_path)


def flags(files):
    return [part for flag, path in files.items() for part in (f"--{flag}", path)]


def test_every_option_has_help():
    group = typer.main.get_command(app).commands["analyse"]
    assert {"wsd", "neighbours"} <= group.commands.keys()
    for name, command in group.commands.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("command", [(), ("wsd",), ("neighbours",)])
def test_help(call, command):
    outcome = call("analyse", *command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"torchelmo analyse{''.join(f' {word}' for word in command)} " in outcome.out


def test_wsd_for_people_and_for_programs(call, files, model):
    outcome = call("analyse", "wsd", *flags(files), "--model", model)
    assert outcome.code == 0, outcome.err
    first, head, *rows = outcome.out.splitlines()
    assert str(files["test"]) in first
    assert sorted(re.findall(r"\d+", first.replace(str(files["test"]), ""))) == ["5", "7", "7", "9"]
    assert head.split() == ["precision", "recall", "F1"]
    names = ["WordNet first sense", "most frequent in training", "layer 0", "layer 1", "layer 2"]
    assert [row[:25].strip() for row in rows] == names
    assert rows[0].split()[-3:] == ["50.00", "42.86", "46.15"]
    assert re.search(r"\b7 sentences\b", outcome.err)

    outcome = call("analyse", "wsd", *flags(files), "--model", model, "--json")
    found = json.loads(outcome.out)
    assert {key: found[key] for key in ("instances", "seen", "senses", "sentences")} == {
        "instances": 7,
        "seen": 5,
        "senses": 9,
        "sentences": 7,
    }
    test = list(read_tagged(files["test"], files["keys"]))
    expected = disambiguate(Elmo(load(model)), read_tagged(files["train"]), test, read_senses(files["senses"]))
    for layer, counts in expected.layers.items():
        assert found["scores"][f"layer {layer}"]["f1"] == pytest.approx(counts.f1)
    assert list(found["scores"]) == names


@pytest.mark.parametrize(
    ("given", "layers"),
    [(["0", "2"], [0, 2]), (["2,0"], [0, 2]), (["0 1 2"], [0, 1, 2]), (["top"], [2]), (["all"], [0, 1, 2])],
)
def test_layers_are_chosen(call, files, model, given, layers):
    chosen = [part for layer in given for part in ("--layers", layer)]
    outcome = call("analyse", "wsd", *flags(files), "--model", model, *chosen)
    assert outcome.code == 0, outcome.err
    assert [int(n) for n in re.findall(r"^layer (\d)", outcome.out, re.M)] == layers


def test_wsd_takes_xml_to_train_on_and_json_lines_to_test_on(call, files, model, tmp_path):
    xml, keys = as_xml(TEST)
    (tmp_path / "other.xml").write_text(xml)
    (tmp_path / "other.txt").write_text(keys)
    (tmp_path / "other.jsonl").write_text(json.dumps({"tok": TRAIN[0][0].split(), "senses": TRAIN[0][1]}))
    given = ["--train", tmp_path / "other.xml", "--train-keys", tmp_path / "other.txt"]
    given += ["--test", tmp_path / "other.jsonl", "--senses", files["senses"], "--model", model]
    outcome = call("analyse", "wsd", *given)
    assert outcome.code == 0, outcome.err
    (first,) = [line for line in outcome.out.splitlines() if str(tmp_path / "other.jsonl") in line]
    assert re.findall(r"\d+", first.replace(str(tmp_path), ""))[:2] == ["1", "1"]


def test_damage_in_the_training_data_is_found_before_the_model_is_read(call, files, tmp_path):
    with files["train"].open("a") as stream:
        stream.write("damage\n")
    outcome = call("analyse", "wsd", *flags(files), "--model", tmp_path / "no model")
    assert outcome.code == 1
    assert re.search(mentions(files["train"], f"line {len(TRAIN) + 1}", "JSON"), outcome.err)
    assert outcome.out == ""


def test_a_test_file_without_words_is_refused(call, files, model):
    files["test"].write_text("<corpus></corpus>")
    files["keys"].write_text("")
    outcome = call("analyse", "wsd", *flags(files), "--model", model)
    assert outcome.code == 1
    assert str(files["test"]) in outcome.err


def test_neighbours_for_people_and_for_programs(call, text, model):
    given = [text, "--word", "bow", "--sentence", "He has a bow", "--model", model, "--layer", "0", "--layer", "2"]
    given += ["--top", "3", "--pretokenized"]
    outcome = call("analyse", "neighbours", *given)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == "layer 0: He has a [bow]"
    assert lines[1:3] == ["   1.000  I took a [bow]", "   1.000  [bow] and arrow"]
    assert lines[4] == "layer 2: He has a [bow]"
    sentences = [line.split() for line in text.read_text().splitlines() if line.strip()]
    expected = neighbours(Elmo(load(model)), "He has a bow".split(), 3, sentences, layers=[2], top=3)[2]
    assert lines[5:] == [f"  {one.cosine:6.3f}  {_in_context(one.tokens, one.position)}" for one in expected]

    found = json.loads(call("analyse", "neighbours", *given, "--json").out)
    assert (found["word"], found["position"], found["tokens"]) == ("bow", 3, ["He", "has", "a", "bow"])
    assert list(found["layers"]) == ["0", "2"]
    for one, other in zip(found["layers"]["2"], expected, strict=True):
        assert (one["word"], one["position"], tuple(one["tokens"])) == (other.word, other.position, other.tokens)
        assert one["cosine"] == pytest.approx(other.cosine, abs=1e-5)


def test_neighbours_reads_raw_text_from_standard_input(call, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"I took a bow. Don't!\n\nTwo bows.")))
    outcome = call("analyse", "neighbours", "-", "--position", "1", "--sentence", "A bow, he said.", "--model", model)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == "layer 2: A [bow] , he said ."
    assert {line[10:].replace("[", "").replace("]", "") for line in lines[1:]} == {
        "I took a bow .",
        "Do n't !",
        "Two bows .",
    }
    assert len(lines) == 11


def test_long_sentences_are_cut_around_the_word():
    words = [str(i) for i in range(40)]
    assert _in_context(words, 20) == "… " + " ".join(words[8:20]) + " [20] " + " ".join(words[21:33]) + " …"
    assert _in_context(words, 12).startswith("0 1 ")
    assert _in_context(words, 27).endswith(" 39")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ("wsd", ["--train", "torchelmo analyse wsd --help"]),
        ("wsd --train TRAIN --test TEST --senses SENSES", ["test.data.xml", "keys"]),
        ("wsd --train TRAIN --test TEST --keys gone --senses SENSES", ["gone"]),
        ("wsd --train gone --test TRAIN --senses SENSES", ["gone"]),
        ("wsd --train TRAIN --test TRAIN --senses gone", ["gone"]),
        (
            "wsd --train TRAIN --test TRAIN --senses SENSES --model MODEL --layers 3",
            ["layers", "'all'", "'top'", "'3'"],
        ),
        ("wsd --train TRAIN --test TRAIN --senses SENSES --model gone", ["gone"]),
        ("neighbours TRAIN --word a", ["--sentence", "torchelmo analyse neighbours --help"]),
        ("neighbours TRAIN --sentence a", ["word", "position"]),
        ("neighbours TRAIN --sentence a --word b", ["'b'", "'a'"]),
        ("neighbours gone --sentence a --word a", ["gone"]),
        ("neighbours TRAIN --sentence a --word a --lang qq", ["'qq'"]),
        ("neighbours TRAIN --sentence a --word a --top 0", ["--top"]),
        ("neighbours TRAIN --sentence a --word a --device moon", ["--device moon"]),
        ("neighbours TRAIN --sentence a --word a --model MODEL --layer x", ["layers", "'all'", "'top'", "'x'"]),
    ],
)
def test_a_wrong_call_is_said_in_one_line(call, files, model, tmp_path, monkeypatch, arguments, facts):
    monkeypatch.chdir(tmp_path)
    places = {flag.upper(): path for flag, path in files.items()} | {"MODEL": model}
    outcome = call("analyse", *(places.get(argument, argument) for argument in arguments.split()))
    assert outcome.code == 2, outcome.err
    assert re.search(mentions(*facts), outcome.err.splitlines()[-1])
    assert outcome.out == ""


def test_text_without_another_sentence_has_no_neighbours(call, model, tmp_path):
    (tmp_path / "text.txt").write_text("a bow\n\n")
    outcome = call(
        "analyse", "neighbours", tmp_path / "text.txt", "--word", "bow", "--sentence", "a bow", "--model", model
    )
    assert outcome.code == 1
    assert str(tmp_path / "text.txt") in outcome.err
