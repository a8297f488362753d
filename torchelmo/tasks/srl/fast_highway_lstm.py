"""Run and train the highway LSTM fast: the results of `srl.model.run_reference`, with a hand-written gradient.

    forward     G = X W + b for all tokens at once; then for each step, in place, G_t += h' U, gates, c_t, h_t
    backward    the factor of each gate's gradient is computed for all tokens before the loop; the steps in reverse
                order turn it into dL/dG; each weight's gradient is one product over all tokens

Padding is never computed. Each core runs its partition of the rows through all layers (`partition_rows`).
Second derivatives are not supported. `benchmarks/task_layers.py` measures the gain.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchelmo.runtime import in_parallel
from torchelmo.tasks.layers.fast_rnn import RowPartition, partition_rows


class HighwayWeights(NamedTuple):
    """Columns are in blocks j, i, f, o, r; the input has a sixth block, W_h of the highway connection."""

    input: Tensor  # (input_dim, 6 · hidden_dim)
    state: Tensor  # (hidden_dim, 5 · hidden_dim)
    bias: Tensor  # (5 · hidden_dim,)


def run_packed(x: Tensor, mask: Tensor, kept: Tensor | None, weights: Sequence[HighwayWeights]) -> Tensor:
    """Run all layers: (batch, tokens, input_dim) -> (batch, tokens, hidden_dim), 0 at padding.

    Args:
        x: The padded batch.
        mask: (batch, tokens), true at real tokens, which come first.
        kept: (n_layers, batch, hidden_dim), the recurrent dropout masks z; None for no dropout.
        weights: The weights of each layer. Every second layer reads backward.
    """
    batch, steps, _ = x.shape
    parts = partition_rows(mask.sum(dim=1), steps)
    arguments = [tensor for layer in weights for tensor in layer]
    flat = x.to(weights[0].bias.dtype).reshape(batch * steps, x.shape[2])
    out: Tensor = _Stack.apply(parts, torch.is_grad_enabled(), kept, flat, *arguments)  # type: ignore[no-untyped-call]
    return out.view(batch, steps, out.shape[1])


class _Step(NamedTuple):
    """One step of a layer, in the layer's reading order."""

    now: slice  # its tokens
    before: slice  # the tokens of the previous step whose rows are in this step too
    n_before: int  # the number of those, which are the first rows of this step


def _reading_order(part: RowPartition, *, backwards: bool) -> list[_Step]:
    """List the steps. Forward, rows only drop out; backward, shorter rows join later."""
    order = list(range(len(part.sizes)))
    order = order[::-1] if backwards else order
    steps = []
    for previous, t in zip([None, *order], order):
        n = 0 if previous is None else min(part.sizes[previous], part.sizes[t])
        first = 0 if previous is None else part.starts[previous]
        steps.append(_Step(slice(part.starts[t], part.starts[t] + part.sizes[t]), slice(first, first + n), n))
    return steps


class _Saved(NamedTuple):
    """Tensors of one layer that the backward pass needs; all are (n_tokens, …)."""

    x: Tensor  # (…, input_dim)
    gates: Tensor  # (…, 6, hidden_dim): tanh(j), σ(i), σ(f), σ(o), σ(r), W_h x
    cells: Tensor  # (…, hidden_dim)
    tanh_cells: Tensor  # (…, hidden_dim)
    hidden: Tensor  # (…, hidden_dim)


class _Stack(torch.autograd.Function):
    """All layers: (batch · tokens, input_dim) -> (batch · tokens, hidden_dim), 0 at padded places."""

    @staticmethod
    def forward(
        ctx: Any, partitions: list[RowPartition], keep: bool, kept: Tensor | None, x: Tensor, *arguments: Tensor
    ) -> Tensor:
        weights = _layers_of(arguments)
        results = in_parallel(_forward, [(weights, kept, keep, part, x) for part in partitions], x.device)
        if keep:
            saved = [tensor for _, layers in results for layer in layers for tensor in layer]
            ctx.save_for_backward(*arguments, *saved, *([] if kept is None else [kept]))
        ctx.partitions, ctx.n_arguments, ctx.has_kept = partitions, len(arguments), kept is not None
        return _unpack([out for out, _ in results], partitions, len(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        kept = tensors[-1] if ctx.has_kept else None
        weights = _layers_of(tensors[: ctx.n_arguments])
        size, n = len(_Saved._fields), len(weights)
        layers = [_Saved(*tensors[i : i + size]) for i in range(ctx.n_arguments, len(tensors) - size + 1, size)]
        work = [(weights, kept, layers[p * n : (p + 1) * n], part, gradient) for p, part in enumerate(ctx.partitions)]
        results = in_parallel(_backward, work, gradient.device)
        d_weights = [sum(parts[1:], start=parts[0]) for parts in zip(*(flat for _, flat in results))]
        return (None, None, None, _unpack([d_x for d_x, _ in results], ctx.partitions, len(gradient)), *d_weights)


def _unpack(packed: list[Tensor], partitions: list[RowPartition], n: int) -> Tensor:
    """Return a tensor of `n` padded positions with the packed tokens at their places, 0 elsewhere."""
    padded = packed[0].new_zeros(n, packed[0].shape[1])
    for tokens, part in zip(packed, partitions):
        padded.index_copy_(0, part.places, tokens)
    return padded


def _layers_of(arguments: Sequence[Tensor]) -> list[HighwayWeights]:
    return [HighwayWeights(*arguments[i : i + 3]) for i in range(0, len(arguments), 3)]


def _forward(
    weights: list[HighwayWeights], kept: Tensor | None, keep: bool, part: RowPartition, x: Tensor
) -> tuple[Tensor, list[_Saved]]:
    x, layers = x.index_select(0, part.places), []
    for number, layer in enumerate(weights):
        z = None if kept is None else kept[number, part.batch_row]
        saved = _forward_layer(layer, z, _reading_order(part, backwards=number % 2 == 1), x)
        x = saved.hidden
        if keep:
            layers.append(saved)
    return x, layers


def _forward_layer(weights: HighwayWeights, z: Tensor | None, steps: list[_Step], x: Tensor) -> _Saved:
    dim = len(weights.state)
    input_weight, state_weight, bias = (_double_first_block(weight, dim) for weight in weights)
    products = torch.mm(x, input_weight)
    products[:, : 5 * dim] += bias
    gates = products.view(-1, 6, dim)
    cells, tanh_cells, hidden = x.new_empty(3, len(x), dim)
    minus_one = x.new_tensor(-1.0)
    for now, before, n_before in steps:
        product = products[now, : 5 * dim]
        if n_before:
            product[:n_before].addmm_(hidden[before], state_weight)
        product.sigmoid_()
        j, i, f, o, r, carried = gates[now].unbind(1)
        cell, tanh_cell, out = cells[now], tanh_cells[now], hidden[now]
        torch.add(minus_one, j, alpha=2.0, out=j)
        torch.mul(i, j, out=cell)
        if n_before:
            cell[:n_before].addcmul_(f[:n_before], cells[before])
        torch.add(cell, cell, out=tanh_cell).sigmoid_()
        torch.add(minus_one, tanh_cell, alpha=2.0, out=tanh_cell)
        torch.lerp(carried, torch.mul(o, tanh_cell, out=out), r, out=out)
        if z is not None:
            out.mul_(z[now])
    return _Saved(x, gates, cells, tanh_cells, hidden)


def _double_first_block(weight: Tensor, dim: int) -> Tensor:
    """Double the weights of j, so that tanh(j) = 2 σ(2j) - 1: one σ for all gates is faster than a separate tanh."""
    doubled = weight.clone()
    doubled[..., :dim] *= 2.0
    return doubled


def _backward(
    weights: list[HighwayWeights], kept: Tensor | None, layers: list[_Saved], part: RowPartition, gradient: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradient of x, and those of all weights in their order."""
    gradient, flat = gradient.index_select(0, part.places), list[Tensor]()
    for number in reversed(range(len(weights))):
        z = None if kept is None else kept[number, part.batch_row]
        steps = _reading_order(part, backwards=number % 2 == 1)
        gradient, *of_weights = _backward_layer(weights[number], z, steps, layers[number], gradient)
        flat = [*of_weights, *flat]
    return gradient, flat


def _backward_layer(
    weights: HighwayWeights, z: Tensor | None, steps: list[_Step], saved: _Saved, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dim = len(weights.state)
    j, i, f, o, r, carried = saved.gates.unbind(1)
    cells_before, hidden_before = _before(saved.cells, steps), _before(saved.hidden, steps)
    # dL/dgate = factor · dL/dc for j, i, f and factor · dL/dh for o, r, W_h x.
    d_gates = torch.empty_like(saved.gates)
    of_cell = r * o
    torch.mul(i, 1 - j * j, out=d_gates[:, 0])
    torch.mul(j, _slope(i), out=d_gates[:, 1])
    torch.mul(cells_before, _slope(f), out=d_gates[:, 2])
    torch.mul(r * saved.tanh_cells, _slope(o), out=d_gates[:, 3])
    torch.mul(o * saved.tanh_cells - carried, _slope(r), out=d_gates[:, 4])
    torch.sub(1.0, r, out=d_gates[:, 5])
    of_cell.mul_(1 - saved.tanh_cells * saved.tanh_cells)
    if z is not None:
        d_gates[:, 3:].mul_(z.unsqueeze(1))
        of_cell.mul_(z)
    d_hidden = gradient  # may be overwritten: the layer above or `index_select` made it for this call
    d_cell = d_hidden.new_zeros(max((now.stop - now.start for now, _, _ in steps), default=0), dim)
    flat = d_gates.view(-1, 6 * dim)
    state_weight = weights.state.T
    for now, before, n_before in reversed(steps):
        d_h, d_c, d_gate = d_hidden[now], d_cell[: now.stop - now.start], d_gates[now]
        d_c.addcmul_(d_h, of_cell[now])
        d_gate[:, :3].mul_(d_c.unsqueeze(1))
        d_gate[:, 3:].mul_(d_h.unsqueeze(1))
        if n_before:
            d_hidden[before].addmm_(flat[now][:n_before, : 5 * dim], state_weight)
            d_c.mul_(f[now])
    d_input = torch.mm(saved.x.T, flat)
    d_state = torch.mm(hidden_before.T, flat[:, : 5 * dim])
    return torch.mm(flat, weights.input.T), d_input, d_state, flat[:, : 5 * dim].sum(dim=0)


def _slope(sigmoid: Tensor) -> Tensor:
    return sigmoid * (1 - sigmoid)


def _before(values: Tensor, steps: list[_Step]) -> Tensor:
    """Return for every token the value of its row at the previous step in reading order, 0 at a row's first step."""
    shifted = torch.zeros_like(values)
    for now, before, n_before in steps:
        if n_before:
            shifted[now][:n_before] = values[before]
    return shifted
