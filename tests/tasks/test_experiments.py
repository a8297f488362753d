"""The task experiments that come with the repository are valid settings of their tasks."""

from pathlib import Path

import pytest

from torchelmo.config import build_config, load_config
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.registry import find_task

FILES = sorted((Path(__file__).parents[2] / "experiments" / "tasks").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_setting_of_an_experiment_is_known(path):
    config = load_config(TaskConfig, path)
    task = find_task(config.task)
    build_config(task.data_config, config.data)
    build_config(task.model_config, config.model)
    assert config.out.name == path.stem  # two experiments do not write to one folder
    assert not config.train.is_absolute()


def test_taglm_and_the_probe_are_what_they_are_called():
    taglm, probe = (load_config(TaskConfig, path) for path in FILES if path.stem in ("ner-taglm", "pos-probe"))
    assert (taglm.elmo.place, taglm.elmo.layers, taglm.model["elmo_output"]) == ("output", "top", "between")
    assert (probe.elmo.place, probe.elmo.layers, probe.model["head"]) == ("input", "1", "linear")
    assert probe.words.dim == 0
    assert probe.words.vectors is None
    assert probe.characters.n_filters == 0
    assert probe.elmo.dropout == 0.0
