"""A bidirectional LSTM layer with its gradient written out: nn.LSTM's numbers, sooner to train on a CPU.

    forward     A = x W_x + b for all tokens at once; then for each step, in place, A_t += h_{t−1} W_h, gates, c_t, h_t
    backward    the steps in reverse give ∂/∂A_t; then each weight's gradient is one product over all tokens

Tokens are packed: of every step the rows that reach it, longest first. The backward direction reads each row from its
own end, so that its steps are as large. Each direction runs in a thread of its own. No second derivatives.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from torchelmo.bilm.parallel import in_parallel


def run_lstm(lstm: nn.LSTM, packed: PackedSequence) -> PackedSequence:
    """What `lstm(packed)` puts out, for one bidirectional layer."""
    input_weight, state_weight, input_bias, state_bias = zip(lstm.all_weights[0], lstm.all_weights[1])
    with torch.autocast(packed.data.device.type, enabled=False):
        # The product gives the two biases gradients of their own: in shared memory they would be clipped twice.
        bias = torch.cat(input_bias) + 1.0 * torch.cat(state_bias)
        added = F.linear(packed.data.to(bias.dtype), torch.cat(input_weight), bias)
        hidden: Tensor = _Recurrence.apply(_order(packed.batch_sizes), added, *state_weight)  # type: ignore[no-untyped-call]
    return packed._replace(data=hidden)


class _Order(NamedTuple):
    """Of the packed tokens."""

    sizes: list[int]  # how many rows reach each step
    opposite: Tensor  # (n_tokens,): the token as far from its row's end as each is from its beginning
    before: Tensor  # (n_tokens − n_rows,): the token before each in its row, of all but the first step


class _Saved(NamedTuple):
    gates: Tensor  # (n_tokens, 4 * hidden_dim): i, f, g, o
    cells: Tensor  # (n_tokens, hidden_dim)
    tanh_cells: Tensor
    hidden: Tensor
    weight: Tensor  # (4 * hidden_dim, hidden_dim)


class _Recurrence(torch.autograd.Function):
    """(n_tokens, 2 * 4 * hidden_dim), what the input adds to the gates -> (n_tokens, 2 * hidden_dim)."""

    @staticmethod
    def forward(ctx: Any, order: _Order, added: Tensor, forwards: Tensor, backwards: Tensor) -> Tensor:
        left, right = added.chunk(2, dim=1)
        work = [(order.sizes, left.clone(), forwards), (order.sizes, right[order.opposite], backwards)]
        both = in_parallel(_forward, work, added.device)
        ctx.order = order
        ctx.save_for_backward(*both[0], *both[1])
        return torch.cat([both[0].hidden, both[1].hidden[order.opposite]], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        size = len(_Saved._fields)
        saved = [_Saved(*ctx.saved_tensors[:size]), _Saved(*ctx.saved_tensors[size:])]
        left, right = gradient.chunk(2, dim=1)
        work = [(ctx.order, saved[0], left), (ctx.order, saved[1], right[ctx.order.opposite])]
        (d_left, d_forwards), (d_right, d_backwards) = in_parallel(_backward, work, gradient.device)
        return None, torch.cat([d_left, d_right[ctx.order.opposite]], dim=1), d_forwards, d_backwards


def _order(batch_sizes: Tensor) -> _Order:
    starts = batch_sizes.cumsum(0) - batch_sizes
    step = torch.arange(len(batch_sizes)).repeat_interleave(batch_sizes)
    row = torch.arange(len(step)) - starts[step]
    lengths = row.bincount()
    n_rows = len(lengths)
    opposite = starts[lengths[row] - 1 - step] + row
    return _Order(batch_sizes.tolist(), opposite, starts[step[n_rows:] - 1] + row[n_rows:])


def _forward(sizes: Sequence[int], gates: Tensor, weight: Tensor) -> _Saved:
    """One direction, in its order of reading; `gates` become what they are after their squashing."""
    cells, tanh_cells, hidden = gates.new_empty(3, len(gates), weight.shape[1]).unbind()
    steps = zip(*(tensor.split(sizes) for tensor in (gates, cells, tanh_cells, hidden)))
    cell_before = hidden_before = gates.new_zeros(sizes[0], weight.shape[1])
    for size, (gate, cell, tanh_cell, now) in zip(sizes, steps):
        gate.addmm_(hidden_before[:size], weight.T)
        i, f, g, o = gate.chunk(4, dim=1)
        # tanh(g) = 2 σ(2g) − 1: one call for all gates, and σ is three times as fast as tanh.
        g.mul_(2.0)
        gate.sigmoid_()
        g.mul_(2.0).sub_(1.0)
        torch.mul(f, cell_before[:size], out=cell).addcmul_(i, g)
        torch.mul(cell, 2.0, out=tanh_cell).sigmoid_().mul_(2.0).sub_(1.0)
        torch.mul(o, tanh_cell, out=now)
        cell_before, hidden_before = cell, now
    return _Saved(gates, cells, tanh_cells, hidden, weight)


def _backward(order: _Order, saved: _Saved, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of what the input added and of the weight."""
    sizes, n_rows = order.sizes, order.sizes[0]
    i, f, g, o = saved.gates.chunk(4, dim=1)
    cells_before = torch.cat([torch.zeros_like(saved.cells[:n_rows]), saved.cells[order.before]])
    # ∂/∂gate = factor · ∂/∂c for i, f, g and factor · ∂/∂h for o, the factors known for all tokens before the loop
    d_gates = torch.empty_like(saved.gates)
    d_i, d_f, d_g, d_o = d_gates.chunk(4, dim=1)
    torch.mul(g, i, out=d_i).mul_(1 - i)
    torch.mul(cells_before, f, out=d_f).mul_(1 - f)
    torch.addcmul(i, i, g * g, value=-1, out=d_g)
    torch.mul(saved.tanh_cells, o, out=d_o).mul_(1 - o)
    through = saved.tanh_cells.square().neg_().add_(1).mul_(o)  # ∂h / ∂c
    d_hidden = torch.zeros_like(saved.cells[:n_rows])
    d_cell = torch.zeros_like(d_hidden)
    steps = list(zip(sizes, *(tensor.split(sizes) for tensor in (gradient, d_gates, through, f))))
    for size, d_out, d_gate, factor, forget in reversed(steps):
        d_h, d_c = d_hidden[:size].add_(d_out), d_cell[:size]
        d_c.addcmul_(d_h, factor)
        d_gate[:, : 3 * d_c.shape[1]].unflatten(1, (3, -1)).mul_(d_c.unsqueeze(1))
        d_gate[:, 3 * d_c.shape[1] :].mul_(d_h)
        d_c.mul_(forget)
        torch.mm(d_gate, saved.weight, out=d_h)
    return d_gates, d_gates[n_rows:].T @ saved.hidden[order.before]
