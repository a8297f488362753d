"""The tasks by name."""

import pytest
from facts import mentions

from torchelmo.errors import ConfigError
from torchelmo.tasks.task import TASKS, find_task


@pytest.mark.parametrize("name", ["ner", "pos"])
def test_a_task_is_found_by_its_name(name):
    task = find_task(name)
    assert task.name == name
    assert name in TASKS


def test_an_unknown_task_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match=mentions("'nre'", "Did you mean 'ner'")):
        find_task("nre")
