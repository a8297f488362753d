"""Pre-training that continues from a TensorFlow checkpoint with the state of Adagrad."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from facts import mentions
from official_files import read_hdf5
from tf_files import write_checkpoint
from tiny_runs import run_to_end, tiny_config, write_data

import torchelmo
from torchelmo.errors import ConfigError, MissingFileError
from torchelmo.lm.config import PretrainConfig
from torchelmo.lm.corpus import Corpus
from torchelmo.lm.run import Run, build_model

ADAGRAD = {"name": "adagrad", "lr": 0.2}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data")


@pytest.fixture
def checkpoint(data: Path, tmp_path: Path) -> Path:
    """A checkpoint whose accumulators are the squares of its weights, so that each can be recognized."""
    bilm = build_model(tiny_config(data, tmp_path / "out", optim=ADAGRAD), Corpus(data))
    folder = tmp_path / "checkpoint"
    torchelmo.save_official(bilm, folder / "options.json", folder / "weights.hdf5")
    arrays = {f"lm/{name}": array for name, array in read_hdf5(folder / "weights.hdf5").items()}
    write_checkpoint(folder, arrays | {f"{name}/Adagrad": array**2 for name, array in arrays.items()})
    (folder / "weights.hdf5").unlink()
    return folder


def config(data: Path, out: Path, init: Path, **changes: object) -> PretrainConfig:
    changes = {"optim": ADAGRAD, "init_accumulators": True, **changes}
    return tiny_config(data, out, model={}, init=str(init), **changes)


@pytest.mark.parametrize("archive", [True, False])
def test_adagrad_starts_from_the_accumulators(archive, data, checkpoint, tmp_path):
    init = Path(shutil.make_archive(str(tmp_path / "model"), "gztar", checkpoint)) if archive else checkpoint
    run = Run(config(data, tmp_path / "out", init))
    for parameter in run.parameters:
        expected = parameter.detach() ** 2
        if parameter is run.bilm.encoder.embedding:
            expected[0] = 1.0  # padding
        assert torch.equal(run.optimizer.state[parameter]["sum"], expected)


def test_without_them_adagrad_starts_anew(data, checkpoint, tmp_path):
    run = Run(config(data, tmp_path / "out", checkpoint, init_accumulators=False))
    assert all(bool((run.optimizer.state[parameter]["sum"] == 1.0).all()) for parameter in run.parameters)


def test_a_run_and_its_resume(data, checkpoint, tmp_path):
    """A resumed run has its own state, and does not need the checkpoint any more."""
    run_to_end(config(data, tmp_path / "out", checkpoint, steps=2))
    shutil.rmtree(checkpoint)
    run_to_end(config(data, tmp_path / "out", checkpoint, steps=3), resume=True)
    assert json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 3


def test_settings_that_do_not_fit(data, checkpoint, tmp_path):
    with pytest.raises(ConfigError, match=mentions("init_accumulators", "adagrad", "adamw")):
        config(data, tmp_path / "out", checkpoint, optim={"name": "adamw", "lr": 0.1})
    torchelmo.load(checkpoint).save(tmp_path / "folder")
    with pytest.raises(MissingFileError, match=mentions("folder", "TensorFlow checkpoint")):
        Run(config(data, tmp_path / "out", tmp_path / "folder"))
