"""A short version of `make shard-kills`: processes of a run over shards are killed, and the files are the same."""

import pytest
from fuzz.shards import run


@pytest.mark.slow
def test_killed_workers_and_parents_lose_and_double_nothing(tmp_path):
    result = run(tmp_path, n_shards=16, kills={"worker": 2, "parent": 2}, n_words=200)
    assert result["workers killed"] == result["parents killed"] == 2
    assert result["starts"] >= 3
    assert result["shards"] == 16
