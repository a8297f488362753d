"""The bidirectional encoder."""

import pytest
import torch
from torch import nn

from torchelmo.tasks.layers.basic import lengths_mask
from torchelmo.tasks.layers.rnn import BiRNN

CELLS = ["lstm", "gru"]


def step(cell, weight_ih, weight_hh, bias_ih, bias_hh, x, h, c):
    """One token by the textbook: the state after it."""
    of_input, of_state = weight_ih @ x + bias_ih, weight_hh @ h + bias_hh
    if cell == "lstm":
        i, f, g, o = (of_input + of_state).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    (r, z, n), (r_h, z_h, n_h) = of_input.chunk(3), of_state.chunk(3)
    r, z = (r + r_h).sigmoid(), (z + z_h).sigmoid()
    return (1 - z) * (n + r * n_h).tanh() + z * h, c


@pytest.mark.parametrize("cell", CELLS)
def test_each_direction_reads_the_real_tokens_alone(cell):
    torch.manual_seed(0)
    encoder = BiRNN(3, 4, cell=cell)
    (layer,) = encoder.layers
    lengths = [5, 2, 1]
    x = torch.randn(3, 5, 3)
    expected = torch.zeros(3, 5, 8)
    for row, length in enumerate(lengths):
        for direction, suffix in enumerate(["", "_reverse"]):
            names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
            weights = [getattr(layer, name + suffix) for name in names]
            h = c = torch.zeros(4)
            for t in reversed(range(length)) if direction else range(length):
                h, c = step(cell, *weights, x[row, t], h, c)
                expected[row, t, 4 * direction : 4 * direction + 4] = h
    torch.testing.assert_close(encoder(x, lengths_mask(lengths)), expected)
    with torch.no_grad():  # takes another way on a CPU
        torch.testing.assert_close(encoder(x, lengths_mask(lengths)), expected)
    assert encoder.dim == 8


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_a_sentence_is_encoded_as_if_it_stood_alone(cell, n_layers):
    torch.manual_seed(0)
    encoder = BiRNN(3, 4, n_layers=n_layers, cell=cell).eval()
    lengths = [2, 6, 0, 4]
    x = torch.randn(4, 6, 3)
    together = encoder(x, lengths_mask(lengths))
    for row, length in enumerate(lengths):
        alone = encoder(x[row : row + 1, :length], lengths_mask([length]))
        torch.testing.assert_close(together[row, :length], alone[0])
        assert together[row, length:].eq(0).all()


def test_padding_gets_no_gradient_and_rows_without_tokens_are_zero():
    torch.manual_seed(0)
    encoder = BiRNN(3, 4, n_layers=2)
    mask = lengths_mask([3, 0, 1])
    x = torch.randn(3, 3, 3, requires_grad=True)
    out = encoder(x, mask)
    out.square().sum().backward()
    assert out[1].eq(0).all()
    assert x.grad[~mask].eq(0).all()
    assert x.grad[mask].ne(0).all()


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)])
def test_nothing_to_read_gives_nothing(shape):
    encoder = BiRNN(3, 4)
    assert encoder(torch.zeros(*shape, 3), torch.zeros(shape, dtype=torch.bool)).shape == (*shape, 8)


def test_all_rows_empty_gives_zeros():
    assert BiRNN(3, 4)(torch.randn(2, 3, 3), torch.zeros(2, 3, dtype=torch.bool)).eq(0).all()


def test_dropout_acts_between_layers_alone():
    torch.manual_seed(0)
    x, mask = torch.randn(2, 3, 3), lengths_mask([3, 2])
    one = BiRNN(3, 4, dropout=0.5)
    assert torch.equal(one(x, mask), one(x, mask))
    two = BiRNN(3, 4, n_layers=2, dropout=0.5)
    assert not torch.equal(two(x, mask), two(x, mask))
    two.eval()
    assert torch.equal(two(x, mask), two(x, mask))


def test_the_forget_gate_begins_open_and_the_recurrence_orthogonal():
    (layer,) = BiRNN(3, 5).layers
    assert isinstance(layer, nn.LSTM)
    for suffix in ("", "_reverse"):
        bias = getattr(layer, f"bias_ih_l0{suffix}") + getattr(layer, f"bias_hh_l0{suffix}")
        assert bias.tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 10
        for gate in getattr(layer, f"weight_hh_l0{suffix}").chunk(4):
            torch.testing.assert_close(gate @ gate.T, torch.eye(5))
