from pathlib import Path

import pytest
from tiny_runs import write_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared text of 400 short sentences, 40 of them held out."""
    return write_data(tmp_path_factory.mktemp("tiny") / "data")
