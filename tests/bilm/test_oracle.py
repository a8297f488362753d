"""Every kind of BiLM, on every path, against the equations in plain NumPy."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from facts import mentions
from official_files import WORDS, Official, random_official
from oracle import Oracle

from torchelmo import BiLM, Elmo
from torchelmo.bilm.model import BiLMState
from torchelmo.errors import InputError

SENTENCES = [
    ["the", "bow", "and", "arrow"],
    ["a"],
    ["naïve", "", "incomprehensibilities", "日本語", "<S>", "bow", "the"],
    ["arrow", "a", "the"],
]
NO_PROJECTION = {"char_projection": False, "filters": ((1, 2), (3, 3)), "projection_dim": 5}
KINDS = {
    "relu": {},
    "tanh": {"activation": "tanh"},
    "no highway": {"n_highway": 0},
    "highway left out": {"n_highway": None},
    "two highways": {"n_highway": 2},
    "no character projection": NO_PROJECTION,
    "tanh without highway or projection": {"activation": "tanh", "n_highway": 0, **NO_PROJECTION},
    "one layer": {"n_layers": 1},
    "three layers": {"n_layers": 3},
    "not residual": {"residual": False},
    "three layers, not residual": {"n_layers": 3, "residual": False},
    "no clips": {"cell_clip": None, "proj_clip": None, "scale": 1.5},
    "clips of zero are no clips": {"cell_clip": 0, "proj_clip": 0, "scale": 1.5},
    "one clip": {"cell_clip": None, "proj_clip": 0.5, "scale": 1.5},
    "other clip": {"cell_clip": 0.5, "proj_clip": None, "scale": 1.5},
    "words": {"words": len(WORDS)},
    "words, three layers": {"words": len(WORDS), "n_layers": 3},
    "50 characters": {"max_characters": 50},
    "few characters": {"max_characters": 4},
    "filters as wide as a token": {"max_characters": 6, "filters": ((6, 4), (1, 2))},
    "cell narrower than the projection": {"cell_dim": 2, "projection_dim": 6},
    "261 characters": {"n_characters": 261},
    "262 rows": {"char_rows": 262},
}


def oracle_of(official: Official, direction: str = "both") -> Oracle:
    return Oracle(
        official.options,
        official.arrays,
        direction=direction,
        vocabulary=WORDS if "embedding" in official.arrays else None,
    )


def assert_agree(bilm: BiLM, oracle: Oracle, *, path: str, wild: bool = False) -> None:
    """In float64, over two batches with carried state, and in float32.

    A model with large weights (`wild`) blows up the rounding errors from step to step.
    """
    for model, tolerance, rounds in (
        (copy.deepcopy(bilm).double(), 1e-9 if wild else 1e-11, 2),
        (bilm, 1e-3 if wild else 1e-5, 1),
    ):
        state, states = None, [None] * len(SENTENCES)
        for shift in range(rounds):
            batch = SENTENCES[shift:] + SENTENCES[:shift]
            with torch.no_grad():
                out = model(Elmo(model).encode(batch), state, path=path)
            state = out.state
            for row, tokens in enumerate(batch):
                expected, states[row] = oracle.layers(tokens, states[row])
                n = len(tokens) + 2
                np.testing.assert_allclose(out.layers[:, row, :n].numpy(), expected, rtol=0, atol=tolerance)
                assert out.mask[row].tolist() == [True] * n + [False] * (out.mask.shape[1] - n)
                assert not out.layers[:, row, n:].any()
                for k, d in enumerate(oracle.directions):
                    np.testing.assert_allclose(state.hidden[k, :, row], states[row][d].hidden, rtol=0, atol=tolerance)
                    np.testing.assert_allclose(state.cell[k, :, row], states[row][d].cell, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_oracle(kind, path, tune, load_random):
    official = random_official(**KINDS[kind])
    assert_agree(tune(load_random(official)), oracle_of(official), path=path, wild="scale" in KINDS[kind])


@pytest.mark.parametrize("limits", [(3, 3), (0.25, 0.4)])
def test_agrees_where_both_clips_are_hit(limits, path, tune, load_random):
    official = random_official(cell_clip=limits[0], proj_clip=limits[1], scale=2.0)
    oracle = oracle_of(official)
    assert_agree(tune(load_random(official)), oracle, path=path, wild=True)
    assert oracle.cell_clips > 0
    assert oracle.projection_clips > 0


def test_agrees_where_no_clip_is_hit(path, tune, load_random):
    official = random_official(scale=0.1)
    oracle = oracle_of(official)
    assert_agree(tune(load_random(official)), oracle, path=path)
    assert oracle.cell_clips == oracle.projection_clips == 0


def test_forward_only_official_file(path, tune, load_random):
    official = random_official(bidirectional=False)
    bilm = tune(load_random(official))
    assert bilm.config.direction == "forward"
    assert_agree(bilm, oracle_of(official, "forward"), path=path)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("words", [0, len(WORDS)])
def test_one_direction(direction, words, path, tune, load_random):
    official = random_official(n_layers=3, words=words)
    both = load_random(official)
    bilm = tune(BiLM(replace(both.config, direction=direction), both.vocabulary))
    bilm.load_state_dict({k: v for k, v in both.state_dict().items() if k in bilm.state_dict()})
    assert_agree(bilm, oracle_of(official, direction), path=path)


def test_many_random_shapes(path, tune, load_random):
    rng = np.random.default_rng(5)
    for seed in range(8):
        projection_dim = int(rng.integers(1, 7))
        official = random_official(
            seed,
            filters=tuple((int(w), int(c)) for w, c in rng.integers(1, 5, (int(rng.integers(1, 5)), 2))),
            char_dim=int(rng.integers(1, 5)),
            n_highway=int(rng.integers(0, 3)),
            activation=str(rng.choice(["relu", "tanh"])),
            max_characters=int(rng.integers(5, 51)),
            projection_dim=projection_dim,
            cell_dim=int(rng.integers(1, 9)),
            n_layers=int(rng.integers(1, 4)),
            residual=bool(rng.integers(2)),
            cell_clip=float(rng.choice([0.5, 3.0])),
            proj_clip=float(rng.choice([0.5, 3.0])),
            scale=float(rng.choice([0.3, 2.0])),
        )
        assert_agree(tune(load_random(official)), oracle_of(official), path=path, wild=True)


MASKED = {
    "two layers": {},
    "three layers, not residual": {"n_layers": 3, "residual": False},
    "one layer": {"n_layers": 1},
    "words": {"words": len(WORDS), "n_layers": 3},
}


def masked_model(official: Official, both: BiLM, *, joint: bool) -> tuple[BiLM, Oracle]:
    """A masked model with the weights of `both`, and the oracle for it; joint layers have wider weights."""
    rng, dim = np.random.default_rng(3), both.config.projection_dim
    bilm = BiLM(replace(both.config, objective="masked", joint=joint), both.vocabulary)
    arrays = {**official.arrays, "mask_vector": rng.standard_normal(dim).astype(np.float32)}
    tensors = both.state_dict() | {"mask_vector": torch.from_numpy(arrays["mask_vector"])}
    for d, direction in enumerate(("forward", "backward")):
        for j in range(1, both.config.n_layers if joint else 0):
            name = f"RNN_{d}/RNN/MultiRNNCell/Cell{j}/LSTMCell/W_0"
            arrays[name] = (0.6 * rng.standard_normal((3 * dim, 4 * both.config.cell_dim))).astype(np.float32)
            tensors[f"{direction}_lstms.{j}.input_weight"] = torch.from_numpy(arrays[name][: 2 * dim])
            tensors[f"{direction}_lstms.{j}.state_weight"] = torch.from_numpy(arrays[name][2 * dim :])
    bilm.load_state_dict(tensors)
    words = WORDS if "embedding" in arrays else None
    return bilm, Oracle(official.options, arrays, vocabulary=words, joint=joint)


@pytest.mark.parametrize("joint", [True, False], ids=["joint", "not joint"])
@pytest.mark.parametrize("kind", MASKED)
def test_masked_models(kind, joint, path, tune, load_random):
    official = random_official(**MASKED[kind])
    bilm, oracle = masked_model(official, load_random(official), joint=joint)
    assert_agree(tune(bilm), oracle, path=path)


@pytest.mark.parametrize("boundaries", [True, False])
def test_hidden_tokens_are_read_as_the_mask_vector(boundaries, path, tune, load_random):
    official = random_official()
    bilm, oracle = masked_model(official, load_random(official), joint=True)
    bilm = tune(bilm.double())
    hidden = [(1, 3), (), (0, 5), (2,)]
    batch = SENTENCES if boundaries else [["<S>", *tokens, "</S>"] for tokens in SENTENCES]
    ids = Elmo(bilm).encode(batch)
    masked = torch.zeros(ids.shape[:2], dtype=torch.bool)
    for row, places in enumerate(hidden):
        masked[row, [place + (not boundaries) for place in places]] = True
    with torch.no_grad():
        layers = bilm(ids, masked=masked, boundaries=boundaries, path=path).layers
    for row, tokens in enumerate(SENTENCES):
        expected, _ = oracle.layers(tokens, hidden=hidden[row])
        np.testing.assert_allclose(layers[:, row, : len(tokens) + 2], expected, rtol=0, atol=1e-11)


def test_only_a_masked_model_has_a_mask(tiny_bilm, load_random):
    ids = Elmo(tiny_bilm).encode([["a", "bow"]])
    with pytest.raises(InputError, match=mentions("objective", "masked")):
        tiny_bilm(ids, masked=torch.ones(1, 2, dtype=torch.bool))
    official = random_official()
    bilm, _ = masked_model(official, load_random(official), joint=True)
    ids = Elmo(bilm).encode([["a", "bow"]])
    with pytest.raises(InputError, match=mentions("masked", (1, 4), (1, 5))):
        bilm(ids, masked=torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(InputError, match=mentions("booleans", torch.int64)):
        bilm(ids, masked=torch.ones(1, 2, dtype=torch.int64))


def test_running_text_without_boundaries(path, tune, load_random):
    """`boundaries=False` reads the ids as they are; text cut anywhere goes on from the state."""
    official = random_official(bidirectional=False)
    bilm, oracle = tune(load_random(official)).double(), oracle_of(official, "forward")
    text = ["the", "bow", "and", "arrow", "a", "naïve"]
    whole, _ = oracle.layers(text)
    ids = Elmo(bilm).encode([["<S>", *text, "</S>"]])
    state, pieces = None, []
    for start, end in ((0, 3), (3, 4), (4, 8)):
        out = bilm(ids[:, start:end], state, boundaries=False, path=path)
        state = out.state
        pieces.append(out.layers[:, 0].detach())
    np.testing.assert_allclose(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-11)


def test_a_row_of_padding_keeps_its_state(path, tune, load_random):
    bilm = tune(load_random(random_official())).double()
    elmo = Elmo(bilm)
    first = bilm(elmo.encode([["the", "bow"], ["a"]]), path=path)
    second = bilm(elmo.encode([["arrow"], []]), first.state, path=path)
    assert torch.equal(second.state.hidden[:, :, 1], first.state.hidden[:, :, 1])
    assert torch.equal(second.state.cell[:, :, 1], first.state.cell[:, :, 1])
    assert not second.mask[1].any()
    assert not second.layers[:, 1].any()


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0), (2, 3)])
def test_batches_with_nothing_in_them(shape, path, tiny_bilm):
    ids = torch.zeros(*shape, tiny_bilm.config.max_characters, dtype=torch.int64)
    out = tiny_bilm(ids, path=path)
    assert out.layers.shape == (3, shape[0], shape[1] + 2, 16)
    assert not out.layers.any()
    assert not out.mask.any()
    assert isinstance(out.state, BiLMState)
    assert out.state.hidden.shape == (2, 2, shape[0], 8)
    assert not out.state.hidden.any()
