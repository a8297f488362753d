"""The highway LSTM: its reference path against NumPy, its fast path against the reference."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from torchelmo.tasks.layers import fast_rnn
from torchelmo.tasks.layers.basic import lengths_mask
from torchelmo.tasks.srl.model import HighwayLSTM


@pytest.fixture(params=[1, 3])
def _n_partitions(request, monkeypatch):
    """As on a machine with one core, and with three."""
    monkeypatch.setattr(fast_rnn, "_number_of_partitions", lambda n_rows, device: request.param)


def build(**options):
    """In double precision, with a bias that is not the initial one."""
    lstm = HighwayLSTM(5, 4, **{"n_layers": 3, **options}).double()
    with torch.no_grad():
        for layer in lstm.layers:
            layer.bias.normal_()
    return lstm


def batch(lengths, dim=5, extra=0):
    mask = torch.nn.functional.pad(lengths_mask(lengths), (0, extra))
    return torch.randn(*mask.shape, dim, dtype=torch.double), mask


def numpy_layer(x, layer, backwards):
    """One row, token by token, from the equations."""

    def sigmoid(a):
        return 1 / (1 + np.exp(-a))

    weight, state, bias = (p.detach().numpy() for p in (layer.input_weight, layer.state_weight, layer.bias))
    dim = state.shape[0]
    hidden, cell = np.zeros(dim), np.zeros(dim)
    outputs = np.zeros((len(x), dim))
    for t in range(len(x))[::-1] if backwards else range(len(x)):
        blocks = {}
        for number, name in enumerate("jifor"):
            block = slice(number * dim, (number + 1) * dim)
            blocks[name] = x[t] @ weight[:, block] + hidden @ state[:, block] + bias[block]
        cell = sigmoid(blocks["i"]) * np.tanh(blocks["j"]) + sigmoid(blocks["f"]) * cell
        gate = sigmoid(blocks["r"])
        hidden = gate * (sigmoid(blocks["o"]) * np.tanh(cell)) + (1 - gate) * (x[t] @ weight[:, 5 * dim :])
        outputs[t] = hidden
    return outputs


@pytest.mark.parametrize("path", ["reference", "fast"])
def test_the_numbers_are_those_of_the_equations(path):
    lstm = build(n_layers=4)
    x, mask = batch([3, 1, 6])
    out = lstm(x, mask, path=path).detach()
    for row, length in enumerate([3, 1, 6]):
        expected = x[row, :length].numpy()
        for number, layer in enumerate(lstm.layers):
            expected = numpy_layer(expected, layer, backwards=number % 2 == 1)
        np.testing.assert_allclose(out[row, :length], expected, atol=1e-12)
        assert not out[row, length:].any()


@pytest.mark.usefixtures("_n_partitions")
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=9), extra=st.integers(0, 2), seed=st.integers(0, 999))
def test_the_fast_path_gives_the_values_and_gradients_of_the_reference(dropout, lengths, extra, seed):
    assume(max(lengths) + extra)  # batches without tokens have a test of their own
    torch.manual_seed(seed)
    lstm = build(dropout=dropout)
    x, mask = batch(lengths, extra=extra)
    x.requires_grad_()
    weights = torch.randn(*mask.shape, 4, dtype=torch.double)
    results = []
    for path in ("reference", "fast"):
        torch.manual_seed(seed)  # the same dropout
        out = lstm(x, mask, path=path)
        gradients = torch.autograd.grad((out * weights).sum(), [x, *lstm.parameters()])
        results.append([out, *gradients])
    for reference, fast in zip(*results):
        torch.testing.assert_close(fast, reference)


def test_the_written_out_gradient_agrees_with_finite_differences():
    lstm = HighwayLSTM(3, 2, n_layers=2).double()
    x, mask = batch([3, 1, 2], dim=3)
    names = [name for name, _ in lstm.named_parameters()]

    def run(x, *parameters):
        return torch.func.functional_call(lstm, dict(zip(names, parameters)), (x, mask))

    assert torch.autograd.gradcheck(run, (x.requires_grad_(), *lstm.parameters()))


def test_a_backward_pass_may_be_repeated():
    lstm = build()
    x, mask = batch([4, 2])
    loss = lstm(x.requires_grad_(), mask).square().sum()
    first, second = (torch.autograd.grad(loss, [x, *lstm.parameters()], retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("path", ["reference", "fast"])
def test_padding_and_other_rows_do_not_change_a_row(path):
    lstm = build(n_layers=4)
    x, mask = batch([2, 5, 0, 3], extra=1)
    alone = torch.cat([lstm(x[3:, :3], mask[3:, :3], path=path), torch.zeros(1, 3, 4)], dim=1)
    torch.testing.assert_close(lstm(x, mask, path=path)[3:], alone)
    noisy = torch.where(mask.unsqueeze(-1), x, torch.full_like(x, 1e6))
    torch.testing.assert_close(lstm(noisy, mask, path=path), lstm(x, mask, path=path))


@pytest.mark.parametrize("path", ["reference", "fast"])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_batches_without_tokens(path, shape):
    lstm = build()
    out = lstm(torch.zeros(*shape, 5).double(), torch.zeros(*shape, dtype=torch.bool), path=path)
    assert out.shape == (*shape, 4)


def test_dropout_keeps_one_mask_for_all_tokens_of_a_row_and_none_in_evaluation():
    lstm = build(n_layers=1, dropout=0.5)
    x, mask = batch([6, 6, 4])
    dropped = lstm(x, mask) == 0
    for row, length in enumerate([6, 6, 4]):
        assert (dropped[row, :length] == dropped[row, 0]).all()
    assert dropped[0, 0].tolist() != dropped[1, 0].tolist() or dropped[0, 0].tolist() != dropped[2, 0].tolist()
    assert 0 < dropped[:, 0].sum() < dropped[:, 0].numel()
    assert (lstm.eval()(x, mask)[mask] != 0).all()


def test_every_block_is_orthonormal_at_first_and_the_forget_gates_are_open():
    lstm = HighwayLSTM(7, 4, n_layers=2)
    for layer in lstm.layers:
        for weight in (layer.input_weight, layer.state_weight):
            for block in weight.detach().split(4, dim=1):
                torch.testing.assert_close(block.T @ block, torch.eye(4))
        assert layer.bias.view(5, 4).tolist() == [[0.0] * 4, [0.0] * 4, [1.0] * 4, [0.0] * 4, [0.0] * 4]


def test_nothing_is_kept_where_no_gradient_is_wanted():
    lstm = build()
    with torch.no_grad():
        out = lstm(*batch([2, 3]))
    assert out.grad_fn is None
