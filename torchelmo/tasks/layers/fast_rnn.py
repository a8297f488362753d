"""A bidirectional LSTM layer with its gradient written out: nn.LSTM's numbers, sooner to train on a CPU.

    forward     A = x W_x + b for all tokens at once; then for each step, in place, A_t += h_{t−1} W_h, gates, c_t, h_t
    backward    the steps in reverse give ∂/∂A_t; then each weight's gradient is one product over all tokens

Tokens are packed: of every step the rows that reach it, longest first. The backward direction reads each row from its
own end, so that its steps are as large. Each direction runs in a thread of its own. No second derivatives.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from torchelmo.runtime import in_parallel

_LEAST_ROWS = 16  # for a core of its own: with fewer, the products of a step are too thin


class Share(NamedTuple):
    """The rows that one core takes. Their tokens are packed: of every step the rows that reach it, step after step."""

    sizes: list[int]  # how many rows reach each step
    starts: list[int]  # the first token of each step
    step: Tensor  # (n_tokens,)
    row: Tensor  # (n_tokens,): which of the share's rows each token belongs to
    batch_row: Tensor  # (n_tokens,): which of the batch's rows that is
    places: Tensor  # (n_tokens,): where the token stands in the padded batch


def share_rows(lengths: Tensor, n_steps: int) -> list[Share]:
    """Shares of rows of these lengths, about equally long, for a batch that is padded to `n_steps`."""
    order = lengths.argsort(descending=True, stable=True)
    n_shares = _number_of_shares(len(lengths), lengths.device)
    return [_share(order[first::n_shares], lengths, n_steps) for first in range(n_shares)]


def _number_of_shares(n_rows: int, device: torch.device) -> int:
    return max(1, min(torch.get_num_threads(), n_rows // _LEAST_ROWS)) if device.type == "cpu" else 1


def _share(rows: Tensor, lengths: Tensor, n_steps: int) -> Share:
    reaches = torch.arange(n_steps, device=rows.device).unsqueeze(1) < lengths[rows]  # (steps, rows)
    sizes = [size for size in reaches.sum(dim=1).tolist() if size]
    step, row = reaches.nonzero(as_tuple=True)
    return Share(sizes, [0, *accumulate(sizes)][:-1], step, row, rows[row], rows[row] * n_steps + step)


def run_gru(gru: nn.GRU, x: Tensor, lengths: Tensor) -> Tensor:
    """(batch, tokens, input_dim) -> (batch, tokens, 2 * hidden_dim), 0 at padding; one bidirectional layer."""
    batch, n_steps, _ = x.shape
    shares = [_gru_order(share) for share in share_rows(lengths, n_steps)]
    places = torch.cat([share.places for share in shares])
    directions = [list(gru.parameters())[i : i + 4] for i in (0, 4)]
    input_weight, state_weight, input_bias, state_bias = zip(*directions)
    packed = x.to(input_weight[0].dtype).flatten(0, 1).index_select(0, places)
    result: Tensor = _GRU.apply(  # type: ignore[no-untyped-call]
        *(shares, torch.is_grad_enabled(), packed),
        *(torch.cat(input_weight).T, torch.cat(input_bias)),
        *(torch.stack(state_weight).transpose(1, 2), torch.stack(state_bias).unsqueeze(1)),
    )
    out = result.new_zeros(batch * n_steps, result.shape[1]).index_copy(0, places, result)
    return out.view(batch, n_steps, -1)


class _GruOrder(NamedTuple):
    """In which the tokens of a share are read; N is their number."""

    places: Tensor  # (N,): where each token stands in the padded batch, step after step
    sizes: list[int]  # how many rows reach each step
    reading: Tensor  # (2N,): by block of a step and then by direction, the token that is read (2 · token + direction)
    inverse: Tensor  # (2N,): where in that order each token is read, forwards and backwards
    before: Tensor  # (2N,): in that order, where the h of each row's step before stands in `_Saved.hidden`


class _Weights(NamedTuple):
    """The blocks of columns are r, z, n; of the input's, first forwards and then backwards."""

    input: Tensor  # (input_dim, 6 · hidden_dim)
    input_bias: Tensor  # (6 · hidden_dim,)
    state: Tensor  # (2, hidden_dim, 3 · hidden_dim)
    state_bias: Tensor  # (2, 1, 3 · hidden_dim)


class _GruSaved(NamedTuple):
    """What the gradient needs; the rows are in the order of reading."""

    x: Tensor  # (N, input_dim)
    gates: Tensor  # (2N, 3 · hidden_dim): r, z, n
    from_state: Tensor  # (2N, hidden_dim): U_n h + b_u
    hidden: Tensor  # (2 · rows + 2N, hidden_dim): zeros before the first step, then h


def _gru_order(share: Share) -> _GruOrder:
    step, row = share.step, share.row
    sizes, starts = torch.tensor([share.sizes, share.starts], dtype=torch.long, device=row.device)
    from_end = row.bincount()[row] - 1 - step
    token = starts[step] + row
    backwards = 2 * (starts[from_end] + row) + 1
    block = starts[step] + token  # a block holds the rows of its step twice
    reading = torch.empty(2 * len(step), dtype=torch.long, device=row.device)
    reading[block], reading[block + sizes[step]] = 2 * token, backwards
    inverse = torch.empty_like(reading)
    inverse[reading] = torch.arange(len(reading), device=row.device)
    before = torch.empty_like(reading)
    earlier = (step - 1).clamp_min(0)
    block_before = torch.where(step > 0, 2 * (sizes[:1] + starts[earlier]), 0)
    before[block], before[block + sizes[step]] = block_before + row, block_before + sizes[earlier] + row
    return _GruOrder(share.places, share.sizes, reading, inverse, before)


class _GRU(torch.autograd.Function):
    """Packed tokens, share after share: (n_tokens, input_dim) -> (n_tokens, 2 · hidden_dim)."""

    @staticmethod
    def forward(ctx: Any, shares: list[_GruOrder], keep: bool, packed: Tensor, *weights: Tensor) -> Tensor:
        parts = packed.split([len(share.places) for share in shares])
        work = [(_Weights(*weights), share, part) for share, part in zip(shares, parts)]
        results = in_parallel(_gru_forward, work, packed.device)
        if keep:
            ctx.save_for_backward(*weights, *(tensor for _, saved in results for tensor in saved))
        ctx.shares = shares
        return torch.cat([out for out, _ in results])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, tensors = _Weights(*ctx.saved_tensors[:4]), ctx.saved_tensors[4:]
        size = len(_GruSaved._fields)
        saved = [_GruSaved(*tensors[i : i + size]) for i in range(0, len(tensors), size)]
        parts = gradient.split([len(share.places) for share in ctx.shares])
        work = [(weights, *each) for each in zip(ctx.shares, saved, parts)]
        results = in_parallel(_gru_backward, work, gradient.device)
        d_weights = [torch.stack(parts).sum(dim=0) for parts in list(zip(*results))[1:]]
        return (None, None, torch.cat([result[0] for result in results]), *d_weights)


def _gru_forward(weights: _Weights, share: _GruOrder, x: Tensor) -> tuple[Tensor, _GruSaved]:
    dim = weights.state.shape[1]
    products = torch.addmm(weights.input_bias, x, weights.input)
    gates = products.view(-1, 3 * dim).index_select(0, share.reading)
    blocks = [2 * size for size in share.sizes]
    first = blocks[0] if blocks else 0
    hidden = x.new_empty(first + len(gates), dim)
    hidden[:first] = 0.0
    from_state = x.new_empty(len(gates), dim)
    product = x.new_empty(first, 3 * dim)
    before = hidden[:first].view(2, -1, dim)
    for size, gate, kept, now in zip(
        share.sizes, gates.split(blocks), from_state.split(blocks), hidden[first:].split(blocks)
    ):
        before = before[:, :size]
        of_state = product[: 2 * size].view(2, size, 3 * dim)
        torch.baddbmm(weights.state_bias, before, weights.state, out=of_state)
        of_state = product[: 2 * size]
        n = gate[:, 2 * dim :]
        gate[:, : 2 * dim].add_(of_state[:, : 2 * dim]).sigmoid_()
        kept.copy_(of_state[:, 2 * dim :])
        n.addcmul_(gate[:, :dim], kept).tanh_()
        after = now.view(2, size, dim)
        torch.lerp(n.unflatten(0, (2, size)), before, gate[:, dim : 2 * dim].unflatten(0, (2, size)), out=after)
        before = after
    out = hidden[first:].index_select(0, share.inverse).view(-1, 2 * dim)
    return out, _GruSaved(x, gates, from_state, hidden)


def _gru_backward(weights: _Weights, share: _GruOrder, saved: _GruSaved, gradient: Tensor) -> tuple[Tensor, ...]:
    """The gradients of x and of the weights in their order."""
    dim = weights.state.shape[1]
    blocks = [2 * size for size in share.sizes]
    first = blocks[0] if blocks else 0
    r, z, n = saved.gates.split(dim, dim=1)
    hidden_before = saved.hidden.index_select(0, share.before)
    # ∂/∂gate = factor · ∂/∂h′
    of_n = (1 - z).mul_(1 - n * n)  # of n's input from x
    d_gates = torch.empty_like(saved.gates)  # of the products with h; for r and z the same as those with x
    torch.mul(of_n, r, out=d_gates[:, 2 * dim :])
    torch.mul(d_gates[:, 2 * dim :], saved.from_state, out=d_gates[:, :dim]).mul_(1 - r)
    torch.sub(hidden_before, n, out=d_gates[:, dim : 2 * dim]).mul_(z).mul_(1 - z)
    d_hidden = torch.empty_like(saved.hidden)
    d_hidden[:first] = 0.0
    torch.index_select(gradient.reshape(-1, dim), 0, share.reading, out=d_hidden[first:])
    state = weights.state.transpose(1, 2)
    steps = list(zip(share.sizes, d_gates.split(blocks), z.split(blocks), d_hidden[first:].split(blocks)))
    earlier = [d_hidden[:first], *(step[3] for step in steps)]
    for (size, d_gate, keep, d_h), d_before in zip(reversed(steps), reversed(earlier[:-1])):
        d_gate.view(2 * size, 3, dim).mul_(d_h.unsqueeze(1))
        d_state = d_before.view(2, -1, dim)[:, :size]
        d_state.addcmul_(d_h.view(2, size, dim), keep.unflatten(0, (2, size)))
        d_state.baddbmm_(d_gate.view(2, size, 3 * dim), state)
    by_token = d_gates.index_select(0, share.inverse).view(-1, 2, 3 * dim).transpose(0, 1)
    before_by_token = hidden_before.index_select(0, share.inverse).view(-1, 2, dim).transpose(0, 1)
    d_state_weight = before_by_token.transpose(1, 2) @ by_token
    d_state_bias = by_token.sum(dim=1, keepdim=True)
    torch.mul(d_hidden[first:], of_n, out=d_gates[:, 2 * dim :])
    d_products = d_gates.index_select(0, share.inverse).view(-1, 6 * dim)
    d_x = d_products @ weights.input.T
    return d_x, saved.x.T @ d_products, d_products.sum(dim=0), d_state_weight, d_state_bias


def run_lstm(lstm: nn.LSTM, packed: PackedSequence) -> PackedSequence:
    """What `lstm(packed)` puts out, for one bidirectional layer."""
    input_weight, state_weight, input_bias, state_bias = zip(lstm.all_weights[0], lstm.all_weights[1])
    with torch.autocast(packed.data.device.type, enabled=False):
        # The product gives the two biases gradients of their own: in shared memory they would be clipped twice.
        bias = torch.cat(input_bias) + 1.0 * torch.cat(state_bias)
        added = F.linear(packed.data.to(bias.dtype), torch.cat(input_weight), bias)
        hidden: Tensor = _Recurrence.apply(_lstm_order(packed.batch_sizes), added, *state_weight)  # type: ignore[no-untyped-call]
    return packed._replace(data=hidden)


class _LstmOrder(NamedTuple):
    """Of the packed tokens."""

    sizes: list[int]  # how many rows reach each step
    opposite: Tensor  # (n_tokens,): the token as far from its row's end as each is from its beginning
    before: Tensor  # (n_tokens − n_rows,): the token before each in its row, of all but the first step


class _LstmSaved(NamedTuple):
    gates: Tensor  # (n_tokens, 4 * hidden_dim): i, f, g, o
    cells: Tensor  # (n_tokens, hidden_dim)
    tanh_cells: Tensor
    hidden: Tensor
    weight: Tensor  # (4 * hidden_dim, hidden_dim)


class _Recurrence(torch.autograd.Function):
    """(n_tokens, 2 * 4 * hidden_dim), what the input adds to the gates -> (n_tokens, 2 * hidden_dim)."""

    @staticmethod
    def forward(ctx: Any, order: _LstmOrder, added: Tensor, forwards: Tensor, backwards: Tensor) -> Tensor:
        left, right = added.chunk(2, dim=1)
        work = [(order.sizes, left.clone(), forwards), (order.sizes, right[order.opposite], backwards)]
        both = in_parallel(_lstm_forward, work, added.device)
        ctx.order = order
        ctx.save_for_backward(*both[0], *both[1])
        return torch.cat([both[0].hidden, both[1].hidden[order.opposite]], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        size = len(_LstmSaved._fields)
        saved = [_LstmSaved(*ctx.saved_tensors[:size]), _LstmSaved(*ctx.saved_tensors[size:])]
        left, right = gradient.chunk(2, dim=1)
        work = [(ctx.order, saved[0], left), (ctx.order, saved[1], right[ctx.order.opposite])]
        (d_left, d_forwards), (d_right, d_backwards) = in_parallel(_lstm_backward, work, gradient.device)
        return None, torch.cat([d_left, d_right[ctx.order.opposite]], dim=1), d_forwards, d_backwards


def _lstm_order(batch_sizes: Tensor) -> _LstmOrder:
    starts = batch_sizes.cumsum(0) - batch_sizes
    step = torch.arange(len(batch_sizes)).repeat_interleave(batch_sizes)
    row = torch.arange(len(step)) - starts[step]
    lengths = row.bincount()
    n_rows = len(lengths)
    opposite = starts[lengths[row] - 1 - step] + row
    return _LstmOrder(batch_sizes.tolist(), opposite, starts[step[n_rows:] - 1] + row[n_rows:])


def _lstm_forward(sizes: Sequence[int], gates: Tensor, weight: Tensor) -> _LstmSaved:
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
    return _LstmSaved(gates, cells, tanh_cells, hidden, weight)


def _lstm_backward(order: _LstmOrder, saved: _LstmSaved, gradient: Tensor) -> tuple[Tensor, Tensor]:
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
