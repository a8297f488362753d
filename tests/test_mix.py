"""γ Σ softmax(w)_j h_j, and its options."""

import copy

import numpy as np
import pytest
import torch
from facts import mentions
from hypothesis import given
from hypothesis import strategies as st
from oracle import mix as oracle_mix

from torchelmo import ScalarMix
from torchelmo.errors import ConfigError, InputError

LENGTHS = [4, 1, 3]


def random_layers(n_layers: int = 3, dim: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(n_layers, 3, 4, dim) in float64, with wild values at padded positions, and the mask."""
    layers = torch.randn(n_layers, 3, 4, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(4) < torch.tensor(LENGTHS).unsqueeze(1)
    return torch.where(mask[None, ..., None], layers * 2.0 + 1.0, torch.tensor(1e3, dtype=torch.float64)), mask


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=4), st.floats(-3, 3), st.booleans())
def test_agrees_with_the_oracle(scalars, gamma, norm):
    layers, mask = random_layers(len(scalars))
    mix = ScalarMix(len(scalars), initial=scalars, gamma=gamma, layer_norm=norm, norm_over="batch").double()
    mixed = mix(layers, mask)
    sentences = [layers[:, row, :n].numpy() for row, n in enumerate(LENGTHS)]
    for row, expected in enumerate(oracle_mix(sentences, scalars, gamma, norm)):
        np.testing.assert_allclose(mixed[row, : LENGTHS[row]].detach(), expected, rtol=1e-6, atol=1e-6)


def test_begins_as_the_plain_average():
    layers, mask = random_layers()
    mix = ScalarMix(3).double()
    torch.testing.assert_close(mix(layers, mask), layers.mean(dim=0))
    assert mix.weights.tolist() == pytest.approx([1 / 3] * 3)
    assert mix.gamma.item() == 1.0


def test_layer_norm_looks_at_one_sentence_at_a_time():
    layers, mask = random_layers()
    mix = ScalarMix(3, layer_norm=True, initial=[1.0, 0.0, -1.0], gamma=2.0).double()
    together = mix(layers, mask)
    for row, n in enumerate(LENGTHS):
        alone = mix(layers[:, row : row + 1, :n])
        torch.testing.assert_close(together[row, :n], alone[0])
        (expected,) = oracle_mix([layers[:, row, :n].numpy()], [1.0, 0.0, -1.0], 2.0, norm=True)
        np.testing.assert_allclose(alone[0].detach(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("norm_over", ["sentence", "batch"])
def test_layer_norm_in_half_precision(norm_over, dtype, tolerance):
    layers = torch.randn(3, 2, 200, 512, generator=torch.Generator().manual_seed(1)) * 3.0 + 1.0
    mix = ScalarMix(3, layer_norm=True, norm_over=norm_over)
    expected = mix(layers)
    mixed = mix.to(dtype)(layers.to(dtype))
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.float(), expected, rtol=0, atol=tolerance)


def test_layer_norm_over_something_else():
    with pytest.raises(ConfigError, match=mentions("norm_over", "'sentence'", "'batch'", "'layer'")):
        ScalarMix(3, layer_norm=True, norm_over="layer")


@pytest.mark.parametrize("norm_over", ["sentence", "batch"])
def test_layer_norm_looks_at_real_tokens_only(norm_over):
    layers, mask = random_layers()
    other = torch.where(mask[None, ..., None], layers, torch.zeros(1, dtype=torch.float64))
    mix = ScalarMix(3, layer_norm=True, norm_over=norm_over).double()
    torch.testing.assert_close(mix(layers, mask)[mask], mix(other, mask)[mask])
    assert not torch.allclose(mix(layers)[mask], mix(other)[mask])


def test_layer_norm_without_a_mask_takes_all_tokens():
    layers, _ = random_layers()
    mix = ScalarMix(3, layer_norm=True).double()
    mixed = mix(layers[:, :1])
    (expected,) = oracle_mix([layers[:, 0].numpy()], [0.0, 0.0, 0.0], 1.0, norm=True)
    np.testing.assert_allclose(mixed[0].detach(), expected, atol=1e-9)


def test_layer_norm_of_no_tokens_is_finite():
    mix = ScalarMix(2, layer_norm=True)
    assert torch.isfinite(mix(torch.zeros(2, 1, 3, 4), torch.zeros(1, 3, dtype=torch.bool))).all()


@pytest.mark.parametrize("layer", [0, 1, 2, -1])
def test_one_layer_plainly(layer):
    layers, mask = random_layers()
    mix = ScalarMix(3, layer=layer, gamma=7.0)
    assert torch.equal(mix(layers, mask), layers[layer])
    assert mix.weights.tolist() == [float(i == layer % 3) for i in range(3)]
    assert not any(parameter.requires_grad for parameter in mix.parameters())


def test_a_sequence_of_tensors_will_do():
    layers, mask = random_layers()
    mix = ScalarMix(3, initial=[1.0, 0.0, -1.0]).double()
    # Tensors that are stacked here may be summed by another kernel than the given stack: equal up to rounding.
    torch.testing.assert_close(mix(list(layers), mask), mix(layers, mask), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mix(tuple(layers), mask), mix(layers, mask), rtol=1e-12, atol=1e-12)


def test_penalty_is_the_squared_norm_of_w():
    mix = ScalarMix(3, initial=[1.0, -2.0, 0.5])
    assert mix.penalty().item() == pytest.approx(5.25)
    mix.penalty().backward()
    assert mix.scalars.grad.tolist() == [2.0, -4.0, 1.0]
    assert mix.gamma.grad is None


def test_trainable_or_not():
    layers, mask = random_layers()
    mix = ScalarMix(3).double()
    mix(layers, mask).sum().backward()
    assert mix.scalars.grad is not None
    assert mix.gamma.grad is not None
    fixed = ScalarMix(3, trainable=False).double()
    assert not fixed(layers, mask).requires_grad


@pytest.mark.parametrize("norm", [False, True])
def test_gradients(norm):
    layers, mask = random_layers(dim=2)
    mix = ScalarMix(3, layer_norm=norm, initial=[0.3, -0.2, 0.5]).double()

    def run(layers, scalars, gamma):
        parameters = {"scalars": scalars, "gamma": gamma}
        return torch.func.functional_call(mix, parameters, (layers, mask))[mask]

    inputs = [layers.clamp(-3, 3), mix.scalars.detach().clone(), mix.gamma.detach().clone()]
    assert torch.autograd.gradcheck(run, [tensor.requires_grad_() for tensor in inputs])


def test_copies_and_state_dicts():
    mix = ScalarMix(3, initial=[1.0, 2.0, 3.0], gamma=0.5)
    assert torch.equal(copy.deepcopy(mix).weights, mix.weights)
    other = ScalarMix(3)
    other.load_state_dict(mix.state_dict())
    assert torch.equal(other.weights, mix.weights)
    assert set(mix.state_dict()) == {"scalars", "gamma"}


def test_wrong_number_of_layers():
    with pytest.raises(InputError, match=mentions("ScalarMix", 3, 2)):
        ScalarMix(3)(torch.zeros(2, 1, 1, 4))


def test_wrong_number_of_initial_values():
    with pytest.raises(InputError, match=mentions("ScalarMix", 3, 2)):
        ScalarMix(3, initial=[0.0, 0.0])


@pytest.mark.parametrize("layer", [3, -4])
def test_no_such_layer(layer):
    with pytest.raises(InputError, match=mentions("layer", 0, 2, layer)):
        ScalarMix(3, layer=layer)
