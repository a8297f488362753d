"""The highway LSTM for training and inference at speed; `highway_lstm.py` has the equations.

    forward     G = X W + b for all tokens at once; then for each step, in place, G_t += h′ U, gates, c_t, h_t
    backward    what each gate is multiplied by is known for all tokens before the loop; the steps in reverse
                turn it into ∂/∂G; then each weight's gradient is one product over all tokens

Each core takes its share of the rows through all layers, packed (`shares.py`). No second derivatives.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchelmo.runtime import in_parallel
from torchelmo.tasks.layers.fast_rnn import Share, share_rows


class HighwayWeights(NamedTuple):
    """The blocks of columns are j, i, f, o, r, and for x the highway's own W_h."""

    input: Tensor  # (input_dim, 6 · hidden_dim)
    state: Tensor  # (hidden_dim, 5 · hidden_dim)
    bias: Tensor  # (5 · hidden_dim,)


def run_packed(x: Tensor, mask: Tensor, kept: Tensor | None, weights: Sequence[HighwayWeights]) -> Tensor:
    """(batch, tokens, input_dim) -> (batch, tokens, hidden_dim); `kept` (n_layers, batch, hidden_dim) is z."""
    batch, steps, _ = x.shape
    shares = share_rows(mask.sum(dim=1), steps)
    arguments = [tensor for layer in weights for tensor in layer]
    flat = x.to(weights[0].bias.dtype).reshape(batch * steps, x.shape[2])
    out: Tensor = _Stack.apply(shares, torch.is_grad_enabled(), kept, flat, *arguments)  # type: ignore[no-untyped-call]
    return out.view(batch, steps, out.shape[1])


class _Step(NamedTuple):
    """One step of a layer, in the order in which that layer reads."""

    now: slice  # its tokens
    before: slice  # the tokens of the step read before it, as far as their rows are in this one
    n_before: int  # how many those are: the first rows of this step


def _reading_order(share: Share, *, backwards: bool) -> list[_Step]:
    """Forwards every row of a step was in the one before; backwards the shorter rows start on the way."""
    order = list(range(len(share.sizes)))
    order = order[::-1] if backwards else order
    steps = []
    for previous, t in zip([None, *order], order):
        n = 0 if previous is None else min(share.sizes[previous], share.sizes[t])
        first = 0 if previous is None else share.starts[previous]
        steps.append(_Step(slice(share.starts[t], share.starts[t] + share.sizes[t]), slice(first, first + n), n))
    return steps


class _Saved(NamedTuple):
    """What the gradient needs of one layer; all are (n_tokens, …)."""

    x: Tensor  # (…, input_dim)
    gates: Tensor  # (…, 6, hidden_dim): tanh(j), σ(i), σ(f), σ(o), σ(r), W_h x
    cells: Tensor  # (…, hidden_dim)
    tanh_cells: Tensor  # (…, hidden_dim)
    hidden: Tensor  # (…, hidden_dim)


class _Stack(torch.autograd.Function):
    """All layers: (batch · tokens, input_dim) -> (batch · tokens, hidden_dim), 0 at padded places."""

    @staticmethod
    def forward(
        ctx: Any, shares: list[Share], keep: bool, kept: Tensor | None, x: Tensor, *arguments: Tensor
    ) -> Tensor:
        weights = _layers_of(arguments)
        results = in_parallel(_forward, [(weights, kept, keep, share, x) for share in shares], x.device)
        if keep:
            saved = [tensor for _, layers in results for layer in layers for tensor in layer]
            ctx.save_for_backward(*arguments, *saved, *([] if kept is None else [kept]))
        ctx.shares, ctx.n_arguments, ctx.has_kept = shares, len(arguments), kept is not None
        return _unpack([out for out, _ in results], shares, len(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        kept = tensors[-1] if ctx.has_kept else None
        weights = _layers_of(tensors[: ctx.n_arguments])
        size, n = len(_Saved._fields), len(weights)
        layers = [_Saved(*tensors[i : i + size]) for i in range(ctx.n_arguments, len(tensors) - size + 1, size)]
        work = [(weights, kept, layers[s * n : (s + 1) * n], share, gradient) for s, share in enumerate(ctx.shares)]
        results = in_parallel(_backward, work, gradient.device)
        d_weights = [sum(parts[1:], start=parts[0]) for parts in zip(*(flat for _, flat in results))]
        return (None, None, None, _unpack([d_x for d_x, _ in results], ctx.shares, len(gradient)), *d_weights)


def _unpack(parts: list[Tensor], shares: list[Share], n: int) -> Tensor:
    """Packed tokens of all shares -> their places among `n`, 0 elsewhere."""
    padded = parts[0].new_zeros(n, parts[0].shape[1])
    for part, share in zip(parts, shares):
        padded.index_copy_(0, share.places, part)
    return padded


def _layers_of(arguments: Sequence[Tensor]) -> list[HighwayWeights]:
    return [HighwayWeights(*arguments[i : i + 3]) for i in range(0, len(arguments), 3)]


def _forward(
    weights: list[HighwayWeights], kept: Tensor | None, keep: bool, share: Share, x: Tensor
) -> tuple[Tensor, list[_Saved]]:
    x, layers = x.index_select(0, share.places), []
    for number, layer in enumerate(weights):
        z = None if kept is None else kept[number, share.batch_row]
        saved = _forward_layer(layer, z, _reading_order(share, backwards=number % 2 == 1), x)
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
    """For tanh(j) = 2 σ(2j) − 1: one call serves all gates, and σ is four times as fast as tanh."""
    doubled = weight.clone()
    doubled[..., :dim] *= 2.0
    return doubled


def _backward(
    weights: list[HighwayWeights], kept: Tensor | None, layers: list[_Saved], share: Share, gradient: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The gradient of x, and those of all weights in their order."""
    gradient, flat = gradient.index_select(0, share.places), list[Tensor]()
    for number in reversed(range(len(weights))):
        z = None if kept is None else kept[number, share.batch_row]
        steps = _reading_order(share, backwards=number % 2 == 1)
        gradient, *of_weights = _backward_layer(weights[number], z, steps, layers[number], gradient)
        flat = [*of_weights, *flat]
    return gradient, flat


def _backward_layer(
    weights: HighwayWeights, z: Tensor | None, steps: list[_Step], saved: _Saved, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dim = len(weights.state)
    j, i, f, o, r, carried = saved.gates.unbind(1)
    cells_before, hidden_before = _before(saved.cells, steps), _before(saved.hidden, steps)
    # ∂/∂gate = factor · ∂/∂c for j, i, f and factor · ∂/∂h for o, r, W_h x.
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
    d_hidden = gradient  # made for this call, by the layer above or by packing
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
    """For every token the value of its row one step before in reading order, 0 where the row starts."""
    shifted = torch.zeros_like(values)
    for now, before, n_before in steps:
        if n_before:
            shifted[now][:n_before] = values[before]
    return shifted
