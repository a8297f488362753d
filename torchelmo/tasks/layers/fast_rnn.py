"""Train a bidirectional GRU fast on a CPU: the results of `nn.GRU`, with a hand-written gradient.

    forward     A = x W_x + b for all tokens at once; then for each step, in place, A_t += h_{t-1} W_h, gates, h_t
    backward    the steps in reverse order give dL/dA_t; each weight's gradient is one product over all tokens

Padding is never computed: the tokens of a batch are packed step by step. Rows are divided among the cores
(`partition_rows`, which the highway LSTM of `srl` uses too). Second derivatives are not supported.
`benchmarks/task_layers.py` measures the gain.
"""

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from torchelmo.runtime import in_parallel

_MIN_ROWS = 16  # rows for each core: with fewer, the matrix products of a step are too small to gain from a core


class RowPartition(NamedTuple):
    """The rows of a batch that one core processes. Their tokens are packed step by step."""

    sizes: list[int]  # number of rows that reach each step
    starts: list[int]  # first token of each step
    step: Tensor  # (n_tokens,)
    row: Tensor  # (n_tokens,): row within the partition
    batch_row: Tensor  # (n_tokens,): row within the batch
    places: Tensor  # (n_tokens,): index into the flattened padded batch


def partition_rows(lengths: Tensor, n_steps: int) -> list[RowPartition]:
    """Divide the rows of a batch that is padded to `n_steps` into partitions of about equal work."""
    order = lengths.argsort(descending=True, stable=True)
    n_parts = _number_of_partitions(len(lengths), lengths.device)
    return [_pack_rows(order[first::n_parts], lengths, n_steps) for first in range(n_parts)]


def _number_of_partitions(n_rows: int, device: torch.device) -> int:
    return max(1, min(torch.get_num_threads(), n_rows // _MIN_ROWS)) if device.type == "cpu" else 1


def _pack_rows(rows: Tensor, lengths: Tensor, n_steps: int) -> RowPartition:
    reaches = torch.arange(n_steps, device=rows.device).unsqueeze(1) < lengths[rows]  # (steps, rows)
    sizes = [size for size in reaches.sum(dim=1).tolist() if size]
    step, row = reaches.nonzero(as_tuple=True)
    return RowPartition(sizes, [0, *accumulate(sizes)][:-1], step, row, rows[row], rows[row] * n_steps + step)


def run_gru(gru: nn.GRU, x: Tensor, lengths: Tensor) -> Tensor:
    """Run one bidirectional layer: (batch, tokens, input_dim) -> (batch, tokens, 2 * hidden_dim), 0 at padding.

    Args:
        gru: The layer.
        x: The padded batch.
        lengths: (batch,): the number of real tokens of each row, which come first.
    """
    batch, n_steps, _ = x.shape
    orders = [_reading_order(part) for part in partition_rows(lengths, n_steps)]
    places = torch.cat([order.places for order in orders])
    directions = [list(gru.parameters())[i : i + 4] for i in (0, 4)]
    input_weight, state_weight, input_bias, state_bias = zip(*directions)
    packed = x.to(input_weight[0].dtype).flatten(0, 1).index_select(0, places)
    result: Tensor = _GRU.apply(  # type: ignore[no-untyped-call]
        *(orders, torch.is_grad_enabled(), packed),
        *(torch.cat(input_weight).T, torch.cat(input_bias)),
        *(torch.stack(state_weight).transpose(1, 2), torch.stack(state_bias).unsqueeze(1)),
    )
    out = result.new_zeros(batch * n_steps, result.shape[1]).index_copy(0, places, result)
    return out.view(batch, n_steps, -1)


class _Order(NamedTuple):
    """The order in which both directions read the N tokens of a partition: for each step, first forward, then backward.

    The backward direction reads each row from its own end, so both directions have the same rows at each step.
    """

    places: Tensor  # (N,): index of each token in the flattened padded batch, step by step
    sizes: list[int]  # number of rows that reach each step
    reading: Tensor  # (2N,): the token that is read (2 * token + direction), in reading order
    inverse: Tensor  # (2N,): the position of (token, direction) in the reading order
    before: Tensor  # (2N,): index into `_Saved.hidden` of the row's state one step earlier, in reading order


class _Weights(NamedTuple):
    """Columns are in blocks r, z, n; input weights have the forward blocks first, then the backward blocks."""

    input: Tensor  # (input_dim, 6 · hidden_dim)
    input_bias: Tensor  # (6 · hidden_dim,)
    state: Tensor  # (2, hidden_dim, 3 · hidden_dim)
    state_bias: Tensor  # (2, 1, 3 · hidden_dim)


class _Saved(NamedTuple):
    """Tensors that the backward pass needs; rows are in reading order unless noted."""

    x: Tensor  # (N, input_dim), in packed order
    gates: Tensor  # (2N, 3 · hidden_dim): r, z, n
    from_state: Tensor  # (2N, hidden_dim): U_n h + b_u
    hidden: Tensor  # (2 · rows + 2N, hidden_dim): zeros for the initial state, then h


def _reading_order(part: RowPartition) -> _Order:
    step, row = part.step, part.row
    sizes, starts = torch.tensor([part.sizes, part.starts], dtype=torch.long, device=row.device)
    from_end = row.bincount()[row] - 1 - step
    token = starts[step] + row
    backwards = 2 * (starts[from_end] + row) + 1
    block = starts[step] + token  # a block holds the rows of its step twice: one for each direction
    reading = torch.empty(2 * len(step), dtype=torch.long, device=row.device)
    reading[block], reading[block + sizes[step]] = 2 * token, backwards
    inverse = torch.empty_like(reading)
    inverse[reading] = torch.arange(len(reading), device=row.device)
    before = torch.empty_like(reading)
    earlier = (step - 1).clamp_min(0)
    block_before = torch.where(step > 0, 2 * (sizes[:1] + starts[earlier]), 0)
    before[block], before[block + sizes[step]] = block_before + row, block_before + sizes[earlier] + row
    return _Order(part.places, part.sizes, reading, inverse, before)


class _GRU(torch.autograd.Function):
    """Packed tokens of all partitions: (n_tokens, input_dim) -> (n_tokens, 2 · hidden_dim)."""

    @staticmethod
    def forward(ctx: Any, orders: list[_Order], keep: bool, packed: Tensor, *weights: Tensor) -> Tensor:
        parts = packed.split([len(order.places) for order in orders])
        work = [(_Weights(*weights), order, part) for order, part in zip(orders, parts)]
        results = in_parallel(_forward, work, packed.device)
        if keep:
            ctx.save_for_backward(*weights, *(tensor for _, saved in results for tensor in saved))
        ctx.orders = orders
        return torch.cat([out for out, _ in results])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, tensors = _Weights(*ctx.saved_tensors[:4]), ctx.saved_tensors[4:]
        size = len(_Saved._fields)
        saved = [_Saved(*tensors[i : i + size]) for i in range(0, len(tensors), size)]
        parts = gradient.split([len(order.places) for order in ctx.orders])
        work = [(weights, *each) for each in zip(ctx.orders, saved, parts)]
        results = in_parallel(_backward, work, gradient.device)
        d_weights = [torch.stack(parts).sum(dim=0) for parts in list(zip(*results))[1:]]
        return (None, None, torch.cat([result[0] for result in results]), *d_weights)


def _forward(weights: _Weights, order: _Order, x: Tensor) -> tuple[Tensor, _Saved]:
    dim = weights.state.shape[1]
    products = torch.addmm(weights.input_bias, x, weights.input)
    gates = products.view(-1, 3 * dim).index_select(0, order.reading)
    blocks = [2 * size for size in order.sizes]
    first = blocks[0] if blocks else 0
    hidden = x.new_empty(first + len(gates), dim)
    hidden[:first] = 0.0
    from_state = x.new_empty(len(gates), dim)
    product = x.new_empty(first, 3 * dim)
    before = hidden[:first].view(2, -1, dim)
    for size, gate, kept, now in zip(
        order.sizes, gates.split(blocks), from_state.split(blocks), hidden[first:].split(blocks)
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
    out = hidden[first:].index_select(0, order.inverse).view(-1, 2 * dim)
    return out, _Saved(x, gates, from_state, hidden)


def _backward(weights: _Weights, order: _Order, saved: _Saved, gradient: Tensor) -> tuple[Tensor, ...]:
    """Return the gradient of x, then those of the weights in the order of `_Weights`."""
    dim = weights.state.shape[1]
    blocks = [2 * size for size in order.sizes]
    first = blocks[0] if blocks else 0
    r, z, n = saved.gates.split(dim, dim=1)
    hidden_before = saved.hidden.index_select(0, order.before)
    # dL/dgate = factor · dL/dh_t; the factors of all tokens are known before the loop.
    of_n = (1 - z).mul_(1 - n * n)  # for the product of n's weights with x
    d_gates = torch.empty_like(saved.gates)  # for the products with h; those of r and z are the same for x
    torch.mul(of_n, r, out=d_gates[:, 2 * dim :])
    torch.mul(d_gates[:, 2 * dim :], saved.from_state, out=d_gates[:, :dim]).mul_(1 - r)
    torch.sub(hidden_before, n, out=d_gates[:, dim : 2 * dim]).mul_(z).mul_(1 - z)
    d_hidden = torch.empty_like(saved.hidden)
    d_hidden[:first] = 0.0
    torch.index_select(gradient.reshape(-1, dim), 0, order.reading, out=d_hidden[first:])
    state = weights.state.transpose(1, 2)
    steps = list(zip(order.sizes, d_gates.split(blocks), z.split(blocks), d_hidden[first:].split(blocks)))
    earlier = [d_hidden[:first], *(step[3] for step in steps)]
    for (size, d_gate, keep, d_h), d_before in zip(reversed(steps), reversed(earlier[:-1])):
        d_gate.view(2 * size, 3, dim).mul_(d_h.unsqueeze(1))
        d_state = d_before.view(2, -1, dim)[:, :size]
        d_state.addcmul_(d_h.view(2, size, dim), keep.unflatten(0, (2, size)))
        d_state.baddbmm_(d_gate.view(2, size, 3 * dim), state)
    by_token = d_gates.index_select(0, order.inverse).view(-1, 2, 3 * dim).transpose(0, 1)
    before_by_token = hidden_before.index_select(0, order.inverse).view(-1, 2, dim).transpose(0, 1)
    d_state_weight = before_by_token.transpose(1, 2) @ by_token
    d_state_bias = by_token.sum(dim=1, keepdim=True)
    torch.mul(d_hidden[first:], of_n, out=d_gates[:, 2 * dim :])
    d_products = d_gates.index_select(0, order.inverse).view(-1, 6 * dim)
    d_x = d_products @ weights.input.T
    return d_x, saved.x.T @ d_products, d_products.sum(dim=0), d_state_weight, d_state_bias
