"""The fast GRU has nn.GRU's numbers and gradients."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchelmo.tasks.layers.fast_rnn import run_gru


@pytest.fixture(params=[1, 2], ids=["one core", "two cores"])
def _cores(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def packed(gru, x, lengths):
    out, _ = gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]


@pytest.mark.usefixtures("_cores")
@pytest.mark.parametrize("batch", [1, 3, 40])  # 40 rows are shared between two cores
def test_outputs_and_gradients_are_those_of_pytorch(batch):
    torch.manual_seed(batch)
    gru = nn.GRU(3, 4, batch_first=True, bidirectional=True).double()
    x = torch.randn(batch, 7, 3, dtype=torch.float64, requires_grad=True)
    lengths = torch.randint(1, 7, (batch,))  # none is as long as the padded row
    weight = torch.randn(batch, 7, 8, dtype=torch.float64)
    results = []
    for run in (packed, run_gru):
        out = run(gru, x, lengths)
        results.append((out, *torch.autograd.grad((out * weight).sum(), [x, *gru.parameters()])))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_the_gradient_is_that_of_finite_differences():
    torch.manual_seed(0)
    gru = nn.GRU(2, 2, batch_first=True, bidirectional=True).double()
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([2, 4, 1])
    assert torch.autograd.gradcheck(lambda x, *_: run_gru(gru, x, lengths), (x, *gru.parameters()))


def test_rows_without_tokens_are_zero():
    gru = nn.GRU(3, 4, batch_first=True, bidirectional=True)
    x = torch.randn(2, 5, 3, requires_grad=True)
    out = run_gru(gru, x, torch.tensor([0, 3]))
    torch.testing.assert_close(out[1:, :3], run_gru(gru, x[1:, :3], torch.tensor([3])))
    assert out[0].eq(0).all()
    out = run_gru(gru, x, torch.tensor([0, 0]))
    out.sum().backward()
    assert out.eq(0).all()
    assert x.grad is not None
    assert x.grad.eq(0).all()


def test_without_gradients_nothing_is_kept():
    gru = nn.GRU(3, 4, batch_first=True, bidirectional=True)
    x, lengths = torch.randn(2, 5, 3), torch.tensor([5, 2])
    with torch.no_grad():
        out = run_gru(gru, x, lengths)
    assert out.grad_fn is None
    torch.testing.assert_close(out, run_gru(gru, x, lengths).detach())
