"""A run that was stopped or killed goes on exactly: in the end it has the same bytes as one that was not."""

import json
import multiprocessing
import random
import signal
import time
from dataclasses import replace

import pytest
from tiny_runs import MODEL, stop_after, tiny_config

from torchelmo.lm.loop import pretrain
from torchelmo.runs.checkpoint import checkpoints

WORDS = {"input": "words", "tied_softmax": True, "projection_dim": 6, "cell_dim": 8}


def end_of(out):
    """Every tensor and every number but the clock's that a finished run leaves."""
    last = checkpoints(out)[-1]
    progress = json.loads((last / "checkpoint.json").read_text())["progress"]
    del progress["seconds"]
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return (
        (last / "model.safetensors").read_bytes(),
        (last / "optimizer.safetensors").read_bytes(),
        (last / "state.safetensors").read_bytes(),
        (out / "best" / "model.safetensors").read_bytes(),
        progress,
        [(record["step"], record["lr"], record.get("heldout")) for record in metrics],
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": "full", "optim": {}},
        {"reset_state": True},
        {"optim": {"name": "muon", "lr": 0.02, "decay": "linear"}},
        {"precision": "bfloat16"},
        {"model": WORDS, "optim": {"name": "adam", "lr": 0.01, "decay": "cosine", "warmup": 3.0}},
        {"objective": "masked", "masks_per_window": 3, "model": {**MODEL, "joint": True}},
    ],
    ids=["sampled, adamw", "full, adagrad", "reset state", "muon", "bfloat16", "words, tied, adam", "masked"],
)
def test_stopped_and_resumed_is_as_if_never_stopped(data, tmp_path, changes):
    settings = {"steps": 12, "log_every": 1, "evaluate_every": 4, "checkpoint_every": 100, **changes}
    straight, broken = (tiny_config(data, tmp_path / name, **settings) for name in ("straight", "broken"))
    pretrain(straight)
    for step in (3, 8):
        stop_after(broken, step, resume=True)
        assert checkpoints(broken.out)[-1].name == f"step-{step:08d}"
    pretrain(broken, resume=True)
    assert end_of(broken.out) == end_of(straight.out)


def kill_and_resume(data, tmp_path, n_kills, seed):
    config = tiny_config(
        data, tmp_path / "killed", steps=60, log_every=7, evaluate_every=20, checkpoint_every=3, keep=2
    )
    straight = replace(config, out=tmp_path / "straight")
    pretrain(straight)
    # Children of a server that has imported everything (PyTorch imports its compiler at the first step) start at
    # once, and share no thread with this process.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torchelmo.lm.loop", "safetensors.torch", "torch._dynamo"])
    pick, kills, resumed_from = random.Random(seed), 0, []
    while kills < n_kills or saved_step(config.out) < config.steps:
        before = saved_step(config.out)
        child = context.Process(target=pretrain, args=(config,), kwargs={"resume": True})
        child.start()
        if kills < n_kills:
            # Some die while they start, most at some moment after their first checkpoint.
            late = kills == 0 or pick.random() < 0.8
            while late and child.is_alive() and saved_step(config.out) == before:
                time.sleep(0.005)
            child.join(pick.uniform(0.0, 0.1))
            if child.is_alive():
                child.kill()
                kills += 1
                resumed_from.append(before)
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
        assert saved_step(config.out) >= before
        if kills < n_kills and saved_step(config.out) == config.steps:  # it was faster than the kills: once more
            assert end_of(config.out) == end_of(straight.out)
            config.out.rename(tmp_path / f"ended-before-kill-{kills}")
    assert any(0 < step < config.steps for step in resumed_from)
    assert end_of(config.out) == end_of(straight.out)


def saved_step(out):
    saved = checkpoints(out)
    return int(saved[-1].name.removeprefix("step-")) if saved else 0


def test_killed_at_random_moments_and_resumed(data, tmp_path):
    kill_and_resume(data, tmp_path, n_kills=3, seed=1)


@pytest.mark.slow
def test_killed_twenty_times_and_resumed(data, tmp_path):
    kill_and_resume(data, tmp_path, n_kills=20, seed=2)
