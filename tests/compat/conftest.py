"""A tiny official model of 50 characters per token, as AllenNLP reads it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from official_files import random_official

import torchelmo
from torchelmo import BiLM

SHAPE = {"max_characters": 50, "projection_dim": 6, "cell_dim": 9}


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """options.json and weights.hdf5."""
    return random_official(seed=5, **SHAPE).write(tmp_path_factory.mktemp("allennlp"))


@pytest.fixture(scope="session")
def bilm(files: tuple[Path, Path]) -> BiLM:
    """The core's model of the same files."""
    return torchelmo.load_official(*files)


@pytest.fixture
def write_files(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Files of another shape."""
    return lambda **shape: random_official(seed=5, **SHAPE | shape).write(tmp_path / "other")
