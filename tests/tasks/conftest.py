"""Tiny data and a tiny biLM for the runs of all tasks."""

from pathlib import Path

import pytest
from tiny_tasks import write_pos

from torchelmo import BiLM


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.conllu and dev.conllu. Tests that change them write their own."""
    return write_pos(tmp_path_factory.mktemp("pos"))


@pytest.fixture(scope="session")
def bilm_folder(tiny_bilm: BiLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bilm") / "tiny"
    tiny_bilm.save(folder)
    return folder
