"""Checkpoints: complete or absent, verified before they are used, free of pickle."""

import errno
import json
import os
import re
import shutil
from dataclasses import replace

import pytest
import torch
from facts import mentions
from safetensors.torch import load_file, save_file
from tiny_runs import reopen, tiny_config

import torchelmo
from torchelmo.errors import OutputError, WeightsError
from torchelmo.files import content_hash
from torchelmo.lm.loop import pretrain
from torchelmo.lm.run import MODEL_FILES, Progress, publish
from torchelmo.runs.checkpoint import CARD, _card_hash, checkpoints, new_checkpoint, read_checkpoint


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


def sign(folder, **changes):
    """Change the card of a checkpoint, and give it and all files valid checksums again."""
    card = json.loads((folder / CARD).read_text())
    del card["sha256"]
    card["files"] = {path.name: content_hash(path) for path in folder.iterdir() if path.name != CARD}
    card |= changes
    (folder / CARD).write_text(json.dumps({**card, "sha256": _card_hash(card)}))


def change_tensors(folder, group, changes):
    """Replace tensors of a checkpoint (None: remove), with valid checksums."""
    tensors = load_file(folder / f"{group}.safetensors") | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / f"{group}.safetensors")
    sign(folder)


def test_the_last_ones_are_kept_and_each_is_a_model(finished):
    folders = checkpoints(finished.out)
    assert [folder.name for folder in folders] == ["step-00000003", "step-00000004", "step-00000005"]
    for folder in [*folders, finished.out, finished.out / "best"]:
        assert torchelmo.load(folder).vocabulary is not None
    names = {path.name for path in folders[0].iterdir()}
    assert names == {*MODEL_FILES, "checkpoint.json", "optimizer.safetensors", "state.safetensors"}


def test_everyone_who_may_read_the_folder_may_read_its_files(finished):
    mask = os.umask(0)
    os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in checkpoints(finished.out)[-1].iterdir()}
    assert set(modes.values()) == {0o666 & ~mask}, modes


def test_the_model_folder_has_the_weights_of_the_last_one(finished):
    last = checkpoints(finished.out)[-1]
    for name in MODEL_FILES:
        assert (finished.out / name).read_bytes() == (last / name).read_bytes()


def test_no_temporary_file_is_left(finished):
    assert not list(finished.out.rglob(".*"))


def test_it_holds_all_that_a_run_needs(finished):
    last = checkpoints(finished.out)[-1]
    found = read_checkpoint(last, "pretrain")
    progress = found.read_progress(Progress)
    assert (found.step, progress.step) == (5, 5)
    assert progress.seconds > 0
    assert progress.position["seed"] == finished.seed
    assert found.settings["optim"]["name"] == "adamw"
    bilm = torchelmo.load(finished.out)
    assert load_file(last / "optimizer.safetensors").keys() == {
        f"{name}/{what}" for name, _ in bilm.named_parameters() for what in ("step", "exp_avg", "exp_avg_sq")
    }
    state = load_file(last / "state.safetensors")
    assert tuple(state["cell"].shape) == (2, 2, 4, 8)
    assert bool(state["cell"].any())


def test_temporary_files_of_a_killed_process_are_removed(copied):
    for name in (
        ".model.safetensors.tmp",
        "best/.model.safetensors.4711.tmp",
        "checkpoints/.step-00000009.tmp/x",
        "checkpoints/.step-00000001.old/x",
    ):
        path = copied.out / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    reopen(copied)
    assert not list(copied.out.rglob(".*"))


def test_a_full_disk_leaves_no_half_of_a_checkpoint(tmp_path):
    def write_half() -> None:
        with new_checkpoint(tmp_path, 3, keep=1) as temporary:
            (temporary / "model.safetensors").write_text("half")
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OutputError, match=mentions("step-00000003", os.strerror(errno.ENOSPC))):
        write_half()
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_kill_before_the_model_folder_was_updated_is_repaired(copied):
    """The checkpoint is renamed first, the model folder is linked after that."""
    old = (checkpoints(copied.out)[0] / "model.safetensors").read_bytes()
    (copied.out / "model.safetensors").unlink()
    (copied.out / "model.safetensors").write_bytes(old)
    reopen(copied)
    last = checkpoints(copied.out)[-1]
    assert (copied.out / "model.safetensors").read_bytes() == (last / "model.safetensors").read_bytes()


def test_without_hard_links_files_are_copied(copied, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    first = checkpoints(copied.out)[0]
    publish(first, copied.out)
    assert (copied.out / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", [CARD, "optimizer.safetensors", "state.safetensors", "model.safetensors", "vocab.txt"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_one_is_named_and_the_one_before_is_offered(copied, name, damage):
    last = checkpoints(copied.out)[-1]
    whole = (last / name).read_bytes()
    middle = len(whole) // 2
    if damage == "gone":
        (last / name).unlink()
    elif damage == "cut":
        (last / name).write_bytes(whole[:middle])
    else:
        (last / name).write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(WeightsError, match=mentions("step-00000005", "Remove", "step-00000004")):
        reopen(copied)
    shutil.rmtree(last)
    assert reopen(copied) == 4


def test_a_later_format_or_another_kind_of_run_is_refused(copied):
    last = checkpoints(copied.out)[-1]
    sign(last, format=99)
    with pytest.raises(WeightsError, match=mentions("step-00000005", "format", 3, 99)):
        reopen(copied)
    sign(last, format=3, kind="task")
    with pytest.raises(WeightsError, match=mentions("step-00000005", "pretrain", "task")):
        reopen(copied)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", "5"),
        ("step", -1),
        ("seconds", -1.0),
        ("seconds", float("nan")),
        ("best", [1.0]),
        ("best", [1.0, 2.0, -3.0]),
        ("position", []),
        ("position", {}),
        ("threads", None),
        ("unknown", 1),
    ],
)
def test_wrong_progress_is_named(copied, name, value):
    last = checkpoints(copied.out)[-1]
    progress = json.loads((last / CARD).read_text())["progress"]
    sign(last, progress={**progress, name: value})
    with pytest.raises(WeightsError, match=mentions("step-00000005", name)):
        reopen(copied)


@pytest.mark.parametrize("card", [[], {}, None, {"format": 3}, {"format": 3, "kind": 1, "step": {}}])
def test_a_card_that_is_something_else_is_an_error_of_torchelmo(copied, card):
    (checkpoints(copied.out)[-1] / CARD).write_text(json.dumps(card))
    with pytest.raises(WeightsError, match=mentions("step-00000005")):
        reopen(copied)


NAME = "encoder.embedding"
CRAFTED = {
    # A fused AdamW would write beyond the end of these: memory corruption.
    "small moments": ("optimizer", {f"{NAME}/exp_avg": torch.zeros(1), f"{NAME}/exp_avg_sq": torch.zeros(1)}),
    "large moment": ("optimizer", {f"{NAME}/exp_avg": torch.zeros(262, 99)}),
    "integers": ("optimizer", {f"{NAME}/exp_avg": torch.zeros(262, 4, dtype=torch.int32)}),
    "not finite": ("optimizer", {f"{NAME}/exp_avg": torch.full((262, 4), torch.nan)}),
    "negative squares": ("optimizer", {f"{NAME}/exp_avg_sq": torch.full((262, 4), -1.0)}),
    "missing moment": ("optimizer", {f"{NAME}/exp_avg": None}),
    "unknown moment": ("optimizer", {"nothing/exp_avg": torch.zeros(1)}),
    "scalar weight": ("model", {NAME: torch.tensor(0.5)}),  # which copy_ would broadcast
    "weight not finite": ("model", {NAME: torch.full((262, 4), torch.inf)}),
    "integer weight": ("model", {NAME: torch.zeros(262, 4, dtype=torch.int32)}),
    "missing weight": ("model", {NAME: None}),
    "state of another shape": ("state", {"cell": torch.zeros(2, 2, 3, 8)}),
    "state not finite": ("state", {"cell": torch.full((2, 2, 4, 8), torch.nan)}),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_tensors_are_refused(copied, name):
    group, changes = CRAFTED[name]
    change_tensors(checkpoints(copied.out)[-1], group, changes)
    with pytest.raises(WeightsError, match=mentions("step-00000005", next(iter(changes)))):
        reopen(copied)


def test_a_huge_model_is_refused_before_memory_is_allocated(copied):
    last = checkpoints(copied.out)[-1]
    config = json.loads((last / "config.json").read_text())
    config["model"]["cell_dim"] = 10**5
    (last / "config.json").write_text(json.dumps(config))
    sign(last)
    with pytest.raises(WeightsError, match=mentions("step-00000005")):
        reopen(copied)


def test_a_place_that_cannot_be_written_is_named(finished, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=mentions(tmp_path / "file" / "run")):
        pretrain(replace(finished, out=tmp_path / "file" / "run"))


def test_another_number_of_threads_is_allowed_with_a_warning(copied, caplog):
    last = checkpoints(copied.out)[-1]
    progress = json.loads((last / CARD).read_text())["progress"]
    sign(last, progress={**progress, "threads": torch.get_num_threads() + 7})
    reopen(copied)
    assert re.search(mentions(torch.get_num_threads() + 7, torch.get_num_threads()), caplog.text)
