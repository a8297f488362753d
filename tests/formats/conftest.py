"""Official files for tests to spoil."""

from collections.abc import Callable
from pathlib import Path

import pytest
from official_files import Official, random_official

import torchelmo
from torchelmo import BiLM


@pytest.fixture
def official() -> Official:
    return random_official()


@pytest.fixture
def load(tmp_path: Path) -> Callable[[Official], BiLM]:
    """Written as they are, and read."""
    return lambda official: torchelmo.load_official(*official.write(tmp_path))
