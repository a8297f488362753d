"""The task experiments that come with the repository, and the tables of them, are valid settings of their tasks."""

import tomllib
from pathlib import Path

import pytest

from torchelmo.config import build_config, load_config
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.table import read_table
from torchelmo.tasks.task import find_task

FOLDER = Path(__file__).parents[2] / "experiments" / "tasks"
FILES = sorted(FOLDER.glob("*.toml"))
TABLES = [path for path in FILES if "rows" in tomllib.loads(path.read_text(encoding="utf-8"))]


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
            check(FOLDER / row.config, [*row.set, *column.set])


def test_taglm_is_the_top_layer_between_the_bilstms():
    config = check(FOLDER / "ner-taglm.toml")
    assert (config.elmo.place, config.elmo.layers, config.model["elmo_output"]) == ("output", "top", "between")


def test_the_probe_sees_one_layer_and_nothing_else():
    config = check(FOLDER / "pos-probe.toml")
    assert (config.elmo.place, config.elmo.layers, config.model["head"]) == ("input", "1", "linear")
    assert (config.words.dim, config.words.vectors, config.characters.n_filters) == (0, None, 0)
    assert config.elmo.dropout == 0.0
