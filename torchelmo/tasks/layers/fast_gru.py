"""A bidirectional GRU with its gradient written out: nn.GRU's numbers, many times as fast on a CPU for long rows.

    r = σ(W_r x + U_r h + b_r)   z = σ(W_z x + U_z h + b_z)   n = tanh(W_n x + b_n + r ⊙ (U_n h + b_u))
    h′ = n + z ⊙ (h − n)

Each core takes its share of the rows, packed (`shares.py`). The backward direction reads each row from its own end, so
that both directions have equally many rows at every step and take it together: step t of the packed order is a block of
(2, n_rows, …).

    forward     all products with x at once; then the steps, in place
    backward    what ∂/∂h is multiplied by for each gate is known for all tokens before the loop; then each weight's
                gradient is one product over all tokens

No second derivatives.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from torchelmo.bilm.parallel import in_parallel
from torchelmo.tasks.layers.shares import Share, share_rows


def run_gru(gru: nn.GRU, x: Tensor, lengths: Tensor) -> Tensor:
    """(batch, tokens, input_dim) -> (batch, tokens, 2 * hidden_dim), 0 at padding; one bidirectional layer."""
    batch, n_steps, _ = x.shape
    shares = [_order(share) for share in share_rows(lengths, n_steps)]
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


class _Order(NamedTuple):
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


class _Saved(NamedTuple):
    """What the gradient needs; the rows are in the order of reading."""

    x: Tensor  # (N, input_dim)
    gates: Tensor  # (2N, 3 · hidden_dim): r, z, n
    from_state: Tensor  # (2N, hidden_dim): U_n h + b_u
    hidden: Tensor  # (2 · rows + 2N, hidden_dim): zeros before the first step, then h


def _order(share: Share) -> _Order:
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
    return _Order(share.places, share.sizes, reading, inverse, before)


class _GRU(torch.autograd.Function):
    """Packed tokens, share after share: (n_tokens, input_dim) -> (n_tokens, 2 · hidden_dim)."""

    @staticmethod
    def forward(ctx: Any, shares: list[_Order], keep: bool, packed: Tensor, *weights: Tensor) -> Tensor:
        parts = packed.split([len(share.places) for share in shares])
        work = [(_Weights(*weights), share, part) for share, part in zip(shares, parts)]
        results = in_parallel(_forward, work, packed.device)
        if keep:
            ctx.save_for_backward(*weights, *(tensor for _, saved in results for tensor in saved))
        ctx.shares = shares
        return torch.cat([out for out, _ in results])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, tensors = _Weights(*ctx.saved_tensors[:4]), ctx.saved_tensors[4:]
        size = len(_Saved._fields)
        saved = [_Saved(*tensors[i : i + size]) for i in range(0, len(tensors), size)]
        parts = gradient.split([len(share.places) for share in ctx.shares])
        work = [(weights, *each) for each in zip(ctx.shares, saved, parts)]
        results = in_parallel(_backward, work, gradient.device)
        d_weights = [torch.stack(parts).sum(dim=0) for parts in list(zip(*results))[1:]]
        return (None, None, torch.cat([result[0] for result in results]), *d_weights)


def _forward(weights: _Weights, share: _Order, x: Tensor) -> tuple[Tensor, _Saved]:
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
    return out, _Saved(x, gates, from_state, hidden)


def _backward(weights: _Weights, share: _Order, saved: _Saved, gradient: Tensor) -> tuple[Tensor, ...]:
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
