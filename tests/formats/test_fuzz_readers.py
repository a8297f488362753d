"""Damaged files of every format: only errors of torchelmo, no hang, bounded memory, nothing written elsewhere."""

import tempfile

import pytest
from fuzz.models import FORMATS
from fuzz.run import run_target

COUNTS = {  # how many inputs are tried
    "official files": 500,
    "TensorFlow checkpoint": 1500,
    "TF-Hub module": 1200,
    "ELMoForManyLangs": 500,
    "AllenNLP model": 400,
    "model in .zip": 700,
    "model in .tar.gz": 700,
}


def test_there_are_many_inputs():
    assert sum(COUNTS.values()) >= 5000


@pytest.mark.parametrize("target", FORMATS, ids=[target.name for target in FORMATS])
def test_damaged_files(target, tmp_path, monkeypatch):
    """Nothing is left in the folder for temporary files, nor written beside it."""
    count, temporary = COUNTS[target.name], tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(temporary)
    outcome = run_target(target, first=0, count=count)
    assert not outcome.failures, "\n".join(map(str, outcome.failures[:10]))
    assert outcome.counts["ok"] + outcome.counts["refused"] == count
    assert outcome.counts["refused"] > 0.3 * count
    assert [path.name for path in tmp_path.rglob("*")] == ["temporary"]
