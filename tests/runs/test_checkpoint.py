"""Checkpoints: whole or not there, complete, and free of pickle."""

import errno
import json
import os
import re
import shutil
from dataclasses import replace

import pytest
import torch
from facts import mentions
from tiny_runs import tiny_config

import torchelmo
from torchelmo.errors import OutputError, WeightsError
from torchelmo.lm.loop import pretrain
from torchelmo.lm.run import open_run
from torchelmo.runs import checkpoint as files
from torchelmo.runs.distributed import World


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """Five steps with a checkpoint after each, the last three of them kept."""
    config = tiny_config(data, tmp_path_factory.mktemp("finished") / "run", steps=5, checkpoint_every=1, keep=3)
    pretrain(config)
    return config


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished.out, tmp_path / "run")
    return replace(finished, out=tmp_path / "run")


def test_the_last_ones_are_kept_and_each_is_a_model(finished):
    folders = files.checkpoints(finished.out)
    assert [folder.name for folder in folders] == ["step-00000003", "step-00000004", "step-00000005"]
    for folder in [*folders, finished.out, finished.out / "best"]:
        assert torchelmo.load(folder).vocabulary is not None
    names = {path.name for path in folders[0].iterdir()}
    assert names == {"config.json", "model.safetensors", "vocab.txt", "training.json", "training.safetensors"}


def test_the_model_folder_has_the_weights_of_the_last_one(finished):
    last = files.checkpoints(finished.out)[-1]
    for name in files.MODEL_FILES:
        assert (finished.out / name).read_bytes() == (last / name).read_bytes()


def test_nothing_half_done_is_left(finished):
    assert not list(finished.out.rglob(".*"))


def test_it_holds_all_that_a_run_needs(finished):
    found = files.read_checkpoint(files.checkpoints(finished.out)[-1])
    assert found.progress.step == 5
    assert found.progress.seconds > 0
    assert found.progress.position["seed"] == finished.seed
    assert found.settings["optim"]["name"] == "adamw"
    bilm = torchelmo.load(finished.out)
    assert found.optimizer.keys() == {
        f"{name}/{what}" for name, _ in bilm.named_parameters() for what in ("step", "exp_avg", "exp_avg_sq")
    }
    assert tuple(found.state.cell.shape) == (2, 2, 4, 8)
    assert bool(found.state.cell.any())


def test_what_a_killed_process_left_half_done_is_removed(copied):
    for name in (
        ".model.safetensors.tmp",
        "best/.model.safetensors.4711.tmp",
        "checkpoints/.step-00000009.tmp/x",
        "checkpoints/.step-00000001.old/x",
    ):
        path = copied.out / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    open_run(copied, World(), resume=True)
    assert not list(copied.out.rglob(".*"))


def test_a_full_disk_leaves_no_half_of_a_checkpoint(tmp_path):
    def write_half() -> None:
        with files.new_checkpoint(tmp_path, 3, keep=1) as temporary:
            (temporary / "model.safetensors").write_text("half")
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OutputError, match=mentions("step-00000003", os.strerror(errno.ENOSPC))):
        write_half()
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_kill_before_the_model_folder_was_updated_is_made_good(copied):
    """The checkpoint is renamed first, the model folder is linked after."""
    old = (files.checkpoints(copied.out)[0] / "model.safetensors").read_bytes()
    (copied.out / "model.safetensors").unlink()
    (copied.out / "model.safetensors").write_bytes(old)
    open_run(copied, World(), resume=True)
    last = files.checkpoints(copied.out)[-1]
    assert (copied.out / "model.safetensors").read_bytes() == (last / "model.safetensors").read_bytes()


def test_without_hard_links_files_are_copied(copied, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    first = files.checkpoints(copied.out)[0]
    files.publish(first, copied.out)
    assert (copied.out / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["training.json", "training.safetensors", "model.safetensors"])
def test_a_damaged_one_is_named_and_the_one_before_is_offered(copied, name):
    last = files.checkpoints(copied.out)[-1]
    whole = (last / name).read_bytes()
    (last / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsError, match=mentions("step-00000005")):
        open_run(copied, World(), resume=True)
    shutil.rmtree(last)
    assert open_run(copied, World(), resume=True).progress.step == 4


def test_a_missing_file_is_named(copied):
    (files.checkpoints(copied.out)[-1] / "training.safetensors").unlink()
    with pytest.raises(WeightsError, match=mentions("step-00000005", "training.safetensors")):
        open_run(copied, World(), resume=True)


def test_a_later_format_is_refused(copied):
    path = files.checkpoints(copied.out)[-1] / "training.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(WeightsError, match=mentions("step-00000005", "format", 1, 99)):
        open_run(copied, World(), resume=True)


def test_a_place_that_cannot_be_written_is_named(finished, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=mentions(tmp_path / "file" / "run")):
        open_run(replace(finished, out=tmp_path / "file" / "run"), World())


def test_other_threads_are_allowed_but_said(copied, caplog):
    path = files.checkpoints(copied.out)[-1] / "training.json"
    card = json.loads(path.read_text())
    card["progress"]["threads"] = torch.get_num_threads() + 7
    path.write_text(json.dumps(card))
    open_run(copied, World(), resume=True)
    assert re.search(mentions(torch.get_num_threads() + 7, torch.get_num_threads()), caplog.text)
