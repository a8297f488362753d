"""A trained task is a folder that needs nothing else."""

import json
import shutil

import pytest
import torch
from facts import mentions
from safetensors.torch import load_file, save_file
from tiny_tasks import pos_config, tagged, write_pos, write_vectors

from torchelmo.errors import ConfigError, InputError, MissingFileError, WeightsError
from torchelmo.formats.load import load_folder
from torchelmo.tasks import load, train
from torchelmo.tasks.tagging import Tagged
from torchelmo.tasks.task import Source

NEW = [Tagged(["Ann", "sees", "it"]), Tagged(["東京", "?"]), Tagged(["a", "fox", "hears", "a", "hen", "."])]


@pytest.fixture(scope="module")
def made(bilm_folder, tmp_path_factory):
    """A run with all parts, whose inputs are gone."""
    folder = tmp_path_factory.mktemp("made")
    write_pos(folder)
    shutil.copytree(bilm_folder, folder / "bilm")
    elmo = {"place": "both", "model": str(folder / "bilm")}
    words = {"vectors": str(write_vectors(folder / "vectors.txt")), "dim": 0}
    config = pos_config(folder, folder / "run", elmo=elmo, words=words, characters={"n_filters": 3}, epochs=1)
    result = train(config).result
    shutil.move(folder / "run", folder / "moved")
    for path in (folder / "bilm", folder / "train.conllu", folder / "dev.conllu", folder / "vectors.txt"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder / "moved", result


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "copy")


def test_it_needs_nothing_that_it_was_trained_with(made, tmp_path):
    folder, result = made
    trained = load(folder)
    assert trained.evaluate(write_pos(tmp_path) / "dev.conllu").scores == result.scores
    assert not trained.model.training
    predictions = trained.predict_examples(NEW)
    assert [len(tags) for tags in predictions] == [3, 2, 6]
    again = load(folder)
    assert again.predict_examples(NEW[::-1]) == predictions[::-1]
    torch.testing.assert_close(again.model.state_dict(), trained.model.state_dict(), rtol=0, atol=0)


def test_it_holds_no_pickle(made):
    files = {path.relative_to(made[0]).parts[0] for path in made[0].rglob("*")}
    kinds = {path.suffix for path in made[0].rglob("*") if path.is_file()}
    assert kinds == {".json", ".jsonl", ".safetensors"}
    names = (
        "task.json words.json words.safetensors model.safetensors bilm metrics.json epochs.jsonl checkpoints run.json"
    )
    assert files == set(names.split())


def test_what_was_given_is_saved_once(made):
    names = load_file(made[0] / "model.safetensors").keys()
    assert not [name for name in names if "bilm" in name or "words.vectors" in name or "words.fixed" in name]
    assert load_file(made[0] / "words.safetensors")["vectors"].shape == (8, 3)
    load_folder(made[0] / "bilm")


def test_predictions_do_not_depend_on_the_batch(made):
    trained = load(made[0])
    sentences = [Tagged(sentence.tokens) for sentence in tagged(30, seed=7)]
    assert trained.predict_examples(sentences) == [trained.predict_examples([sentence])[0] for sentence in sentences]
    assert trained.predict_examples([]) == []


def test_predicting_leaves_a_model_in_training_mode_and_keeps_no_layers(made):
    trained = load(made[0])
    trained.model.train()
    trained.predict_examples(NEW)
    assert trained.model.training
    assert len(trained.model.inputs.elmo.cache) == 0


def test_text_of_any_length_comes_back_in_order(made, tmp_path):
    lines = [f"{'word ' * (i % 7)}n{i}" for i in range(600)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines))
    found = list(load(made[0]).predict_source(Source(str(tmp_path / "text.txt"), lang=None)))
    assert [" ".join(example.tokens) for example, _ in found] == lines
    assert all(len(example.tokens) == len(tags) for example, tags in found)


def test_strings_and_token_lists_are_predicted(made):
    trained = load(made[0])
    one, two, three = trained.predict(["Ann sees it. Bob knows.", ["a", "fox", "."]])
    assert (one["tokens"], two["tokens"], three["tokens"]) == (
        ["Ann", "sees", "it", "."],
        ["Bob", "knows", "."],
        ["a", "fox", "."],
    )
    assert [len(record["tags"]) for record in (one, two, three)] == [4, 3, 3]
    assert three["tags"] == trained.predict_examples([Tagged(["a", "fox", "."])])[0]
    (split,) = trained.predict(["Ann sees it."], lang=None)
    assert split["tokens"] == ["Ann", "sees", "it."]
    assert trained.predict([]) == trained.predict(iter([])) == []


@pytest.mark.parametrize("texts", ["Ann sees it.", None, 3, [None], [["Ann", 3]], [b"Ann"], NEW, [{"Ann", "sees"}]])
def test_what_is_no_text_is_refused(made, texts):
    with pytest.raises(InputError):
        load(made[0]).predict(texts)


def test_questions_are_for_tasks_that_answer_them(made):
    with pytest.raises(InputError, match=mentions("questions", "pos")):
        load(made[0]).predict(["Ann sees it."], questions=["Who?"])
    with pytest.raises(InputError, match=mentions("predicates", "pos")):
        load(made[0]).predict(["Ann sees it."], predicates=["sees"])


def test_the_path_of_a_text_is_a_source(made, tmp_path):
    (tmp_path / "text.txt").write_text("Ann sees it. It hears Ann.\n")
    trained = load(made[0])
    for path in (tmp_path / "text.txt", str(tmp_path / "text.txt")):
        assert [len(tags) for _, tags in trained.predict_source(path)] == [4, 4]
    with pytest.raises(InputError, match="3"):
        next(trained.predict_source(3))


def test_words_of_any_kind_come_back(tmp_path):
    """A word may hold a space, a line separator, or start with a byte order mark."""
    odd = ["\ufeffa", "two words", "a\u2028b", "\u00e9t\u00e9"]
    write_pos(tmp_path)
    rows = [["1", odd[0]], ["2", odd[1]], ["3", odd[2]], ["4", odd[3]]]
    lines = ["\t".join([*row, "_", "NOUN", *["_"] * 6]) for row in rows]
    with (tmp_path / "train.conllu").open("a", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n\n")
    train(pos_config(tmp_path, tmp_path / "run", epochs=1))
    assert set(odd) <= set(load(tmp_path / "run").model.inputs.words.words)


@pytest.mark.parametrize("name", ["model.safetensors", "words.safetensors"])
def test_cut_weights_are_named(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-10])
    with pytest.raises(WeightsError, match=mentions(folder / name)):
        load(folder)


def test_weights_of_another_model_are_refused(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "scores.bias": torch.zeros(9)}, path)
    with pytest.raises(WeightsError, match=mentions("scores.bias", "(5,)", "(9,)")):
        load(folder)
    del tensors["scores.bias"]
    save_file(tensors, path)
    with pytest.raises(WeightsError, match=mentions("model.safetensors", "scores.bias", "missing")):
        load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "words.safetensors"])
@pytest.mark.parametrize("damage", ["nan", "inf", "dtype"])
def test_weights_that_are_no_finite_floats_are_refused(folder, name, damage):
    tensors = load_file(folder / name)
    key = sorted(tensors)[0]
    wrong = {"nan": torch.nan, "inf": torch.inf, "dtype": 1}
    tensors[key] = tensors[key].to(torch.int32) if damage == "dtype" else torch.full_like(tensors[key], wrong[damage])
    save_file(tensors, folder / name)
    with pytest.raises(WeightsError, match=mentions(folder / name, key)):
        load(folder)


def test_a_size_is_compared_with_the_file_before_a_model_is_built(folder):
    card = json.loads((folder / "task.json").read_text())
    card["config"]["model"]["hidden_dim"] = 1_000_000  # would need terabytes
    (folder / "task.json").write_text(json.dumps(card))
    with pytest.raises(WeightsError, match=mentions("model.safetensors", 4_000_000, 16)):
        load(folder)


@pytest.mark.parametrize(
    ("table", "name", "value"),
    [
        ("model", "n_layers", 10**6),
        ("model", "hidden_dim", 2**40),
        ("characters", "n_filters", 10**9),
        ("characters", "width", 10**6),
        ("words", "dim", 10**9),
    ],
)
def test_a_size_beyond_all_models_is_refused(folder, table, name, value):
    card = json.loads((folder / "task.json").read_text())
    card["config"][table][name] = value
    (folder / "task.json").write_text(json.dumps(card))
    with pytest.raises(ConfigError, match=mentions("task.json", name, value)):
        load(folder)


@pytest.mark.parametrize("content", [[["a"]], {"a": 1}, ["a", "a"], [], [1], "words", None, ["a"]])
def test_damaged_words_are_refused(folder, content):
    (folder / "words.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=mentions(folder / "words.json")):
        load(folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("task.json", ("copy", "torchelmo task train", "task.json")),
        ("words.json", ("words.json",)),
        ("model.safetensors", ("model.safetensors",)),
        ("bilm/config.json", ("config.json",)),
    ],
)
def test_a_missing_file_is_named(folder, name, words):
    (folder / name).unlink()
    with pytest.raises(MissingFileError, match=mentions(*words)):
        load(folder)


def test_no_folder_at_all(tmp_path):
    with pytest.raises(MissingFileError, match=mentions(tmp_path / "gone", "torchelmo task train")):
        load(tmp_path / "gone")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda card: card | {"format": 1}, ("task.json", "format", 2, 1)),
        (lambda card: [1], ("task.json", "format", 2, "[1]")),
        (lambda card: {k: v for k, v in card.items() if k != "config"}, ("task.json", "'config'")),
        (lambda card: card | {"config": card["config"] | {"task": "nre"}}, ("'nre'", "Did you mean 'ner'")),
        (lambda card: card | {"config": card["config"] | {"task": []}}, ("task.json", "task", "[]")),
        (lambda card: card | {"config": card["config"] | {"model": {"hidden_dim": "4"}}}, ("hidden_dim", "'4'")),
        (lambda card: card | {"word_dim": "3"}, ("task.json", "word_dim", "'3'")),
        (lambda card: card | {"word_dim": -3}, ("task.json", "word_dim", -3)),
        (lambda card: card | {"n_fixed_words": 10**9}, ("words.json", 10**9, 8)),
        (lambda card: card | {"vocabularies": []}, ("task.json", "vocabularies", "[]")),
        (lambda card: card | {"vocabularies": {}}, ("task.json", "vocabularies")),
        (lambda card: card | {"vocabularies": {"tags": ["A", 1]}}, ("task.json", "tags", "['A', 1]")),
        (lambda card: card | {"config": card["config"] | {"epcohs": 1}}, ("task.json", "'epcohs'")),
    ],
)
def test_a_changed_card_is_an_error_in_words(folder, change, words):
    card = json.loads((folder / "task.json").read_text())
    (folder / "task.json").write_text(json.dumps(change(card)))
    with pytest.raises(ConfigError, match=mentions(*words)):
        load(folder)


def test_a_damaged_card_is_an_error_in_words(folder):
    (folder / "task.json").write_text('{"format": 1,')
    with pytest.raises(ConfigError, match=mentions("task.json", "JSON")):
        load(folder)
