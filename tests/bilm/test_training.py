"""The fast path of training gives the numbers of the plain one: outputs, state, and every gradient."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from facts import mentions
from torch import Tensor

from torchelmo import BiLM, BiLMConfig
from torchelmo.bilm.encoder import CharCNN
from torchelmo.bilm.fast.encoder import encode_types
from torchelmo.bilm.fast.training import TrainingOutput, _clip_backward, run_layer, run_masked, run_training
from torchelmo.bilm.lstm import LSTMState, ProjectedLSTM
from torchelmo.bilm.model import BiLMState
from torchelmo.errors import InputError
from torchelmo.text.characters import CharacterEncoder

WORDS = ["<S>", "</S>", "a", "the", "aa", "letter", "------", "naïve", "x" * 10, "x" * 12, "y" * 40, "an", "of"]
SHAPE: dict[str, Any] = {
    "max_characters": 14,
    "char_dim": 4,
    "filters": ((1, 3), (2, 4), (5, 6)),
    "n_highway": 2,
    "projection_dim": 6,
    "cell_dim": 10,
}
CHARACTERS = torch.from_numpy(CharacterEncoder(14).encode(WORDS)).short()


def build(dtype: torch.dtype = torch.float32, **changes: Any) -> BiLM:
    return BiLM(BiLMConfig(**SHAPE | changes)).to(dtype)


def widen(bilm: BiLM, factor: float) -> BiLM:
    """Larger LSTM weights, so that cells and projections meet their limits."""
    with torch.no_grad():
        for name, parameter in bilm.named_parameters():
            if "lstms" in name:
                parameter.mul_(factor)
    return bilm


def draw_ids(bilm: BiLM, batch: int = 3, unroll: int = 5) -> Tensor:
    low, high = (1, bilm.config.n_words + 1) if bilm.config.input == "words" else (0, len(WORDS))
    return torch.randint(low, high, (batch, unroll))


def draw_state(bilm: BiLM, batch: int = 3) -> BiLMState:
    return BiLMState(*(torch.randn_like(part).requires_grad_() for part in bilm.zero_state(batch)))


def run(bilm: BiLM, path: Any, ids: tuple[Tensor, Tensor], state: BiLMState) -> dict[str, Tensor]:
    """All that must be equal, by name."""
    bilm.zero_grad()
    torch.manual_seed(5)
    characters = CHARACTERS if bilm.config.input == "characters" else None
    out = run_training(bilm, *ids, state, dropout=0.2, characters=characters, path=path)
    tops = {name: top for name in ("forward", "backward") if (top := getattr(out, name)) is not None}
    weights = torch.Generator().manual_seed(6)
    loss = sum((top * torch.randn(top.shape, generator=weights, dtype=top.dtype)).sum() for top in tops.values())
    assert isinstance(loss, Tensor)
    gradients = torch.autograd.grad(loss, [*state, *bilm.parameters()])
    names = ["d hidden", "d cell", *(f"d {name}" for name, _ in bilm.named_parameters())]
    return {**tops, "hidden": out.state.hidden, "cell": out.state.cell, **dict(zip(names, gradients))}


def relative(a: Tensor, b: Tensor) -> float:
    a, b = a.detach(), b.detach()
    return float((a - b).norm() / b.norm().clamp_min(1e-30)) if b.any() or a.any() else 0.0


MODELS: dict[str, dict[str, Any]] = {
    "characters": {},
    "tanh": {"activation": "tanh"},
    "no projection": {"char_projection": False, "projection_dim": 13, "n_highway": 1},
    "words": {"input": "words", "n_words": 7},
    "forward": {"direction": "forward"},
    "backward": {"direction": "backward"},
    "no clipping": {"cell_clip": None, "projection_clip": None},
    "tight clipping": {"cell_clip": 0.1, "projection_clip": 0.05},
    "three layers without residual": {"n_layers": 3, "residual": False},
}


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["64", "32"])
@pytest.mark.parametrize("model", MODELS)
def test_fast_path_equals_plain_path(model: str, dtype: torch.dtype, limit: float):
    bilm = widen(build(dtype, **MODELS[model]), 3.0)
    ids, state = (draw_ids(bilm), draw_ids(bilm)), draw_state(bilm)
    plain, fast = run(bilm, "reference", ids, state), run(bilm, "fast", ids, state)
    assert plain.keys() == fast.keys()
    assert len(plain) >= 13
    for name in plain:
        assert relative(fast[name], plain[name]) <= limit, name


def test_clipping_takes_part_in_the_comparison():
    bilm = widen(build(torch.float64, **MODELS["tight clipping"]), 3.0)
    out = run(bilm, "fast", (draw_ids(bilm), draw_ids(bilm)), draw_state(bilm))
    assert 0.05 < float((out["cell"].abs() == 0.1).double().mean()) < 0.999
    assert 0.05 < float((out["hidden"].abs() == 0.05).double().mean()) < 0.999


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_on_and_beside_the_limit_pass_their_gradient_as_clamp_does(dtype: torch.dtype):
    limit = 0.1  # not a number that a float holds exactly
    on = torch.tensor(limit, dtype=dtype)
    far = torch.tensor(9.0, dtype=dtype)
    x = torch.stack([on, torch.nextafter(on, far), torch.nextafter(on, -far), far, on * 0])
    x = torch.cat([x, -x]).requires_grad_()
    (expected,) = torch.autograd.grad(x.clamp(-limit, limit).sum(), x)
    assert expected.tolist()[:4] == [1.0, 0.0, 1.0, 0.0]
    assert torch.equal(_clip_backward(torch.ones_like(x), x.detach(), limit), expected)


@pytest.mark.parametrize("clip", [None, 0.4])
def test_lstm_gradients_by_finite_differences(clip: float | None):
    lstms = [ProjectedLSTM(2, 3, 2, cell_clip=clip, projection_clip=clip).double() for _ in range(2)]
    parameters = [p for lstm in lstms for p in lstm.parameters()]

    def layer(*tensors: Tensor) -> tuple[Tensor, ...]:
        starts = [LSTMState(*tensors[2:4]), LSTMState(*tensors[4:6])]
        return tuple(run_layer(lstms, tensors[:2], starts)[0])

    shapes = [(3, 2, 2), (3, 2, 2), (2, 2), (2, 3), (2, 2), (2, 3)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lambda *all_: layer(*all_[:6]), (*inputs, *parameters))


def test_encoder_gradients_by_finite_differences():
    encoder = CharCNN(BiLMConfig(**SHAPE | {"filters": ((1, 2), (3, 2)), "n_highway": 1})).double()
    parameters = [p for name, p in encoder.named_parameters() if name != "embedding"]
    ids = CHARACTERS.long()[:6]
    assert torch.autograd.gradcheck(lambda *_: encode_types(encoder, ids), tuple(parameters))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_encoder_equals_convolutions_over_all_positions(activation: Any):
    torch.manual_seed(1)
    encoder = CharCNN(BiLMConfig(**SHAPE | {"activation": activation})).double()
    with torch.no_grad():  # padding windows win often, and so do repeated characters
        encoder.embedding[261] *= 3.0
    for ids in (CHARACTERS.long(), torch.randint(0, 262, (40, 14)), CHARACTERS.long()[:1], CHARACTERS.long()[10:11]):
        results = []
        for encode in (encoder, lambda ids: encode_types(encoder, ids)):
            out = encode(ids)
            results.append([out, *torch.autograd.grad(out.square().sum(), list(encoder.parameters()))])
        for plain, fast in zip(*results):
            assert relative(fast, plain) < 1e-10


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_two_threads_give_the_same_bits_every_time_and_leave_the_settings_alone():
    bilm = build()
    ids, state = (draw_ids(bilm), draw_ids(bilm)), draw_state(bilm)
    first = run(bilm, "fast", ids, state)
    for _ in range(5):
        again = run(bilm, "fast", ids, state)
        assert all(torch.equal(first[name], again[name]) for name in first)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    alone = run(bilm, "fast", ids, state)
    assert all(relative(first[name], alone[name]) < 1e-5 for name in first)


def test_carried_state_equals_one_long_window():
    bilm = build(torch.float64)
    ids = draw_ids(bilm, unroll=12), draw_ids(bilm, unroll=12)
    whole = run_training(bilm, *ids, None, characters=CHARACTERS)
    state, pieces = None, []
    for start in range(0, 12, 4):
        window = [part[:, start : start + 4] for part in ids]
        out: TrainingOutput = run_training(bilm, *window, state, characters=CHARACTERS)
        state = out.state
        assert not state.hidden.requires_grad
        assert not state.cell.requires_grad
        pieces.append(out)
    assert whole.forward is not None
    torch.testing.assert_close(torch.cat([out.forward for out in pieces], dim=1), whole.forward)
    torch.testing.assert_close(torch.cat([out.backward for out in pieces], dim=1), whole.backward)
    assert state is not None
    torch.testing.assert_close(state.cell, whole.state.cell)


def test_layers_equal_those_of_the_model_itself():
    bilm = build(torch.float64)
    ids = draw_ids(bilm)
    expected = bilm(CHARACTERS[ids].long(), boundaries=False, path="reference").layers[-1]
    out = run_training(bilm, ids, ids.flip(1), None, characters=CHARACTERS)
    assert out.forward is not None
    assert out.backward is not None
    torch.testing.assert_close(torch.cat([out.forward, out.backward.flip(1)], dim=-1), expected)


MASKED: dict[str, dict[str, Any]] = {
    "joint": {"joint": True},
    "three joint layers without residual": {"joint": True, "n_layers": 3, "residual": False},
    "not joint": {},
    "words": {"joint": True, "input": "words", "n_words": 7},
}


@pytest.mark.parametrize("model", MASKED)
def test_masked_training_equals_the_model_itself_on_both_paths(model: str):
    """Sentences of different lengths: values, and the gradients of every parameter."""
    bilm = widen(build(torch.float64, objective="masked", **MASKED[model]), 3.0)
    with torch.no_grad():
        assert bilm.mask_vector is not None
        bilm.mask_vector.normal_()
    characters = CHARACTERS if bilm.config.input == "characters" else None
    ids, lengths = draw_ids(bilm, batch=4, unroll=6), torch.tensor([6, 3, 4, 6])
    inside = torch.arange(6) < lengths.unsqueeze(1)
    masked = (torch.rand(4, 6) < 0.4) & inside
    weights = torch.randn(4, 6, bilm.config.dim, dtype=torch.float64) * inside.unsqueeze(-1)
    alone = CHARACTERS[ids].long() * inside.unsqueeze(-1) if characters is not None else ids * inside
    tops = [bilm(alone, boundaries=False, masked=masked, path="reference").layers[-1]]
    tops += [run_masked(bilm, ids, lengths, masked, characters=characters, path=path) for path in ("reference", "fast")]
    gradients = [torch.autograd.grad((top * weights).sum(), list(bilm.parameters())) for top in tops]
    for top, found in zip(tops[1:], gradients[1:]):
        assert relative(top[inside], tops[0][inside]) <= 1e-10
        for (name, _), one, expected in zip(bilm.named_parameters(), found, gradients[0]):
            assert relative(one, expected) <= 1e-9, name


def test_masked_dropout_is_the_same_on_both_paths():
    bilm = build(torch.float64, objective="masked", joint=True)
    ids, lengths, masked = draw_ids(bilm), torch.tensor([5, 5, 3]), torch.zeros(3, 5, dtype=torch.bool)
    results = []
    for path in ("reference", "fast"):
        torch.manual_seed(7)
        results.append(run_masked(bilm, ids, lengths, masked, dropout=0.3, characters=CHARACTERS, path=path))  # type: ignore[arg-type]
    assert relative(results[1], results[0]) <= 1e-10
    assert float((results[0] == 0).double().mean()) == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize("changes", [{}, {"direction": "forward", "n_layers": 3}], ids=["both", "forward"])
def test_autocast_multiplies_in_bfloat16_and_sums_in_full_precision(changes):
    torch.manual_seed(1)
    bilm = widen(build(projection_dim=32, cell_dim=64, **changes), 2.0)
    ids, state = (draw_ids(bilm, 16), draw_ids(bilm, 16)), draw_state(bilm, 16)
    expected = run(bilm, "fast", ids, state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(bilm, "fast", ids, state)
    assert expected.keys() == found.keys()
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32, name
        assert relative(tensor, expected[name]) <= 0.05, name
    assert not torch.equal(found["cell"], expected["cell"])


def test_wrong_input_is_named():
    bilm = build()
    ids = draw_ids(bilm)
    with pytest.raises(InputError, match=mentions("ids_backward", "(batch, unroll)", None)):
        run_training(bilm, ids, None, None, characters=CHARACTERS)
    with pytest.raises(InputError, match=mentions("ids_backward", (3, 4))):
        run_training(bilm, ids, ids[:, :4], None, characters=CHARACTERS)
    with pytest.raises(InputError, match=mentions("objective", "run_masked")):
        run_training(build(objective="masked"), ids, ids, None, characters=CHARACTERS)
    with pytest.raises(InputError, match="`characters`"):
        run_training(bilm, ids, ids, None)
    with pytest.raises(InputError, match=mentions("state.hidden", (2, 2, 3, 6), (2, 2, 2, 6))):
        run_training(bilm, ids, ids, bilm.zero_state(2), characters=CHARACTERS)
