"""Settings of task runs: their ranges, and the experiments that come with the repository."""

from pathlib import Path

import pytest
from facts import mentions

from torchelmo.config import build_config, load_config
from torchelmo.errors import ConfigError
from torchelmo.lm.config import PretrainConfig
from torchelmo.runs.config import TaskOptimConfig
from torchelmo.tasks.config import CharactersConfig, ElmoConfig, TaskConfig, WordsConfig
from torchelmo.tasks.table.spec import read_table
from torchelmo.tasks.task import find_task

FOLDER = Path(__file__).parents[2] / "experiments" / "tasks"
FILES = sorted(FOLDER.glob("*.toml"))
PAPER = sorted((FOLDER.parent / "paper").glob("*.toml"))
TABLES = [path for path in [*FILES, *PAPER] if "[[columns]]" in path.read_text(encoding="utf-8")]


def check(path, settings=()):
    config = load_config(TaskConfig, path, settings)
    task = find_task(config.task)
    build_config(task.data_config, config.data)
    build_config(task.model_config, config.model)
    return config


@pytest.mark.parametrize("path", [path for path in FILES if path not in TABLES], ids=lambda path: path.stem)
def test_every_setting_of_an_experiment_is_known(path):
    config = check(path)
    assert config.out.name == path.stem  # two experiments do not write to one folder
    assert not config.train.is_absolute()


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_setting_of_a_table_is_known(path):
    table = read_table(path)
    for row in table.rows:
        for column in table.columns:
            check(path.parent / row.config, [*row.set, *column.set])
    for column in table.columns:
        if column.bilm is not None:
            assert load_config(PretrainConfig, path.parent / column.bilm).out.name == column.bilm.stem


def test_taglm_is_the_top_layer_between_the_bilstms():
    config = check(FOLDER / "ner-taglm.toml")
    assert (config.elmo.place, config.elmo.layers, config.model["elmo_output"]) == ("output", "top", "between")


def test_the_probe_sees_one_layer_and_nothing_else():
    config = check(FOLDER / "pos-probe.toml")
    assert (config.elmo.place, config.elmo.layers, config.model["head"]) == ("input", "1", "linear")
    assert (config.words.dim, config.words.vectors, config.characters.n_filters) == (0, None, 0)
    assert config.elmo.dropout == 0.0


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: task(epochs=0), ("epochs", 0)),
        (lambda: task(batch_size=0), ("batch_size", 0)),
        (lambda: task(seed=-1), ("seed", -1)),
        (lambda: task(clip=-1.0), ("clip", -1.0)),
        (lambda: task(ema=1.0), ("ema", 1.0)),
        (lambda: task(checkpoint_every="soon"), ("checkpoint_every", "'soon'")),
        (lambda: WordsConfig(dim=-1), ("dim", -1)),
        (lambda: CharactersConfig(n_filters=-1), ("n_filters", -1)),
        (lambda: CharactersConfig(width=0), ("width", 0)),
        (lambda: ElmoConfig(dropout=1.0), ("dropout", 1.0)),
        (lambda: ElmoConfig(l2=-1.0), ("l2", -1.0)),
        (lambda: ElmoConfig(memory_mb=-1.0), ("memory_mb", -1.0)),
        (lambda: TaskOptimConfig(halve_after=-1), ("halve_after", -1)),
        (lambda: TaskOptimConfig(lr=0.0), ("lr", 0.0)),
    ],
)
def test_settings_out_of_range_are_refused(build, words):
    with pytest.raises(ConfigError, match=mentions(*words)):
        build()


def task(**settings):
    return TaskConfig(**{"task": "pos", "train": "a", "dev": "b", "out": "c", **settings})
