"""The commands of benchmarks.memory run."""

import pytest

from benchmarks.memory import COMMANDS, arguments, write_inputs, write_model
from torchelmo.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    write_model(folder / "model")
    write_inputs(folder, 20)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(folder, command):
    with pytest.raises(SystemExit) as end:
        main(arguments(command, folder))
    assert end.value.code == 0
