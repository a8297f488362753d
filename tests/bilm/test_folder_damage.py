"""Damaged and contradictory model folders, and models whose files change after loading."""

import json
import subprocess
import sys
import time

import pytest
import torch
from facts import mentions
from official_files import WORDS
from safetensors.torch import load_file, save_file
from tiny_folders import folder_bilm

import torchelmo
from torchelmo import BiLM
from torchelmo.errors import (
    ConfigError,
    InputError,
    MissingFileError,
    TorchelmoError,
    WeightsError,
)
from torchelmo.text.vocabulary import Vocabulary


@pytest.fixture
def bilm() -> BiLM:
    return folder_bilm()


def test_no_weights(bilm, tmp_path):
    bilm.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(MissingFileError, match=mentions(tmp_path / "model.safetensors")):
        torchelmo.load(tmp_path)


@pytest.mark.parametrize("percent", [0, 1, 10, 50, 99])
def test_weights_that_are_cut_short(percent, bilm, tmp_path):
    bilm.save(tmp_path)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * percent // 100])
    with pytest.raises(WeightsError, match=mentions("model.safetensors")):
        torchelmo.load(tmp_path)


@pytest.mark.parametrize(
    "data", [b"\xff" * 100, b"\x05\x00\x00\x00\x00\x00\x00\x00nojsn", b"\x02" + b"\x00" * 7 + b"{}"]
)
def test_weights_that_are_something_else(data, bilm, tmp_path):
    bilm.save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(WeightsError, match=mentions("model.safetensors")):
        torchelmo.load(tmp_path)


def change(folder, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "tensor", "facts"),
    [
        ("softmax.bias", None, ["softmax.bias"]),
        ("surprise", torch.zeros(2), ["surprise", "config.json"]),
        ("softmax.bias", torch.zeros(3), ["softmax.bias", (8,), "config.json", (3,)]),
        ("softmax.bias", torch.zeros(8).long(), ["softmax.bias", "F16", "BF16", "F32", "F64", "I64"]),
        ("softmax.bias", torch.full((8,), torch.nan), ["softmax.bias", "NaN", "Inf"]),
        ("softmax.bias", torch.full((8,), -torch.inf), ["softmax.bias", "NaN", "Inf"]),
        ("softmax.bias", torch.full((8,), 1e300, dtype=torch.float64), ["softmax.bias", "NaN", "Inf"]),
    ],
)
def test_tensors_that_do_not_fit(name, tensor, facts, bilm, tmp_path):
    bilm.save(tmp_path)
    change(tmp_path, name, tensor)
    with pytest.raises(WeightsError, match=mentions("model.safetensors", *facts)):
        torchelmo.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("{", ["JSON"]),
        ("[" * 100_000, ["JSON"]),
        ("[]", ["'model'"]),
        ('{"format": 1}', ["'model'"]),
        ('{"format": 2, "model": {}}', ["format", 1, 2]),
        ('{"format": 1, "model": {"n_layres": 2}}', ["'n_layres'", "Did you mean 'n_layers'"]),
        ('{"format": 1, "model": {"n_layers": "two"}}', ["n_layers", "'two'"]),
        ('{"format": 1, "model": {"n_layers": 0}}', ["n_layers", 1, 0]),
    ],
)
def test_a_wrong_config(text, facts, bilm, tmp_path):
    bilm.save(tmp_path)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=mentions("config.json", *facts)):
        torchelmo.load(tmp_path)


def test_config_and_weights_of_different_models(bilm, tmp_path):
    bilm.save(tmp_path)
    card = json.loads((tmp_path / "config.json").read_text())
    card["model"]["cell_dim"] = 6
    (tmp_path / "config.json").write_text(json.dumps(card))
    with pytest.raises(WeightsError, match=mentions("model.safetensors", (4, 24), "config.json", (4, 20))):
        torchelmo.load(tmp_path)


def test_a_vocabulary_of_another_model(bilm, tmp_path):
    bilm.save(tmp_path)
    Vocabulary(WORDS[:4]).write(tmp_path / "vocab.txt")
    with pytest.raises(InputError, match=mentions("vocab.txt", 8, 4)):
        torchelmo.load(tmp_path)


def test_every_error_is_of_the_family(tmp_path):
    with pytest.raises(TorchelmoError):
        torchelmo.load(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_layers", 100_000),
        ("n_layers", 10**9),
        ("n_highway", 100_000),
        ("cell_dim", 10**18),
        ("cell_dim", 10**30),
        ("projection_dim", 2**63),
        ("n_characters", 10**9),
        ("max_characters", 10**9),
        ("softmax_words", 10**12),
        ("cell_clip", 10**400),
        ("cell_clip", 1e300),
        ("filters", [[1, 2]] * 5_000),
        ("filters", [[1, 10**15]]),
    ],
)
def test_numbers_out_of_range_are_refused_at_once(key, value, bilm, tmp_path):
    bilm.save(tmp_path)
    card = json.loads((tmp_path / "config.json").read_text())
    card["model"][key] = value
    (tmp_path / "config.json").write_text(json.dumps(card))
    start = time.monotonic()
    with pytest.raises(ConfigError, match=mentions("config.json", key)):
        torchelmo.load(tmp_path)
    assert time.monotonic() - start < 5


def test_a_huge_config_is_refused(bilm, tmp_path):
    bilm.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"format": 1, "model": {"filters": [[1, 2]] * 200_000}}))
    with pytest.raises(ConfigError, match=mentions("config.json", "larger")):
        torchelmo.load(tmp_path)


CHANGE_THE_FILE = """
import os, sys
from pathlib import Path
import torch
import torchelmo

folder, how = Path(sys.argv[1]), sys.argv[2]
bilm = torchelmo.load(folder)
before = {name: tensor.clone() for name, tensor in bilm.state_dict().items()}
file = folder / "model.safetensors"
if how == "truncate":
    os.truncate(file, 0)
else:
    with open(file, "r+b") as stream:  # in place, as `cp` does
        stream.write(bytes(file.stat().st_size))
assert all(torch.equal(tensor, before[name]) for name, tensor in bilm.state_dict().items())
torchelmo.Elmo(bilm).embed([["a", "bow"]])
print("unchanged")
"""


@pytest.mark.parametrize("how", ["truncate", "rewrite"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_loaded_model_does_not_depend_on_its_file(how, dtype, bilm, tmp_path):
    bilm.save(tmp_path, dtype=dtype)
    command = [sys.executable, "-c", CHANGE_THE_FILE, tmp_path, how]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.split()) == (0, ["unchanged"]), run.stderr
