"""Runs of tiny tasks: they learn, keep the best epoch, and depend on nothing but their settings."""

import copy
import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from facts import mentions
from safetensors.torch import load_file
from tiny_tasks import TAGS, pos_config, write_ner, write_pos, write_vectors

from torchelmo import BiLM, BiLMConfig
from torchelmo.config import build_config
from torchelmo.errors import (
    ConfigError,
    InputError,
    MissingFileError,
    OutputError,
    OutputExistsError,
    TrainingError,
    WrongCallError,
)
from torchelmo.formats.load import load_folder
from torchelmo.runs.checkpoint import checkpoints
from torchelmo.runs.config import TaskOptimConfig
from torchelmo.runs.optim import MovingAverage
from torchelmo.runs.resume import RunFolder, Stop
from torchelmo.tasks import load, train
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.runner import set_up, take_step, train_seeds
from torchelmo.tasks.trained import trained_parameters
from torchelmo.tasks.words import read_vectors
from torchelmo.text.vocabulary import Vocabulary

ELMO_BILM = "inputs.elmo.elmo.bilm."


def read(folder):
    return json.loads((folder / "metrics.json").read_text())


def test_a_run_learns_and_reports_its_best_epoch(data, tmp_path):
    result = train(pos_config(data, tmp_path / "run", epochs=6, seed=3)).result
    epochs = [json.loads(line) for line in (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()]
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3, 4, 5, 6]
    assert [epoch["step"] for epoch in epochs] == [5, 10, 15, 20, 25, 30]
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    scores = [epoch["scores"]["accuracy"] for epoch in epochs]
    assert scores[-1] > scores[0]
    assert (result.score, result.best_epoch) == (max(scores), scores.index(max(scores)) + 1)
    assert result.finished
    assert read(tmp_path / "run") == result.to_dict()
    assert load(tmp_path / "run").evaluate(data / "dev.conllu").scores == result.scores


def test_named_entities_run_too(tmp_path):
    write_ner(tmp_path)
    model = {"hidden_dims": [6, 4], "dropout": 0.1}
    config = pos_config(tmp_path, tmp_path / "run", task="ner", epochs=5, optim={"lr": 0.05})
    plain = {"train": tmp_path / "train.conll", "dev": tmp_path / "dev.conll", "model": model}
    result = train(TaskConfig(**{**vars(config), **plain})).result
    assert result.metric == "f1"
    assert result.score > 50.0


@pytest.mark.parametrize(("place", "n_mixes"), [("none", 0), ("input", 1), ("output", 1), ("both", 2)])
def test_elmo_enters_where_it_is_wanted_and_its_mix_is_learned(data, bilm_folder, tmp_path, place, n_mixes):
    result = train(pos_config(data, tmp_path, elmo={"place": place, "model": str(bilm_folder), "l2": 0.0})).result
    assert [mix.place for mix in result.mixes] == {"none": [], "both": ["input", "output"]}.get(place, [place])
    for mix in result.mixes:
        assert sum(mix.weights) == pytest.approx(1.0)
        assert max(abs(weight - 1 / 3) for weight in mix.weights) > 1e-4
        assert abs(mix.gamma - 1.0) > 1e-4
    assert len({str(mix.weights) for mix in result.mixes}) == n_mixes  # each learns its own
    if place != "none":
        kept, given = load_folder(tmp_path / "bilm").state_dict(), load_folder(bilm_folder).state_dict()
        assert all(torch.equal(kept[name], given[name]) for name in given)
        assert not any(name.startswith(ELMO_BILM) for name in load_file(tmp_path / "model.safetensors"))


def test_a_large_penalty_holds_the_mix_at_the_average(data, bilm_folder, tmp_path):
    settings = {"place": "input", "model": str(bilm_folder)}
    free, held = (
        train(pos_config(data, tmp_path / str(l2), elmo={**settings, "l2": l2}, epochs=4)).result.mixes[0].weights
        for l2 in (0.0, 100.0)
    )
    assert max(abs(weight - 1 / 3) for weight in held) < 0.3 * max(abs(weight - 1 / 3) for weight in free)


def test_a_frozen_bilm_never_changes(data, bilm_folder, tmp_path):
    config = pos_config(data, tmp_path, elmo={"place": "both", "model": str(bilm_folder)})
    tmp_path.joinpath("run").mkdir()
    started = set_up(config)
    model = started.trained.model
    before = {name: tensor.clone() for name, tensor in model.inputs.elmo.bilm.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    model.train()
    model.loss(started.examples[:4]).backward()
    optimizer.step()
    assert not model.inputs.elmo.bilm.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.inputs.elmo.bilm.state_dict().items())


def test_an_unfrozen_bilm_is_trained_and_kept(data, bilm_folder, tmp_path):
    elmo = {"place": "input", "model": str(bilm_folder), "unfreeze": True}
    result = train(pos_config(data, tmp_path, elmo=elmo)).result
    given = load_folder(bilm_folder).state_dict()
    trained = load(tmp_path)
    found = trained.model.inputs.elmo.bilm.state_dict()
    changed = [name for name in given if not torch.equal(given[name], found[name])]
    assert len(changed) > len(given) / 2
    assert trained.evaluate(data / "dev.conllu").scores == result.scores
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[ELMO_BILM + name], found[name]) for name in found)


@pytest.mark.parametrize(("tied", "objective"), [(False, "bilm"), (True, "bilm"), (False, "masked")])
def test_the_softmax_of_an_unfrozen_bilm_is_left_as_it_was(data, tmp_path, tied, objective):
    shape = {"n_layers": 1, "projection_dim": 4, "cell_dim": 6, "softmax_words": 5, "objective": objective}
    inputs = {"input": "words", "n_words": 5, "tied_softmax": True} if tied else {"filters": ((1, 4),), "n_highway": 1}
    BiLM(BiLMConfig(**shape, **inputs), Vocabulary(["<S>", "</S>", "<UNK>", "cat", "Ann"])).save(tmp_path / "bilm")
    elmo = {"place": "input", "model": str(tmp_path / "bilm"), "unfreeze": True}
    result = train(pos_config(data, tmp_path / "run", epochs=1, elmo=elmo)).result
    (last,) = checkpoints(tmp_path / "run")
    for path in (tmp_path / "run", last):
        names = load_file(path / "model.safetensors")
        assert not [name for name in names if "softmax" in name or "mask_vector" in name]
    assert not [name for name in load_file(last / "optimizer.safetensors") if "softmax" in name]
    trained = load(tmp_path / "run")
    bilm, given = trained.model.inputs.elmo.bilm, load_folder(tmp_path / "bilm")
    assert torch.equal(bilm.softmax.bias, given.softmax.bias)
    assert torch.equal(bilm.softmax.weight, given.softmax.weight) == (not tied)
    assert trained.evaluate(data / "dev.conllu").scores == result.scores


def test_the_seed_decides_everything(data, bilm_folder, tmp_path):
    elmo = {"place": "input", "model": str(bilm_folder)}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(pos_config(data, tmp_path / name, elmo=elmo, seed=seed, epochs=1))
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_several_seeds_have_a_mean_and_a_deviation(data, tmp_path):
    summary = train_seeds(pos_config(data, tmp_path / "runs", epochs=1, seed=4), 3).summary
    scores = [read(tmp_path / "runs" / f"seed-{seed}")["scores"]["accuracy"] for seed in (4, 5, 6)]
    written = read(tmp_path / "runs")
    assert [written["seeds"][seed]["accuracy"] for seed in ("4", "5", "6")] == scores
    mean = sum(scores) / 3
    assert written["mean"]["accuracy"] == summary.mean["accuracy"] == pytest.approx(mean)
    assert written["sd"]["accuracy"] == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in scores) / 2))
    assert re.search(mentions("accuracy", f"{mean:.2f} ± {written['sd']['accuracy']:.2f}", 3), summary.line())
    with pytest.raises(MissingFileError, match=mentions(tmp_path / "runs" / "seed-4", "task.json")):
        load(tmp_path / "runs")


def test_one_seed_stands_in_out_itself(data, tmp_path):
    summary = train_seeds(pos_config(data, tmp_path / "run", epochs=1), 1).summary
    assert read(tmp_path / "run") == summary.results[0].to_dict()
    assert summary.sd["accuracy"] == 0.0


def test_seeds_end_when_they_are_asked_to(data, tmp_path):
    stop = Stop()
    stop.requested = True
    assert train_seeds(pos_config(data, tmp_path / "runs"), 2, stop=stop) == (None, True, False)
    assert not (tmp_path / "runs").exists()


def test_the_run_ends_when_dev_no_longer_improves(data, tmp_path):
    """With a rate of almost 0 nothing changes after the first epoch."""
    result = train(pos_config(data, tmp_path, epochs=9, patience=2, optim={"lr": 1e-12})).result
    assert (result.best_epoch, result.epochs, result.finished) == (1, 3, True)


def test_the_rate_is_halved_when_dev_no_longer_improves(data, tmp_path):
    train(pos_config(data, tmp_path, epochs=6, optim={"lr": 1e-12, "halve_after": 2}))
    (folder,) = checkpoints(tmp_path)
    progress = json.loads((folder / "checkpoint.json").read_text())["progress"]
    assert (progress["rate"], progress["halved_epoch"]) == (0.25, 5)  # after epochs 3 and 5


def test_the_averaged_weights_are_scored_and_kept(data, bilm_folder, tmp_path):
    elmo = {"place": "input", "model": str(bilm_folder)}
    result = train(pos_config(data, tmp_path, epochs=3, ema=0.9, elmo=elmo)).result
    trained = load(tmp_path)
    assert trained.evaluate(data / "dev.conllu").scores == result.scores
    (mix,) = trained.model.inputs.elmo.mixes
    assert result.mixes[0].weights == mix.weights.tolist()
    (folder,) = checkpoints(tmp_path)
    last = load_file(folder / "model.safetensors")
    assert not torch.equal(last["scores.weight"], trained.model.state_dict()["scores.weight"])


def test_the_mixes_of_a_result_are_those_of_its_best_epoch(data, bilm_folder, tmp_path):
    elmo = {"place": "both", "model": str(bilm_folder)}
    result = train(pos_config(data, tmp_path, epochs=12, optim={"lr": 0.1}, elmo=elmo)).result
    assert result.best_epoch < result.epochs  # else this tests nothing
    mixes = load(tmp_path).model.inputs.elmo.mixes
    assert [mix.weights for mix in result.mixes] == [mix.weights.tolist() for mix in mixes]
    assert [mix.gamma for mix in result.mixes] == [mix.gamma.item() for mix in mixes]


@pytest.mark.parametrize("every", [0, 1])
def test_a_rate_that_is_far_too_high_is_an_error_in_words(data, tmp_path, every):
    config = pos_config(data, tmp_path, model={"head": "linear"}, optim={"lr": 1e30}, checkpoint_every=every)
    with pytest.raises(TrainingError, match=mentions("step 2", "nan", tmp_path, "optim.lr", 1e30)):
        train(config)
    assert [folder.name for folder in checkpoints(tmp_path)] == (["step-00000001"] if every else [])


def test_vectors_of_a_file_are_fixed_or_trained(data, tmp_path):
    vectors = str(write_vectors(tmp_path / "vectors.txt"))
    for trainable in (False, True):
        out = tmp_path / str(trainable)
        words = {"vectors": vectors, "dim": 0, "trainable": trainable}
        result = train(pos_config(data, out, words=words, epochs=1)).result
        found = load(out)
        assert found.model.inputs.words.dim == 3
        assert found.evaluate(data / "dev.conllu").scores == result.scores
        known = found.model.inputs.words.words
        assert ("Ann" in known) == trainable  # those outside the file are learned where vectors are
        assert ("inputs.words.vectors" in load_file(out / "model.safetensors")) == trainable


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"data": {"colum": "upos"}}, ConfigError, ("data", "'colum'", "Did you mean 'column'")),
        ({"model": {"hiden_dim": 3}}, ConfigError, ("model", "'hiden_dim'", "Did you mean 'hidden_dim'")),
        ({"model": {"hidden_dim": 0}}, ConfigError, ("model", "hidden_dim", 0)),
        ({"train": "gone.conllu"}, MissingFileError, ("gone.conllu",)),
        ({"dev": "gone.conllu"}, MissingFileError, ("gone.conllu",)),
        ({"words": {"vectors": "gone.txt", "dim": 0}}, MissingFileError, ("gone.txt",)),
        ({"words": {"min_count": 1000}}, ConfigError, ("words.min_count", 1000)),
        ({"words": {"dim": 0}}, ConfigError, ("[words]", "[characters]", "elmo.place")),
        ({"device": "abacus"}, ConfigError, ("device", "auto", "cpu", "cuda", "'abacus'")),
        ({"task": "nre"}, ConfigError, ("'nre'", "Did you mean 'ner'")),
        ({"elmo": {"place": "input", "model": "no/such/model"}}, InputError, ("no/such/model",)),
    ],
)
def test_wrong_settings_are_errors_in_words(data, tmp_path, changes, error, words):
    with pytest.raises(error, match=mentions(*words)):
        train(pos_config(data, tmp_path / "new" / "run", **changes))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": {"head": "tree"}}, ConfigError, ("head", "'tree'")),
        ({"elmo": {"place": "input", "layers": "9"}}, ConfigError, ("elmo.layers", 9)),
        ({"elmo": {"place": "input", "model": "no/such/model"}}, InputError, ("no/such/model",)),
        ({"words": {"vectors": "gone.txt", "dim": 0}}, MissingFileError, ("gone.txt",)),
    ],
)
def test_settings_are_checked_before_the_data_is_read(tmp_path, bilm_folder, changes, error, words):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conllu").write_text("not CoNLL-U\n")
    if "elmo" in changes:
        changes = {"elmo": {"model": str(bilm_folder), **changes["elmo"]}}
    with pytest.raises(error, match=mentions(*words)):
        train(pos_config(tmp_path, tmp_path / "run", **changes))


def test_a_run_says_whether_it_uses_elmo(data, bilm_folder, tmp_path, caplog):
    with caplog.at_level("INFO", logger="torchelmo"):
        set_up(pos_config(data, tmp_path))
        set_up(pos_config(data, tmp_path, elmo={"place": "input", "model": str(bilm_folder)}))
    assert "20 training examples, 12 dev examples, without ELMo" in caplog.text
    assert "ELMo at the input" in caplog.text


def test_an_outcome_says_what_was_saved(data, tmp_path, stop_after):
    config = pos_config(data, tmp_path / "run")
    stop = Stop()
    stop.requested = True
    assert train(config, stop=stop) == (None, True, False)
    assert not (tmp_path / "run").exists()
    assert train(config, stop=stop_after(2)) == (None, True, True)
    outcome = train(config, resume=True, stop=stop_after(4))  # in the second epoch
    assert (outcome.stopped, outcome.saved) == (True, True)
    assert (outcome.result.epochs, outcome.result.finished) == (1, False)
    outcome = train(config, resume=True)
    assert (outcome.stopped, outcome.saved, outcome.result.finished) == (False, True, True)


def test_two_runs_do_not_share_a_folder(data, tmp_path):
    train(pos_config(data, tmp_path, epochs=1))
    with (
        RunFolder(tmp_path, "task", owned=(), resume=True),
        pytest.raises(OutputError, match=mentions(tmp_path, os.getpid())),
    ):
        train(pos_config(data, tmp_path, epochs=2), resume=True)
    assert train(pos_config(data, tmp_path, epochs=2), resume=True).result.epochs == 2


def test_a_width_that_is_not_that_of_the_file_is_an_error(data, tmp_path):
    vectors = write_vectors(tmp_path / "vectors.txt")
    with pytest.raises(ConfigError, match=mentions("words.dim", 3, vectors, 5)):
        train(pos_config(data, tmp_path / "run", words={"vectors": str(vectors), "dim": 5}))


@pytest.mark.parametrize("name", ["train", "dev"])
def test_a_file_without_sentences_is_named(tmp_path, name):
    write_pos(tmp_path)
    (tmp_path / f"{name}.conllu").write_text("\n\n")
    with pytest.raises(InputError, match=mentions(tmp_path / f"{name}.conllu")):
        train(pos_config(tmp_path, tmp_path / "run"))


def test_a_dev_file_without_labels_is_named(tmp_path):
    write_pos(tmp_path)
    lines = (tmp_path / "dev.conllu").read_text().replace("NAME", "_")
    (tmp_path / "dev.conllu").write_text(lines)
    with pytest.raises(InputError, match=mentions("dev.conllu", "line 1", "upos", "'_'")):
        train(pos_config(tmp_path, tmp_path / "run"))


@pytest.mark.parametrize("changes", [{}, {"overwrite": True}, {"resume": True}], ids=["start", "overwrite", "resume"])
def test_a_folder_of_something_else_is_left_alone(data, bilm_folder, tmp_path, changes):
    load_folder(bilm_folder).save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OutputExistsError, match=mentions(tmp_path, "model.safetensors", "another out")):
        train(pos_config(data, tmp_path), **changes)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_overwrite_replaces_all_that_a_run_wrote(data, bilm_folder, tmp_path):
    vectors = str(write_vectors(tmp_path / "vectors.txt"))
    first = {"elmo": {"place": "input", "model": str(bilm_folder)}, "words": {"vectors": vectors, "dim": 0}}
    train(pos_config(data, tmp_path / "run", epochs=1, **first))
    (tmp_path / "run" / "mine.txt").write_text("kept")
    with pytest.raises(OutputExistsError, match=mentions(tmp_path / "run", "resume=True", "overwrite=True")):
        train(pos_config(data, tmp_path / "run", epochs=1))
    train(pos_config(data, tmp_path / "run", epochs=1), overwrite=True)
    train(pos_config(data, tmp_path / "new", epochs=1))
    files = {path.relative_to(tmp_path / "run") for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert files - {Path("mine.txt")} == {
        path.relative_to(tmp_path / "new") for path in (tmp_path / "new").rglob("*") if path.is_file()
    }
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (tmp_path / "new/model.safetensors").read_bytes()


def test_overwrite_keeps_the_old_run_until_the_new_one_can_begin(data, tmp_path):
    run = tmp_path / "run"
    first = train(pos_config(data, run, epochs=1)).result
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(MissingFileError, match=mentions("gone.conllu")):
        train(pos_config(data, run, train="gone.conllu"), overwrite=True)
    stop = Stop()
    stop.requested = True
    assert train(pos_config(data, run, seed=2), overwrite=True, stop=stop).stopped
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert train(pos_config(data, run, epochs=1), resume=True).result == first


def test_what_an_unfinished_start_left_is_not_part_of_the_next_run(data, tmp_path):
    """A run that was killed before its first checkpoint, then one with other settings in its folder."""
    vectors = str(write_vectors(tmp_path / "vectors.txt"))
    train(pos_config(data, tmp_path / "run", epochs=1, words={"vectors": vectors, "dim": 0}))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    result = train(pos_config(data, tmp_path / "run", epochs=1), resume=True).result
    assert load(tmp_path / "run").evaluate(data / "dev.conllu").scores == result.scores


def test_only_words_of_the_training_data_are_trained(data, tmp_path):
    """Others keep the vectors of the file, and no checkpoint has them."""
    path = write_vectors(tmp_path / "vectors.txt")
    path.write_text("emu 1 2 3\nANN 4 5 6\nann 7 8 9\n" + path.read_text() + "yak 3 2 1\n")
    words = {"vectors": str(path), "dim": 0, "trainable": True, "min_count": 1000}
    result = train(pos_config(data, tmp_path / "run", words=words)).result
    found = load(tmp_path / "run")
    embedding = found.model.inputs.words
    given = read_vectors(path)
    rows = {word: vector.tolist() for word, vector in zip(given.words, given.vectors)}
    vectors = embedding(torch.tensor([embedding.ids(given.words)]))[0].tolist()
    changed = {word for word, vector in zip(given.words, vectors) if vector != rows[word]}
    assert changed == {*TAGS["NOUN"], *TAGS["VERB"], "ann"}  # Ann has the vector of her lower case
    for folder in (tmp_path / "run", *checkpoints(tmp_path / "run")):
        saved = load_file(folder / "model.safetensors")
        assert saved["inputs.words.vectors"].shape == (9, 3)
        assert "inputs.words.fixed" not in saved
    assert found.evaluate(data / "dev.conllu").scores == result.scores


def test_every_optimiser_has_a_rate_of_its_own():
    rates = {name: TaskOptimConfig(name=name).peak for name in ("adam", "adamw", "adadelta", "adagrad")}
    assert rates == {"adam": 0.001, "adamw": 0.001, "adadelta": 1.0, "adagrad": 0.2}
    assert TaskOptimConfig(name="adadelta", lr=0.5).peak == 0.5


def test_a_configuration_survives_the_trip_through_its_card(data, tmp_path):
    config = pos_config(data, tmp_path, epochs=1, elmo={"layers": "top"})
    train(config)
    card = json.loads((tmp_path / "task.json").read_text())
    assert build_config(TaskConfig, card["config"]) == config


@pytest.fixture
def prepared(data, bilm_folder, tmp_path):
    elmo = {"place": "input", "model": str(bilm_folder), "l2": 5.0, "dropout": 0.0}
    found = set_up(pos_config(data, tmp_path, elmo=elmo, model={"dropout": 0.0}))
    with torch.no_grad():
        found.trained.model.inputs.elmo.mixes[0].scalars += torch.tensor([0.0, 0.5, 1.0])
    return found


def test_several_processes_are_refused(data, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(WrongCallError, match=mentions("task", "2", "torchrun")):
        train(pos_config(data, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_step_has_the_penalty_and_a_limit_and_is_averaged(prepared):
    model, examples = prepared.trained.model, prepared.examples[:4]
    by_hand = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained_parameters(model).values(), lr=0.1)
    average = MovingAverage(model, 0.5)
    step = take_step(model, list(trained_parameters(model).values()), optimizer, average, examples, clip=0.01)

    loss = by_hand.loss(examples)
    (loss + by_hand.inputs.elmo.penalty()).backward()
    gradients = {name: p.grad for name, p in trained_parameters(by_hand).items() if p.grad is not None}
    norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm().item()
    assert step == (loss.item(), pytest.approx(norm))
    assert norm > 0.01
    for name, parameter in trained_parameters(by_hand).items():
        expected = parameter - 0.1 * gradients.get(name, torch.zeros(())) * 0.01 / norm
        found = trained_parameters(model)[name]
        assert torch.allclose(found, expected, atol=1e-6)
        assert found.grad is None
        assert torch.allclose(average.tensors[name], parameter.lerp(expected, 9 / 11), atol=1e-6)


def test_a_step_that_is_not_finite_is_not_taken(prepared):
    model, examples = prepared.trained.model, prepared.examples[:4]
    with torch.no_grad():
        model.inputs.elmo.mixes[0].gamma.fill_(torch.inf)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = list(trained_parameters(model).values())
    step = take_step(model, parameters, torch.optim.SGD(parameters, lr=0.1), None, examples, clip=0.01)
    assert not step.is_finite
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
