"""Two processes on gloo: the same steps as one process on the joined batch."""

import json
import os
import subprocess
import sys

import pytest
import torch
from facts import mentions
from safetensors.torch import load_file
from tiny_runs import MODEL, tiny_config
from torch import nn

from torchelmo.config import config_to_dict
from torchelmo.errors import ConfigError
from torchelmo.lm.loop import pretrain, read_evaluations
from torchelmo.runs.checkpoint import checkpoints
from torchelmo.runs.distributed import World, parallel
from torchelmo.runtime import choose_device

# In float64 the order of sums is seen only far behind the comma: what differs is a fault.
SCRIPT = """
import json, sys, torch
torch.set_default_dtype(torch.float64)
from torchelmo.config import build_config
from torchelmo.lm.config import PretrainConfig
from torchelmo.runs.distributed import distributed_context
from torchelmo.lm.loop import pretrain, read_evaluations
with distributed_context("cpu"):
    for settings in json.load(open(sys.argv[1])):
        pretrain(build_config(PretrainConfig, settings), resume=True)
"""
TIED = {"input": "words", "tied_softmax": True, "projection_dim": 6, "cell_dim": 8}
KINDS = {
    "sampled": {},
    "full": {"loss": "full"},
    "tied": {"model": TIED, "clip": 0.5},
    "frozen": {"trained": "softmax"},
    "muon": {"optim": {"name": "muon", "lr": 0.02}},
    "masked": {"objective": "masked", "model": {**MODEL, "joint": True}},
    "masked, tied": {"objective": "masked", "model": TIED, "masks_per_window": 3},
}


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run_on_two_ranks(tmp_path, configs):
    """All the runs by the same two processes: starting them takes longer than the runs do."""
    settings, script = tmp_path / "runs.json", tmp_path / "script.py"
    settings.write_text(json.dumps([config_to_dict(config) for config in configs]))
    script.write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*TORCHRUN, str(script), str(settings)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr


@pytest.fixture(scope="module")
def ended(data, tmp_path_factory):
    """The last checkpoint of each kind of run: one process; two; two that end half-way, then one."""
    tmp_path = tmp_path_factory.mktemp("ranks")

    def configs(name, steps=4):
        settings = {"dropout": 0.0, "evaluate_every": 2, "optim": {"lr": 0.1}, "clip": 1.0, "steps": steps}
        return [tiny_config(data, tmp_path / name / kind, **{**settings, **KINDS[kind]}) for kind in KINDS]

    run_on_two_ranks(tmp_path, [*configs("two"), *configs("both", steps=2)])
    torch.set_default_dtype(torch.float64)
    try:
        for config in [*configs("one"), *configs("both")]:
            pretrain(config, resume=True)
    finally:
        torch.set_default_dtype(torch.float32)
    return {(name, kind): checkpoints(tmp_path / name / kind)[-1] for name in ("one", "two", "both") for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["two", "both"])
def test_two_ranks_take_the_steps_of_one(ended, name, kind):
    """Adagrad's sums of squares are in the files: the gradients were those of the joined batch, row by row."""
    for file in ("model.safetensors", "optimizer.safetensors", "state.safetensors"):
        expected, found = (load_file(ended[which, kind] / file) for which in ("one", name))
        assert expected.keys() == found.keys()
        for key, tensor in expected.items():
            assert tensor.dtype in (torch.float64, torch.float32)
            if key.endswith("/step"):  # an integer, which is read in the default dtype
                tensor, found[key] = tensor.double(), found[key].double()
            torch.testing.assert_close(found[key], tensor, rtol=1e-9, atol=1e-12, msg=f"{file}: {key}")


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_measure_the_held_out_part_together(ended, kind):
    one, two = (read_evaluations(ended[name, kind].parent.parent) for name in ("one", "two"))
    assert [found["step"] for found in two] == [2, 4]
    for expected, found in zip(one, two, strict=True):
        for name in (name for name in expected if name.startswith("heldout")):
            assert found[name] == pytest.approx(expected[name], rel=1e-5)


def test_the_runs_that_are_compared_did_learn(ended):
    """Else the comparison would say nothing."""
    touched = {"tied": "encoder.embedding/sum", "muon": "forward_lstms.0.state_weight/momentum"}
    for kind in KINDS:
        found = load_file(ended["one", kind] / "optimizer.safetensors")[touched.get(kind, "softmax.bias/sum")]
        start = 0.0 if kind == "muon" else 1.0
        assert float((found - start).abs().max()) > 1e-6


def test_only_the_softmax_is_trained_where_the_rest_is_frozen(ended):
    tensors = load_file(ended["one", "frozen"] / "optimizer.safetensors")
    trained = {name.split("/")[0] for name in tensors}
    assert trained == {"softmax.weight", "softmax.bias"}


def test_a_world_of_one_changes_nothing():
    world, module = World(), nn.Linear(2, 2)
    assert world.sum_over_ranks([1.5, 2.0]) == [1.5, 2.0]
    assert parallel(module, world, excluded_parameters=[]) is module
    tensor = torch.arange(6.0).view(2, 3)
    assert world.gather(tensor, dim=1) is tensor
    assert torch.equal(world.share(tensor, dim=1), tensor)


@pytest.mark.parametrize("n_rows", [0, 1, 5, 8])
def test_ranks_map_their_shares(n_rows, monkeypatch):
    """The function sees each row on one rank only, and rows of zeros beyond the last one."""
    whole, shares = torch.arange(1.0, n_rows + 1).unsqueeze(1), []
    monkeypatch.setattr(World, "gather", lambda self, part, dim: shares.append(part) or part)
    for rank in range(4):
        World(rank, 4).map_shares(lambda rows: 2 * rows, whole)
    assert len({len(share) for share in shares}) == 1
    assert torch.equal(torch.cat(shares)[:n_rows], 2 * whole)
    assert not torch.cat(shares)[n_rows:].any()


def test_each_rank_takes_its_share_of_the_rows():
    whole = torch.arange(8).view(1, 8)
    assert [World(rank, 4).share(whole, dim=1).tolist() for rank in range(4)] == [
        [[0, 1]],
        [[2, 3]],
        [[4, 5]],
        [[6, 7]],
    ]


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_every_rank_has_a_gpu_of_its_own(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert choose_device(name) == torch.device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device(name) == torch.device("cuda:3")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ConfigError, match=mentions("device", "auto", "cpu", "cuda", "'gpu'")):
        choose_device("gpu")
    with pytest.raises(ConfigError, match=mentions("device", "'cuda'", "auto", "cpu")):
        choose_device("cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=mentions("device", "'mps'", "auto", "cpu")) as error:
        choose_device("mps")
    assert len(str(error.value)) < 200  # PyTorch's own message has more than 1,300 characters
