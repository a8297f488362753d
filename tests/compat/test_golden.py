"""The numbers of AllenNLP 2.10.1 for a tiny model: golden/README.md says how they were made."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from official_files import Official

from torchelmo.compat.allennlp import Elmo, batch_to_ids

GOLDEN = Path(__file__).parent / "golden"
INPUTS = json.loads((GOLDEN / "tiny.json").read_text(encoding="utf-8"))
CALLS = INPUTS["calls"]


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    with np.load(GOLDEN / "tiny.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(scope="module")
def files(golden: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    arrays = {name.removeprefix("official/"): a for name, a in golden.items() if name.startswith("official/")}
    return Official(INPUTS["options"], arrays).write(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("call", range(len(CALLS)))
def test_ids(golden, call):
    ids = batch_to_ids(CALLS[call])
    assert ids.dtype == torch.int64
    np.testing.assert_array_equal(ids.numpy(), golden[f"ids/{call}"])


@pytest.mark.parametrize("setting", INPUTS["settings"])
def test_vectors_over_batches_that_grow_and_shrink(golden, files, setting):
    elmo = Elmo(*files, 1, dropout=0.0, **INPUTS["settings"][setting])
    for i, call in enumerate(CALLS):
        assert_output(elmo(batch_to_ids(call)), golden, f"{setting}/{i}")


def test_the_last_call_shows_that_state_was_carried(golden):
    """The first and the last call are of the same sentences: without state the test above could not tell."""
    assert np.abs(golden["plain/0/0"] - golden["plain/4/0"]).max() > 1e-3


def test_input_with_an_extra_dimension(golden, files):
    elmo = Elmo(*files, 1, dropout=0.0)
    assert_output(elmo(batch_to_ids(CALLS[3]).view(2, 2, 3, 50)), golden, "four")


def test_cached_words_and_one_that_is_not(golden, files):
    elmo = Elmo(*files, 1, dropout=0.0, vocab_to_cache=INPUTS["vocabulary"])
    output = elmo(batch_to_ids(CALLS[0]), torch.tensor(INPUTS["word_inputs"]))
    assert_output(output, golden, "cached")


def test_a_checkpoint_of_allennlp_loads_and_gives_its_vectors(golden, files):
    checkpoint = {
        name.removeprefix("checkpoint/"): torch.from_numpy(array)
        for name, array in golden.items()
        if name.startswith("checkpoint/")
    }
    elmo = Elmo(*files, 2, dropout=0.0)
    elmo(batch_to_ids(CALLS[0]))  # what was computed before must leave nothing behind
    elmo.reset_states()
    elmo.load_state_dict(checkpoint)
    assert_output(elmo(batch_to_ids(CALLS[1])), golden, "trained")
    assert list(elmo.state_dict()) == list(checkpoint)
    for name, tensor in elmo.state_dict().items():
        assert torch.equal(tensor, checkpoint[name]), name


def assert_output(output: dict[str, Any], golden: dict[str, Any], name: str) -> None:
    assert output.keys() == {"elmo_representations", "mask"}
    assert output["mask"].dtype == torch.bool
    np.testing.assert_array_equal(output["mask"].numpy(), golden[f"{name}/mask"])
    for k, representation in enumerate(output["elmo_representations"]):
        np.testing.assert_allclose(representation.detach().numpy(), golden[f"{name}/{k}"], rtol=0, atol=1e-5)
    assert f"{name}/{len(output['elmo_representations'])}" not in golden
