"""Windows of text through the biLM, for training.

`run_training` reads running text: full rows, carried state, truncated gradients. `run_masked` reads whole sentences,
each from zero state, with some words hidden. In both, the backward direction reads its text reversed, from its first
step to its last.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchelmo.bilm.encoder import WordEmbedding
from torchelmo.bilm.fast.encoder import encode_types
from torchelmo.bilm.lstm import FORGET_BIAS, LSTMState, ProjectedLSTM
from torchelmo.bilm.model import BiLM, BiLMState
from torchelmo.errors import InputError
from torchelmo.runtime import in_parallel


class TrainingOutput(NamedTuple):
    """The top layer of a window, and the state after it."""

    forward: Tensor | None  # (batch, unroll, projection_dim), the top layer; None without that direction
    backward: Tensor | None
    state: BiLMState  # detached, for the next window


def run_training(
    bilm: BiLM,
    ids_forward: Tensor | None,
    ids_backward: Tensor | None,
    state: BiLMState | None,
    *,
    dropout: float = 0.0,
    characters: Tensor | None = None,
    path: Literal["fast", "reference"] = "fast",
) -> TrainingOutput:
    """Run one window with gradients for every parameter.

    Args:
        bilm: The model.
        ids_forward: Ids (batch, unroll) that the forward language model reads, in reading order; None without it. They
            are rows of `characters` for a character model, word ids + 1 for a model that reads words.
        ids_backward: The same for the backward language model, with the text reversed.
        state: The state after the window before; None for zero.
        dropout: The dropout of the input of every LSTM and of the output, as published.
        characters: The character ids (n_types, max_characters) of all word types.
        path: "fast" uses hand-written gradients, "reference" autograd.

    Returns:
        The top layers, and the state for the next window.

    Raises:
        InputError: The ids or the state do not fit the model.
    """
    x = _encode(bilm, _check_ids(bilm, ids_forward, ids_backward), characters, path)
    if state is None:
        state = bilm.zero_state(x[0].shape[1])
    bilm.check_state(state, x[0].shape[1])
    x, after = _run_layers(bilm, x, state, dropout, path)
    top = {name: _drop(each, dropout).transpose(0, 1) for name, each in zip(bilm.config.directions, x)}
    return TrainingOutput(top.get("forward"), top.get("backward"), after)


def run_masked(
    bilm: BiLM,
    ids: Tensor,
    lengths: Tensor,
    masked: Tensor,
    *,
    dropout: float = 0.0,
    characters: Tensor | None = None,
    path: Literal["fast", "reference"] = "fast",
) -> Tensor:
    """Run a masked model on whole sentences, each from zero state, with gradients for every parameter.

    Args:
        bilm: A model with objective = "masked".
        ids: Ids (batch, tokens) of `<S>`, the words and `</S>` of each sentence, as for `run_training`. What follows a
            sentence in its row is read after it in both directions, and so changes nothing.
        lengths: (batch,), the number of tokens of each sentence, its marks included.
        masked: (batch, tokens), true at the words to hide.
        dropout: The dropout of the input of every LSTM and of the output.
        characters: The character ids (n_types, max_characters) of all word types.
        path: "fast" uses hand-written gradients, "reference" autograd.

    Returns:
        The top layer, (batch, tokens, dim); undefined after the end of a sentence.
    """
    reverse = _Reversal(lengths, ids.shape[1])
    [x] = _encode(bilm, [ids], characters, path)
    x = bilm.mask_tokens(x, masked.T)
    (forward, backward), _ = _run_layers(bilm, [x, reverse(x)], bilm.zero_state(len(ids)), dropout, path, reverse)
    return _drop(torch.cat([forward, reverse(backward)], dim=-1), dropout).transpose(0, 1)


class _Reversal:
    """Reverse every sentence in its row, (steps, batch, dim) -> the same; what follows a sentence stays in place."""

    def __init__(self, lengths: Tensor, steps: int) -> None:
        step, batch = torch.arange(steps, device=lengths.device).unsqueeze(1), len(lengths)
        places = torch.where(step < lengths, lengths - 1 - step, step)
        self._rows = (places * batch + torch.arange(batch, device=lengths.device)).flatten()

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1).index_select(0, self._rows).view_as(x)


def _run_layers(
    bilm: BiLM,
    x: list[Tensor],
    state: BiLMState,
    dropout: float,
    path: Literal["fast", "reference"],
    reverse: _Reversal | None = None,
) -> tuple[list[Tensor], BiLMState]:
    """Run all layers of every direction: (steps, batch, projection_dim), in reading order -> the top layer, and states.

    A joint layer needs `reverse`, from the reading order of one direction to that of the other.
    """
    config = bilm.config
    run = run_layer if path == "fast" else _run_layer_reference
    ends: list[list[LSTMState]] = []
    for j in range(config.n_layers):
        lstms = [bilm.direction_lstms(direction)[j] for direction in config.directions]
        starts = [LSTMState(state.hidden[d, j], state.cell[d, j]) for d in range(len(lstms))]
        below = inputs = [_drop(each, dropout) for each in x]
        if config.joint and j > 0 and reverse is not None:
            forward, backward = below
            inputs = [torch.cat(both, dim=-1) for both in ((forward, reverse(backward)), (reverse(forward), backward))]
        x, end = run(lstms, inputs, starts)
        if config.residual and j > 0:
            x = [out + each for out, each in zip(x, below)]
        ends.append(end)
    return x, _join(ends)


def _check_ids(bilm: BiLM, ids_forward: Tensor | None, ids_backward: Tensor | None) -> list[Tensor]:
    """Return the ids of each direction of the model."""
    if bilm.config.objective == "masked":
        raise InputError("run_training: expected a model with objective = 'bilm'. Use run_masked for a masked model.")
    given = {"forward": ids_forward, "backward": ids_backward}
    needed = [given[direction] for direction in bilm.config.directions]
    for direction, ids in zip(bilm.config.directions, needed):
        if ids is None or ids.dim() != 2 or ids.shape != needed[0].shape:  # type: ignore[union-attr]
            found = None if ids is None else tuple(ids.shape)
            raise InputError(
                f"run_training: expected ids_{direction} (batch, unroll), of one shape for all directions, got {found}."
            )
    return [ids for ids in needed if ids is not None]


def _encode(bilm: BiLM, ids: list[Tensor], characters: Tensor | None, path: str) -> list[Tensor]:
    """Each (batch, unroll) -> (unroll, batch, projection_dim); every word type of the window is encoded once."""
    if bilm.is_int8:
        raise InputError("run_training: this model has int8 weights. Train `bilm.dequantized()`.")
    encoder = bilm.encoder
    if isinstance(encoder, WordEmbedding):
        return [encoder(each.T) for each in ids]
    if characters is None:
        raise InputError("run_training: a model that reads characters needs `characters`, the ids of all word types.")
    types, position = torch.unique(torch.stack([each.T for each in ids]), return_inverse=True)
    rows = characters[types].long()
    with torch.autocast("cpu", enabled=False):  # on CPUs, converting these tensors takes longer than bfloat16 saves
        vectors = encode_types(encoder, rows) if path == "fast" else encoder(rows)
    return list(F.embedding(position, vectors).unbind())


def _run_layer_reference(
    lstms: Sequence[ProjectedLSTM], inputs: Sequence[Tensor], starts: Sequence[LSTMState]
) -> tuple[list[Tensor], list[LSTMState]]:
    """Compute `run_layer` by autograd."""
    outputs, ends = [], []
    for lstm, x, now in zip(lstms, inputs, starts):
        hidden = []
        for x_t in x.unbind():
            now = lstm.step(x_t, now)
            hidden.append(now.hidden)
        outputs.append(torch.stack(hidden))
        ends.append(LSTMState(now.hidden.detach(), now.cell.detach()))
    return outputs, ends


def _drop(x: Tensor, dropout: float) -> Tensor:
    return F.dropout(x, dropout) if dropout else x


def _join(ends: list[list[LSTMState]]) -> BiLMState:
    """States by layer and direction -> (n_directions, n_layers, batch, …)."""
    hidden, cell = (
        torch.stack([torch.stack([end[part] for end in layer]) for layer in ends], dim=1) for part in (0, 1)
    )
    return BiLMState(hidden, cell)


# One LSTM layer with a hand-written gradient


def run_layer(
    lstms: Sequence[ProjectedLSTM], inputs: Sequence[Tensor], starts: Sequence[LSTMState]
) -> tuple[list[Tensor], list[LSTMState]]:
    """Run one layer of every direction: (steps, batch, input_dim), in reading order -> (steps, batch, projection_dim).

    The returned states after the last step have no gradient. Under autocast to bfloat16, the matrix products are
    computed in bfloat16, and everything else in the dtype of the weights.
    """
    arguments: list[Tensor] = []
    for lstm, x, start in zip(lstms, inputs, starts):
        full = (tensor.to(lstm.bias.dtype) for tensor in (x, *start))  # autocast may have changed their dtype
        arguments += [*full, lstm.input_weight, lstm.state_weight, lstm.bias, lstm.projection]
    kind = arguments[0].device.type
    in_bfloat16 = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    forms = [_Form(lstm.cell_clip, lstm.projection_clip, in_bfloat16) for lstm in lstms]
    results = _Layer.apply(forms, *arguments)  # type: ignore[no-untyped-call]
    n = len(lstms)
    return list(results[:n]), [LSTMState(*pair) for pair in zip(results[n : 2 * n], results[2 * n :])]


class _Form(NamedTuple):
    """How the LSTM of one direction is computed."""

    cell_clip: float | None  # the largest absolute value of a cell
    projection_clip: float | None  # and of an output
    in_bfloat16: bool  # multiply matrices in bfloat16

    def operand(self, x: Tensor) -> Tensor:
        """Return x in the dtype in which matrices are multiplied."""
        return x.bfloat16() if self.in_bfloat16 else x

    def multiply(self, a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        """Write the product of two operands to `out`."""
        return out.copy_(torch.mm(a, b)) if self.in_bfloat16 else torch.mm(a, b, out=out)


class _Saved(NamedTuple):
    """The tensors that the gradient of one direction needs; `steps` is the length of the window."""

    x: Tensor  # (steps, batch, input_dim)
    gates: Tensor  # (steps, batch, 4 · cell_dim): σ(i), tanh(j), σ(f), σ(o)
    unclipped: Tensor  # (steps, batch, cell_dim): the cells before clipping
    cells: Tensor  # (1 + steps, batch, cell_dim): the state before the window, then the cells
    tanh_cells: Tensor  # (steps, batch, cell_dim)
    squashed: Tensor  # (steps, batch, cell_dim): σ(o) ⊙ tanh(c), the input of the projection
    projected: Tensor  # (steps, batch, projection_dim): the outputs before clipping
    hidden: Tensor  # (1 + steps, batch, projection_dim): the state before the window, then the outputs
    input_weight: Tensor
    state_weight: Tensor
    projection: Tensor


class _Layer(torch.autograd.Function):
    """The directions of one layer, each on its own thread."""

    @staticmethod
    def forward(ctx: Any, forms: list[_Form], *arguments: Tensor) -> tuple[Tensor, ...]:
        groups = [arguments[i : i + 7] for i in range(0, len(arguments), 7)]
        device = arguments[0].device
        with torch.autocast(device.type, enabled=False):
            results = in_parallel(_forward, [(form, *group) for form, group in zip(forms, groups)], device)
        ctx.forms = forms
        ctx.save_for_backward(*(tensor for saved in results for tensor in saved))
        hidden = [saved.hidden[-1].clone() for saved in results]
        cells = [saved.cells[-1].clone() for saved in results]
        ctx.mark_non_differentiable(*hidden, *cells)
        return (*(saved.hidden[1:] for saved in results), *hidden, *cells)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tensors, size = ctx.saved_tensors, len(_Saved._fields)
        saved = [_Saved(*tensors[i : i + size]) for i in range(0, len(tensors), size)]
        device = gradients[0].device
        with torch.autocast(device.type, enabled=False):
            results = in_parallel(_backward, list(zip(ctx.forms, saved, gradients)), device)
        return (None, *(gradient for result in results for gradient in result))


def _forward(
    form: _Form,
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    input_weight: Tensor,
    state_weight: Tensor,
    bias: Tensor,
    projection: Tensor,
) -> _Saved:
    steps, batch, _ = x.shape
    cell_dim, dim = projection.shape
    x = x.contiguous()
    start = bias.clone()
    start[2 * cell_dim : 3 * cell_dim] += FORGET_BIAS
    from_input, state_operand, projection_operand = map(form.operand, (input_weight, state_weight, projection))
    if form.in_bfloat16:
        products = torch.mm(form.operand(x.flatten(0, 1)), from_input).view(steps, batch, 4 * cell_dim)
        gates = torch.empty_like(products, dtype=x.dtype)
    else:
        products = gates = torch.addmm(start, x.flatten(0, 1), from_input).view(steps, batch, 4 * cell_dim)
    unclipped, tanh_cells, squashed = x.new_empty(3, steps, batch, cell_dim)
    projected = x.new_empty(steps, batch, dim)
    cells, outputs = x.new_empty(1 + steps, batch, cell_dim), x.new_empty(1 + steps, batch, dim)
    cells[0], outputs[0] = cell, hidden
    for t in range(steps):
        gate = products[t].addmm_(form.operand(outputs[t]), state_operand)
        if form.in_bfloat16:
            gate = gates[t].copy_(gate).add_(start)
        i, j, f, o = gate.chunk(4, dim=1)
        # tanh(j) = 2 σ(2j) − 1: one call for all gates, and σ is three times as fast as tanh.
        j.mul_(2.0)
        gate.sigmoid_()
        j.mul_(2.0).sub_(1.0)
        torch.mul(f, cells[t], out=unclipped[t]).addcmul_(i, j)
        _clip(unclipped[t], form.cell_clip, out=cells[t + 1])
        torch.mul(cells[t + 1], 2.0, out=tanh_cells[t]).sigmoid_().mul_(2.0).sub_(1.0)
        torch.mul(o, tanh_cells[t], out=squashed[t])
        form.multiply(form.operand(squashed[t]), projection_operand, out=projected[t])
        _clip(projected[t], form.projection_clip, out=outputs[t + 1])
    made = x, gates, unclipped, cells, tanh_cells, squashed, projected, outputs
    return _Saved(*made, input_weight, state_weight, projection)


def _backward(form: _Form, saved: _Saved, gradient: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of all arguments of `_forward` except the first."""
    d_outputs = gradient.clone(memory_format=torch.contiguous_format)
    d_gates = torch.empty_like(saved.gates)
    d_bias = d_gates.new_zeros(d_gates.shape[-1])
    d_hidden, d_cell = torch.zeros_like(saved.hidden[0]), torch.zeros_like(saved.cells[0])
    part, other = torch.empty_like(d_cell), torch.empty_like(d_cell)
    state_operand, projection_operand = form.operand(saved.state_weight).T, form.operand(saved.projection).T
    operands = torch.empty_like(d_gates, dtype=torch.bfloat16) if form.in_bfloat16 else d_gates
    for t in reversed(range(len(d_outputs))):
        i, j, f, o = saved.gates[t].chunk(4, dim=1)
        d_i, d_j, d_f, d_o = d_gates[t].chunk(4, dim=1)
        tanh = saved.tanh_cells[t]
        d_projected = _clip_backward(d_outputs[t].add_(d_hidden), saved.projected[t], form.projection_clip)
        form.multiply(form.operand(d_projected), projection_operand, out=part)
        _sigmoid_backward(torch.mul(part, tanh, out=other), o, out=d_o)
        d_cell.add_(_tanh_backward(part.mul_(o), tanh, out=part))
        _clip_backward(d_cell, saved.unclipped[t], form.cell_clip)
        _sigmoid_backward(torch.mul(d_cell, j, out=part), i, out=d_i)
        _tanh_backward(torch.mul(d_cell, i, out=part), j, out=d_j)
        _sigmoid_backward(torch.mul(d_cell, saved.cells[t], out=part), f, out=d_f)
        d_cell.mul_(f)
        d_bias.add_(d_gates[t].sum(dim=0))
        if form.in_bfloat16:
            operands[t].copy_(d_gates[t])
        form.multiply(operands[t], state_operand, out=d_hidden)
    flat = operands.flatten(0, 1)
    both = torch.cat([saved.x, saved.hidden[:-1]], dim=2).flatten(0, 1)  # the inputs of the gates
    d_weights = torch.mm(form.operand(both).T, flat).to(both.dtype)
    d_input_weight, d_state_weight = d_weights.split([saved.x.shape[2], saved.hidden.shape[2]])
    squashed, d_projected = form.operand(saved.squashed.flatten(0, 1)), form.operand(d_outputs.flatten(0, 1))
    d_projection = torch.mm(squashed.T, d_projected).to(both.dtype)
    d_x = torch.mm(flat, form.operand(saved.input_weight).T).to(both.dtype).view_as(saved.x)
    return d_x, d_hidden, d_cell, d_input_weight, d_state_weight, d_bias, d_projection


def _sigmoid_backward(gradient: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.sigmoid_backward(gradient, y, grad_input=out)
    return result


def _tanh_backward(gradient: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.tanh_backward(gradient, y, grad_input=out)
    return result


def _clip(x: Tensor, limit: float | None, *, out: Tensor) -> Tensor:
    return out.copy_(x) if limit is None else torch.clamp(x, -limit, limit, out=out)


def _clip_backward(gradient: Tensor, x: Tensor, limit: float | None) -> Tensor:
    """Set the gradient to zero, in place, where x is beyond the limit, as the gradient of `clamp` does."""
    if limit is None:
        return gradient
    exclusive = _next_number(limit, x.dtype)  # the limits of hardtanh's gradient are exclusive
    result: Tensor = torch.ops.aten.hardtanh_backward(gradient, x, -exclusive, exclusive, grad_input=gradient)
    return result


@cache
def _next_number(limit: float, dtype: torch.dtype) -> float:
    return float(torch.nextafter(torch.tensor(limit, dtype=dtype), torch.tensor(torch.inf, dtype=dtype)))
