"""The settings of a run: what is wrong in them is said before anything is read."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from facts import mentions
from tiny_runs import tiny_config

from torchelmo import BiLM
from torchelmo.config import build_config, config_to_dict, load_config
from torchelmo.errors import ConfigError
from torchelmo.lm.config import CHANGEABLE_ON_RESUME, PretrainConfig
from torchelmo.runs.config import Every, OptimConfig, changed_setting

EXPERIMENTS = Path(__file__).parents[2] / "experiments" / "pretrain"
BASE = {"data": "data", "out": "out", "steps": 1}


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_experiments_that_come_with_the_package_are_valid(path):
    assert isinstance(load_config(PretrainConfig, path), PretrainConfig)


def test_the_models_that_are_compared_with_each_other_have_equal_size():
    folder = EXPERIMENTS.parent / "masked"
    sizes = []
    for name in ("bilm", "masked"):
        config = load_config(PretrainConfig, folder / f"{name}.toml")
        with torch.device("meta"):
            sizes.append(sum(parameter.numel() for parameter in BiLM(config.model_config(30_000)).parameters()))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)


def test_there_are_the_three_experiments():
    assert {path.stem for path in EXPERIMENTS.glob("*.toml")} >= {"paper", "small", "tiny"}


def test_the_defaults_are_the_recipe_of_the_paper():
    config = build_config(PretrainConfig, BASE)
    assert (config.batch_size, config.unroll, config.negatives, config.dropout) == (128, 20, 8192, 0.1)
    assert (config.optim.name, config.optim.peak, config.optim.initial_accumulator) == ("adagrad", 0.2, 1.0)
    assert config.clip == 10.0
    assert config.model_config(1000).cell_dim == 4096


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 1.0}, ("steps", "epochs", "hours")),
        ({"steps": None}, ("steps", "epochs", "hours")),
        ({"steps": 0}, ("steps", 0)),
        ({"batch_size": 0}, ("batch_size", 0)),
        ({"dropout": 1.0}, ("dropout", 1.0)),
        ({"clip": -1.0}, ("clip", -1.0)),
        ({"loss_scale": 0.0}, ("loss_scale", 0.0)),
        ({"loss": "hinge"}, ("loss", "'sampled'", "'full'", "'hinge'")),
        ({"checkpoint_every": 0}, ("checkpoint_every",)),
        ({"checkpoint_every": "5 minutes"}, ("checkpoint_every", "'5 minutes'")),
        ({"evaluate_every": -3}, ("evaluate_every", -3)),
        ({"model": {"cell_din": 3}}, ("'cell_din'", "Did you mean 'cell_dim'")),
        ({"model": {"softmax_words": 3}}, ("softmax_words",)),
        ({"init": "elsewhere", "model": {"cell_dim": 3}}, ("[model]", "init")),
        ({"optim": {"lr": -1.0}}, ("optim", "lr", -1.0)),
        ({"optim": {"betas": [0.9, 1.0]}}, ("betas", 1.0)),
        ({"optim": {"final": 2.0}}, ("final", 2.0)),
        ({"optim": {"warmup": -1.0}}, ("warmup", -1.0)),
        ({"optim": {"lrr": 1.0}}, ("'lrr'", "Did you mean 'lr'")),
    ],
)
def test_a_wrong_setting_is_named(changes, words):
    with pytest.raises(ConfigError, match=mentions(*words)):
        build_config(PretrainConfig, {**BASE, **changes})


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["hours=8"], (None, None, 8.0)),
        (["epochs=2"], (None, 2.0, None)),
        (["seed=3"], (None, 1.0, None)),
    ],
)
def test_a_length_that_is_set_takes_the_place_of_that_of_the_file(tmp_path, overrides, expected):
    (tmp_path / "run.toml").write_text('data = "data"\nout = "out"\nepochs = 1\n')
    config = load_config(PretrainConfig, tmp_path / "run.toml", overrides)
    assert (config.steps, config.epochs, config.hours) == expected


def test_two_lengths_that_are_set_are_an_error():
    with pytest.raises(ConfigError, match=mentions("small.toml", "steps", "epochs", "hours")):
        load_config(PretrainConfig, EXPERIMENTS / "small.toml", ["steps=5", "hours=1"])


@pytest.mark.parametrize("overrides", [["init=elsewhere"], ["init=elsewhere", "model={}"]], ids=["alone", "with {}"])
def test_a_model_to_start_from_takes_the_place_of_the_shape(overrides):
    config = load_config(PretrainConfig, EXPERIMENTS / "small.toml", overrides)
    assert (config.init, config.model) == (Path("elsewhere"), {})


def test_the_number_of_words_comes_from_the_data():
    words = build_config(PretrainConfig, {**BASE, "model": {"input": "words", "tied_softmax": True}})
    assert words.model_config(77).n_words == words.model_config(77).softmax_words == 77


def test_each_optimizer_has_its_own_usual_rate():
    assert OptimConfig(name="adagrad").peak == 0.2
    assert OptimConfig(name="adamw").peak == 0.004
    assert OptimConfig(name="adamw", lr=0.1).peak == 0.1


def test_every_by_steps_and_by_time():
    assert [step for step in range(1, 10) if Every(4, 0.0).due(step, 0.0, 0.0)] == [4, 8]
    assert Every(0, 60.0).due(1, 100.0, 40.0)
    assert not Every(0, 60.0).due(1, 99.0, 40.0)
    assert not Every(0, 0.0).due(10, 1e9, 0.0)
    assert Every.parse("x", "1.5h").seconds == 5400.0


def test_settings_survive_json(tmp_path):
    config = tiny_config(tmp_path / "data", tmp_path / "out")
    assert build_config(PretrainConfig, config_to_dict(config)) == config


def first_difference(before, now):
    return changed_setting(before.flat(), now.flat(), CHANGEABLE_ON_RESUME)


def test_which_settings_may_differ_in_a_resumed_run(tmp_path):
    config = tiny_config(tmp_path, tmp_path)
    longer = replace(config, steps=None, hours=2.0, keep=7, log_every=1, checkpoint_every="1m", out=Path("x"))
    assert first_difference(config, longer) is None
    assert re.search(mentions("unroll", 5, 7), first_difference(config, replace(config, unroll=7)))
    slower = replace(config.optim, lr=0.001, decay="linear", hold=0.5, final=0.1, warmup=0.0)
    assert first_difference(config, replace(config, optim=slower)) is None
    other = replace(config, optim=replace(config.optim, eps=0.5))
    assert re.search(mentions("optim.eps", 1e-08, 0.5), first_difference(config, other))
    wider = replace(config, model={**config.model, "cell_dim": 9})
    assert re.search(mentions("model.cell_dim", 8, 9), first_difference(config, wider))
