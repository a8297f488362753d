"""The bidirectional encoder."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchelmo.tasks.layers.basic import BiRNN, lengths_mask

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
    with torch.no_grad():
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


LENGTHS = [3, 6, 1, 4, 4]


def run_packed(lstm, x, lengths):
    """PyTorch's own way to leave padding out."""
    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return BiRNN(3, 4).double()


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("lengths", [LENGTHS, [1], [5], [1, 1]])
def test_outputs_and_gradients_are_those_of_a_packed_lstm(encoder, lengths, n_threads):
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        mask = torch.nn.functional.pad(lengths_mask(lengths), (0, 7 - max(lengths)))
        x = torch.randn(len(lengths), 7, 3, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(len(lengths), 7, 8, dtype=torch.float64)
        results = []
        for out in (run_packed(encoder.layers[0], x, lengths), encoder(x, mask)):
            results.append((out, *torch.autograd.grad((out * weight).sum(), [x, *encoder.parameters()])))
    finally:
        torch.set_num_threads(before)
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_gradients_are_clipped_as_those_of_a_packed_lstm(encoder):
    """Each once: two that share their memory would be scaled twice."""
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    results = []
    for run in (lambda: run_packed(encoder.layers[0], x, LENGTHS), lambda: encoder(x, lengths_mask(LENGTHS))):
        encoder.zero_grad()
        run().square().sum().backward()
        nn.utils.clip_grad_norm_(encoder.parameters(), 0.01)
        results.append([parameter.grad.clone() for parameter in encoder.parameters()])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_the_gradient_is_that_of_finite_differences(encoder):
    x = torch.randn(5, 6, 3, dtype=torch.float64, requires_grad=True)
    mask = lengths_mask(LENGTHS)
    assert torch.autograd.gradcheck(lambda x, *_: encoder(x, mask), (x, *encoder.parameters()), fast_mode=True)


def test_autocast_does_not_reach_the_recurrence(encoder):
    encoder = encoder.float()
    x, mask = torch.randn(5, 6, 3), lengths_mask(LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = encoder(x, mask)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, run_packed(encoder.layers[0], x, LENGTHS))
