"""torchelmo task: its commands, what they print, and their exit codes."""

import io
import json
import re
import signal
import sys

import pytest
import typer
from facts import mentions
from tiny_tasks import pos_config, pos_settings, write_pos, write_toml, write_vectors
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchelmo.cli import app
from torchelmo.tasks import load, runner, train
from torchelmo.tasks.pos import PosData, read


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pos(tmp_path_factory.mktemp("pos"))


@pytest.fixture
def toml(data, tmp_path):
    return write_toml(tmp_path / "pos.toml", pos_settings(data, tmp_path / "run", epochs=1))


@pytest.fixture(scope="module")
def trained(data, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(pos_config(data, folder, epochs=6, elmo={"place": "input", "model": str(model)}))
    return folder


def test_every_option_has_help():
    group = typer.main.get_command(app).commands["task"]
    assert {"train", "evaluate", "predict", "table"} <= group.commands.keys()
    for name, command in group.commands.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("command", [(), ("train",), ("evaluate",), ("predict",), ("table",)])
def test_help(call, command):
    outcome = call("task", *command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"torchelmo task{''.join(f' {word}' for word in command)} " in outcome.out


def test_train_says_what_came_of_it(call, toml, model, tmp_path):
    outcome = call("task", "train", "pos", "--config", toml, "--elmo", "both", "--model", model)
    assert outcome.code == 0, outcome.err
    first, *mixes = outcome.out.splitlines()
    assert re.search(mentions("pos", "seed 1", "epoch 1"), first)
    assert re.search(r"(?=.*\baccuracy\D*\d+\.\d\d)(?=.*\bsentences\D*\d+\.\d\d)(?=.*best epoch 1 of 1)", first)
    number = r"\d\.\d{3}"
    for place, line in zip(("input", "output"), mixes, strict=True):
        assert re.search(rf"(?=.*\b{place}\b)(?=.*{number} {number} {number})(?=.*\bgamma\D*{number})", line)
    told = r"^(?=.*\bpos\b)(?=.*\bepoch 1\b)(?=.*\bloss\D*\d+\.\d{4})(?=.*\baccuracy\D*\d+\.\d\d)(?=.*\bdev\b)"
    assert re.search(told, outcome.err, re.M)
    assert re.search(r"^(?=.*\bbiLM\b)(?=.*\d+ sentences)", outcome.err, re.M)
    assert load(tmp_path / "run").config.elmo.place == "both"


def test_train_needs_no_configuration_file(call, data, tmp_path):
    """The settings of the task itself, for people who want to see it run."""
    arguments = ["--train", data / "train.conllu", "--dev", data / "dev.conllu", "--out", tmp_path / "run"]
    outcome = call("task", "train", "pos", *arguments, "--set", "epochs=1", "--set", "model.hidden_dim=3")
    assert outcome.code == 0, outcome.err
    config = load(tmp_path / "run").config
    assert (config.words.dim, config.characters.n_filters, config.model) == (100, 64, {"hidden_dim": 3})


def test_flags_win_over_the_file_and_set_over_flags(call, toml, model, data, tmp_path):
    vectors = write_vectors(tmp_path / "vectors.txt")
    flags = ["--out", tmp_path / "é 東京", "--vectors", vectors, "--elmo", "input", "--model", model, "--layers", "top"]
    flags += ["--lambda", "1e-5", "--layer-norm", "--elmo-dropout", "0.25", "--head", "linear"]
    outcome = call("task", "train", "pos", "--config", toml, *flags, "--set", "elmo.dropout=0.1", "--set", "seed=9")
    assert outcome.code == 0, outcome.err
    config = load(tmp_path / "é 東京").config
    assert (config.elmo.layers, config.elmo.l2, config.elmo.layer_norm) == ("top", 1e-5, True)
    assert (config.elmo.dropout, config.seed, config.model["head"], config.elmo.unfreeze) == (0.1, 9, "linear", False)
    assert (config.words.vectors, config.words.dim, config.train) == (vectors, 0, data / "train.conllu")


def test_seeds_stand_side_by_side(call, toml, tmp_path):
    outcome = call("task", "train", "pos", "--config", toml, "--seeds", "2")
    assert outcome.code == 0, outcome.err
    one, two, both = outcome.out.splitlines()
    assert re.search(mentions("pos", "seed 1"), one)
    assert re.search(mentions("pos", "seed 2"), two)
    assert re.search(r"(?=.*\baccuracy\D*\d+\.\d\d ± \d+\.\d\d)(?=.*\b2 seeds)", both)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["metrics.json", "seed-1", "seed-2"]
    outcome = call("task", "evaluate", tmp_path / "run", toml)
    assert outcome.code == 2
    assert str(tmp_path / "run" / "seed-1") in outcome.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_the_run_with_all_saved(call, toml, tmp_path, number, code):
    steps = []

    def interrupt(*_):
        steps.append(1)
        if len(steps) == 3:
            signal.raise_signal(number)

    handle = register_optimizer_step_post_hook(interrupt)
    try:
        outcome = call("task", "train", "pos", "--config", toml)
    finally:
        handle.remove()
    assert outcome.code == code, outcome.err
    assert re.fullmatch(mentions(tmp_path / "run", "--resume") + r"[^\n]*\n", outcome.out)
    assert len(steps) == 3
    again = call("task", "train", "pos", "--config", toml)
    assert again.code == 2
    assert re.search(mentions(tmp_path / "run", "--resume", "--overwrite", "another out"), again.err)
    outcome = call("task", "train", "pos", "--config", toml, "--resume")
    assert outcome.code == 0
    assert re.search(mentions("pos", "seed 1"), outcome.out)


@pytest.mark.parametrize("flags", [[], ["--overwrite"]], ids=["begin", "overwrite"])
def test_a_signal_before_the_first_step_is_no_promise(call, toml, tmp_path, monkeypatch, flags):
    if flags:
        assert call("task", "train", "pos", "--config", toml).code == 0
    set_up = runner.set_up

    def interrupted(config, **arguments):
        signal.raise_signal(signal.SIGTERM)
        return set_up(config, **arguments)

    monkeypatch.setattr(runner, "set_up", interrupted)
    outcome = call("task", "train", "pos", "--config", toml, "--set", "seed=2", *flags)
    assert outcome.code == 143, outcome.err
    assert re.fullmatch(r"[^\n]+\n", outcome.out)
    assert "--resume" not in outcome.out
    monkeypatch.undo()
    assert call("task", "train", "pos", "--config", toml, "--set", "seed=2", *flags).code == 0


def test_overwrite_begins_again(call, toml):
    assert call("task", "train", "pos", "--config", toml).code == 0
    outcome = call("task", "train", "pos", "--config", toml, "--overwrite", "--set", "seed=2")
    assert outcome.code == 0
    assert re.search(mentions("pos", "seed 2"), outcome.out)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ("train", ["NAME", "torchelmo task train --help"]),
        ("train pso", ["'pso'", "Did you mean 'pos'"]),
        ("train pos", ["--train", "--dev", "--out"]),
        ("train pos --train a --out b", ["--dev"]),
        ("train ner --config TOML", ["pos.toml", "'pos'", "'ner'"]),
        ("train pos --config gone.toml", ["gone.toml"]),
        ("train pos --config TOML --elmo everywhere", ["--elmo", "everywhere"]),
        ("train pos --config TOML --resume --overwrite", ["--resume", "--overwrite"]),
        ("train pos --config TOML --model x", ["--model", "--elmo"]),
        ("train pos --config TOML --elmo none --layers 1", ["--layers", "--elmo"]),
        ("train pos --config TOML --lambda 0", ["--lambda", "--elmo"]),
        ("train pos --config TOML --layer-norm", ["--layer-norm", "--elmo"]),
        ("train pos --config TOML --elmo-dropout 0", ["--elmo-dropout", "--elmo input"]),
        ("train pos --config TOML --unfreeze", ["--unfreeze", "--elmo input", "output", "both"]),
        ("predict TRAINED TOML --question Why?", ["--question", "pos"]),
        ("predict TRAINED TOML --predicate sees", ["--predicate", "pos"]),
        ("predict TRAINED TOML --json --format conll", ["--json", "--format conll"]),
        ("predict TRAINED TOML --format xml", ["--format", "xml"]),
        ("train pos --config TOML --seeds 0", ["--seeds"]),
        ("train pos --config TOML --set optim.lrr=1", ["optim", "'lrr'", "Did you mean 'lr'"]),
        ("train pos --config TOML --set elmo.palce=1", ["elmo", "'palce'", "Did you mean 'place'"]),
        ("train pos --config TOML --set model.haed=1", ["model", "'haed'", "Did you mean 'head'"]),
        ("train pos --config TOML --min-phrase 3", ["data", "'min_phrase'"]),
        ("train pos --config TOML --train gone", ["gone"]),
        ("train pos --config TOML --set elmo=3 --set elmo.place=3", ["--set elmo.place=3", "'elmo'"]),
        ("evaluate gone x", ["gone", "torchelmo task train"]),
        ("evaluate TRAINED gone", ["gone"]),
        ("predict TRAINED gone --pretokenized", ["gone"]),
        ("predict TRAINED", ["INPUT", "torchelmo task predict --help"]),
        ("table gone.toml --out x", ["gone.toml"]),
        ("table TOML", ["--out", "torchelmo task table --help"]),
    ],
)
def test_a_wrong_call_is_said_in_one_line(call, toml, trained, tmp_path, monkeypatch, arguments, facts):
    monkeypatch.chdir(tmp_path)
    places = {"TOML": toml, "TRAINED": trained}
    outcome = call("task", *(places.get(argument, argument) for argument in arguments.split()))
    assert outcome.code == 2
    assert re.search(mentions(*facts), outcome.err.splitlines()[-1])
    assert outcome.out == ""


def test_a_run_that_cannot_go_on_is_no_wrong_call(call, toml):
    outcome = call("task", "train", "pos", "--config", toml, "--head", "linear", "--set", "optim.lr=1e30")
    assert outcome.code == 1
    assert re.search(mentions("step 2", "loss", "optim.lr", "1e+30"), outcome.err.splitlines()[-1])


def test_evaluate_for_people_and_for_programs(call, trained, data):
    outcome = call("task", "evaluate", trained, data / "dev.conllu")
    assert outcome.code == 0, outcome.err
    head, *_, last = outcome.out.splitlines()
    assert {"precision", "recall", "F1"} <= set(head.split())
    assert re.search(mentions(data / "dev.conllu", "12 examples"), last)
    told = re.search(r"\baccuracy\D*(\d+\.\d\d)\b(?=.*\bsentences\D*\d+\.\d\d)", last)
    outcome = call("task", "evaluate", trained, data / "dev.conllu", "--json")
    found = json.loads(outcome.out)
    assert found["examples"] == 12
    assert found["scores"]["accuracy"] == pytest.approx(float(told[1]), abs=0.006)
    assert found["scores"] == json.loads((trained / "metrics.json").read_text())["scores"]
    labels = found["labels"]
    assert sum(row["n_gold"] for row in labels.values()) == sum(row["n_predicted"] for row in labels.values())
    for line in head_rows(found["report"]):
        label, precision, recall, f1, n_gold, n_predicted = line.split()
        row = labels[label]
        assert [row["n_gold"], row["n_predicted"]] == [int(n_gold), int(n_predicted)]
        assert [f"{row[name]:.2f}" for name in ("precision", "recall", "f1")] == [precision, recall, f1]


def head_rows(report):
    """The rows of the table by label: those before the row "all", without the head."""
    _, *rows = report.splitlines()
    return rows[: next(i for i, row in enumerate(rows) if row.startswith("all "))]


def test_predict_in_columns(call, trained, tmp_path):
    (tmp_path / "text.txt").write_text("Ann sees the cat.\n\nA fox hears!\n")
    outcome = call("task", "predict", trained, tmp_path / "text.txt", "--format", "conll")
    assert outcome.code == 0, outcome.err
    (tmp_path / "out.conllu").write_text(outcome.out)
    records = call("task", "predict", trained, tmp_path / "text.txt", "--format", "json").out
    assert records == call("task", "predict", trained, tmp_path / "text.txt", "--json").out
    expected = [(record["tokens"], record["tags"]) for record in map(json.loads, records.splitlines())]
    assert [(sentence.tokens, sentence.tags) for sentence in read(tmp_path / "out.conllu", PosData())] == expected


def test_predict_for_people_and_for_programs(call, trained, tmp_path):
    (tmp_path / "text.txt").write_text("Ann sees the cat.\n\nIda knows Bob? A fox hears!\n")
    outcome = call("task", "predict", trained, tmp_path / "text.txt")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("Ann ")
    outcome = call("task", "predict", trained, tmp_path / "text.txt", "--json")
    records = [json.loads(line) for line in outcome.out.splitlines()]
    assert [record["tokens"] for record in records] == [
        ["Ann", "sees", "the", "cat", "."],
        ["Ida", "knows", "Bob", "?"],
        ["A", "fox", "hears", "!"],
    ]
    assert all(len(record["tags"]) == len(record["tokens"]) for record in records)


def test_predict_reads_standard_input_and_tokens(call, trained, monkeypatch):
    text = "  東京 sees  cat.\n \n\nthe end\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    outcome = call("task", "predict", trained, "-", "--pretokenized", "--json")
    assert outcome.code == 0, outcome.err
    tokens = [json.loads(line)["tokens"] for line in outcome.out.splitlines()]
    assert tokens == [["東京", "sees", "cat."], ["the", "end"]]
    assert "東京" in outcome.out


def test_a_text_without_words_is_named(call, trained, tmp_path):
    (tmp_path / "text.txt").write_text("\n \n")
    outcome = call("task", "predict", trained, tmp_path / "text.txt", "--pretokenized")
    assert (outcome.code, outcome.out) == (1, "")
    assert str(tmp_path / "text.txt") in outcome.err


def test_recipes_are_found_by_name(call, tmp_path):
    outcome = call("task", "train", "ner", "--config", "ner-smal")
    assert outcome.code == 2
    assert "ner-small" in outcome.err
    outcome = call("task", "train", "pos", "--config", "ner-small")
    assert outcome.code == 2
    assert re.search(mentions("ner-small.toml", "'ner'", "'pos'"), outcome.err)
