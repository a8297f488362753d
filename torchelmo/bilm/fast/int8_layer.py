"""One layer of LSTMs in int8. Its directions run together, so that they share every call but the products, or singly.

Single sentences are limited by the number of calls. All tensors of a step are (rows, directions, dim): sentences are
sorted by length, so the rows that remain when sentences end are the first ones, and stay contiguous.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchelmo.bilm.fast.int8 import (
    Int8LSTM,
    Int8Product,
    Int8Products,
    MixedParts,
    int8_weights,
    sigmoid_rows,
)
from torchelmo.bilm.fast.products import Kernel, split_steps
from torchelmo.bilm.lstm import FORGET_BIAS, ProjectedLSTM
from torchelmo.runtime import in_parallel

_PACK_INPUT = 64  # rows: a copy of the input weight is not worth its memory for single sentences
_HALF = torch.tensor(0.5)  # a tensor, because PyTorch converts a number in every call


class Int8Layer:
    """One layer of every direction.

    Args:
        lstms: The LSTM of each direction.
        input_chunk: The largest number of values to compute at once from the input.
    """

    def __init__(self, lstms: Sequence[ProjectedLSTM | Int8LSTM], input_chunk: int) -> None:
        first = lstms[0]
        self.cell_dim, self.chunk = first.cell_dim, input_chunk
        self.cell_clip, self.projection_clip = first.cell_clip, first.projection_clip
        self.biases, self.inputs, self.states, self.projections = [], [], [], []
        for lstm in lstms:
            input_weight, state_weight, projection = int8_weights(lstm).values()
            # tanh(z) = 2σ(2z) − 1: the factors are folded into the scales, which changes no digit.
            input_weight, state_weight = (w._replace(scale=_double_j(w.scale)) for w in (input_weight, state_weight))
            self.inputs.append(Int8Product(input_weight, pack_from=_PACK_INPUT))
            self.states.append(Int8Product(state_weight))
            self.projections.append(Int8Product(projection._replace(scale=2 * projection.scale)))
            self.biases.append(_double_j(lstm.bias.detach()))
            self.biases[-1][2 * self.cell_dim : 3 * self.cell_dim] += FORGET_BIAS

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor, kernel: Kernel) -> Tensor:
        """(n_directions, n_tokens, input_dim), step after step -> (n_directions, n_tokens, projection_dim).

        `sizes` are the rows of each step. `hidden` and `cell` (n_directions, batch, …) are updated in place.
        """
        out = x.new_empty(x.shape[1], len(x), hidden.shape[2])

        def run_some(which: slice) -> None:
            with torch.inference_mode():  # the mode belongs to a thread
                self._run(which, x[which], sizes, hidden[which], cell[which], out[:, which])

        parts = [slice(None)] if kernel.product == "int8 together" else [slice(d, d + 1) for d in range(len(x))]
        for group in [parts] if kernel.in_threads else [[part] for part in parts]:
            in_parallel(run_some, [(part,) for part in group], x.device)  # a single call uses all threads
        return out.transpose(0, 1)

    def _run(self, which: slice, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor, out: Tensor) -> None:
        """Run some directions. `out` (n_tokens, n_directions, projection_dim) is overwritten."""
        x, state, twice = x.transpose(0, 1), hidden.transpose(0, 1), torch.mul(cell, 2).transpose(0, 1).contiguous()
        max_rows = max(len(twice), self.chunk // (4 * self.cell_dim))
        steps, before = _Steps(self, which, twice, min(len(x), max_rows)), state
        for rows, some_sizes in split_steps(sizes, max_rows):
            before = steps.run(x[rows], some_sizes, state, before, out[rows])
        cell.copy_(twice.transpose(0, 1)).mul_(0.5)
        state[: len(before)] = before


class _Steps:
    """The steps of some directions. All memory but that of the products is allocated once.

    Args:
        layer: The layer.
        which: Its directions.
        twice: 2c for all sentences (rows, n_directions, cell_dim), which is updated.
        max_rows: The largest number of rows whose gates are computed at once from the input.
    """

    def __init__(self, layer: Int8Layer, which: slice, twice: Tensor, max_rows: int) -> None:
        n_sentences, n, cell_dim = twice.shape
        self.cell_clip, self.projection_clip, self.biases = layer.cell_clip, layer.projection_clip, layer.biases[which]
        self.input = Int8Products(layer.inputs[which], max_rows)
        self.state = Int8Products(layer.states[which], n_sentences)
        self.projection = Int8Products(layer.projections[which], n_sentences)
        # The gates of a single direction take the place of its products.
        self.all_gates = twice.new_empty(max_rows, n, 4 * cell_dim) if n > 1 else None
        self.all_twice, self.all_outputs, self.other = twice, torch.empty_like(twice), torch.empty_like(twice)
        self.rows = -1

    def run(self, x: Tensor, sizes: list[int], state: Tensor, before: Tensor, out: Tensor) -> Tensor:
        """Run a few steps (n_rows, n_directions, input_dim), write their outputs to `out`, and return the last one.

        `before` is the output of the step before. The rows of sentences that ended are copied to `state`.
        """
        self.input.resize(len(x))
        products, largest = self.input(x)
        all_gates = products[0].unsqueeze(1) if self.all_gates is None else self.all_gates[: len(x)]
        self._add(self.biases, products, largest, all_gates)
        for size, gates, after in zip(sizes, all_gates.split(sizes), out.split(sizes)):
            if size != self.rows:  # at the start, and when sentences end
                state[size : len(before)] = before[size:]
                before = before[:size]
                self._resize(size)
            self._step(gates, before, after)
            before = after
        return before

    def _resize(self, rows: int) -> None:
        self.rows, self.twice, self.output = rows, self.all_twice[:rows], self.all_outputs[:rows]
        self.flat_twice, self.flat_output = self.twice.flatten(0, 1), self.output.flatten(0, 1)
        self.mix = MixedParts(self.flat_output, self.other[:rows].flatten(0, 1))
        self.mixed = self.mix.result.view_as(self.output)
        self.state.resize(rows)
        self.projection.resize(rows)

    def _step(self, gates: Tensor, before: Tensor, after: Tensor) -> None:
        """Write the output of the step that follows `before` to `after`, both (rows, n_directions, projection_dim).

        `gates` (rows, n_directions, 4 · cell_dim) is what the input adds to them, and is overwritten.
        """
        self._add(gates.unbind(1), *self.state(before), gates)
        flat_gates = gates.flatten(0, 1)
        sigmoid_rows(flat_gates, out=flat_gates)
        i, j, f, o = gates.chunk(4, dim=2)
        self.twice.mul_(f).addcmul_(i, j, value=4).sub_(i, alpha=2)
        if self.cell_clip is not None:
            self.twice.clamp_(-2 * self.cell_clip, 2 * self.cell_clip)
        sigmoid_rows(self.flat_twice, out=self.flat_output).sub_(_HALF)
        self.output.mul_(o)
        self.mix()
        products, largest = self.projection(self.mixed)
        for product, factor, output in zip(products, largest.unbind(1), after.unbind(1)):
            torch.mul(product, factor, out=output)
        if self.projection_clip is not None:
            after.clamp_(-self.projection_clip, self.projection_clip)

    @staticmethod
    def _add(values: Sequence[Tensor], products: list[Tensor], largest: Tensor, out: Tensor) -> None:
        """Write value + product · max |x| of each direction to `out` (rows, n_directions, dim)."""
        for value, product, factor, result in zip(values, products, largest.unbind(1), out.unbind(1)):
            torch.addcmul(value, product, factor, out=result)


def _double_j(gates: Tensor) -> Tensor:
    """Return the values (4 · cell_dim,) of the gates i, j, f, o as i, 2j, f, o."""
    doubled = gates.clone()
    doubled.chunk(4)[1].mul_(2)
    return doubled
