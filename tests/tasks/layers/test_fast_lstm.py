"""The fast LSTM has nn.LSTM's numbers and gradients."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from torchelmo.tasks.layers.fast_rnn import run_lstm

LENGTHS = [3, 6, 1, 4, 4]


def pack(x, lengths):
    return pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)


@pytest.fixture
def lstm():
    torch.manual_seed(0)
    return nn.LSTM(3, 4, batch_first=True, bidirectional=True).double()


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("lengths", [LENGTHS, [1], [5], [1, 1]])
def test_outputs_and_gradients_are_those_of_pytorch(lstm, lengths, n_threads):
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        x = torch.randn(len(lengths), 7, 3, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(sum(lengths), 8, dtype=torch.float64)
        results = []
        for run in (lambda packed: lstm(packed)[0], lambda packed: run_lstm(lstm, packed)):
            out = run(pack(x, lengths)).data
            results.append((out, *torch.autograd.grad((out * weight).sum(), [x, *lstm.parameters()])))
    finally:
        torch.set_num_threads(before)
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_gradients_are_clipped_as_those_of_pytorch(lstm):
    """Each once: two that share their memory would be made smaller twice."""
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    results = []
    for run in (lambda packed: lstm(packed)[0], lambda packed: run_lstm(lstm, packed)):
        lstm.zero_grad()
        run(pack(x, LENGTHS)).data.square().sum().backward()
        nn.utils.clip_grad_norm_(lstm.parameters(), 0.01)
        results.append([parameter.grad.clone() for parameter in lstm.parameters()])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_the_gradient_is_that_of_finite_differences(lstm):
    x = torch.randn(5, 6, 3, dtype=torch.float64, requires_grad=True)

    def run(x, *_):
        return run_lstm(lstm, pack(x, LENGTHS)).data

    assert torch.autograd.gradcheck(run, (x, *lstm.parameters()), fast_mode=True)


def test_the_order_of_the_rows_is_kept(lstm):
    packed = pack(torch.randn(5, 6, 3, dtype=torch.float64), LENGTHS)
    found = run_lstm(lstm, packed)
    for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        assert torch.equal(getattr(found, name), getattr(packed, name))


def test_autocast_does_not_reach_the_recurrence(lstm):
    lstm = lstm.float()
    x = torch.randn(5, 6, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run_lstm(lstm, pack(x, LENGTHS)).data
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, lstm(pack(x, LENGTHS))[0].data)


def test_a_second_derivative_is_refused(lstm):
    x = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)
    out = run_lstm(lstm, pack(x, [2])).data
    (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
