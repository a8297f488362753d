"""The fast path for inference: sentences without padding, longest first, the directions side by side.

At step t the forward LSTM reads token t of every sentence that has one, the backward LSTM token length−1−t:
the two share their batch sizes, which shrink as sentences end. The product with the input does not depend on
the step before, so it is taken for many steps at once.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchelmo.bilm.fast.products import Precision, choose_product, has_half
from torchelmo.bilm.lstm import FORGET_BIAS, ProjectedLSTM
from torchelmo.runtime import in_parallel

# The input product of this many values is taken at once: 16 MB, few enough for the cache, enough for full speed.
_CHUNK_VALUES = 1 << 22
# Tensors, because PyTorch makes one of a number in every call, which for a single sentence takes longer than the sum.
_HALF, _TWO = torch.tensor(0.5), torch.tensor(2.0)


class SeparateLayer:
    """One layer of every direction, each with products of its own."""

    def __init__(self, lstms: Sequence[ProjectedLSTM], precision: Precision) -> None:
        self.directions = [_Direction(lstm, precision) for lstm in lstms]
        self.side_by_side = precision == "float32" or not has_half()

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor) -> Tensor:
        """(n_directions, n_tokens, input_dim), step after step -> (n_directions, n_tokens, projection_dim).

        `sizes` are the rows of each step; `hidden` and `cell` (n_directions, batch, …) are the state, updated
        in place.
        """

        def run_direction(d: int) -> Tensor:
            with torch.inference_mode():  # the mode belongs to a thread
                return self.directions[d].run(x[d], sizes, hidden[d], cell[d])

        each = range(len(x))
        if self.side_by_side:
            return torch.stack(in_parallel(run_direction, [(d,) for d in each], x.device))
        return torch.stack([run_direction(d) for d in each])


class PairedLayer:
    """One layer of every direction, the directions in one batched product."""

    def __init__(self, lstms: Sequence[ProjectedLSTM]) -> None:
        self.cell_dim = lstms[0].cell_dim
        self.cell_clip, self.projection_clip = lstms[0].cell_clip, lstms[0].projection_clip
        self.input_weight = _double_j([lstm.input_weight for lstm in lstms])
        self.state_weight = _double_j([lstm.state_weight for lstm in lstms])
        self.bias = _double_j([lstm.bias for lstm in lstms]).unsqueeze(1)
        self.bias[..., 2 * self.cell_dim : 3 * self.cell_dim] += FORGET_BIAS
        self.projection = 2 * torch.stack([lstm.projection.detach() for lstm in lstms])

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor) -> Tensor:
        """As `SeparateLayer.run`."""
        outputs: list[Tensor] = []  # of each step (n_directions, rows, projection_dim)
        before, n_rows = hidden, -1
        cell.mul_(2)
        for rows, some_sizes in _chunks(sizes, 4 * self.cell_dim * len(x)):
            of_input = torch.baddbmm(self.bias, x[:, rows], self.input_weight)
            for size, added in zip(some_sizes, of_input.split(some_sizes, dim=1)):
                if size != n_rows:  # at the start and as sentences end: the buffers of a step, and their parts
                    hidden[:, size : before.shape[1]] = before[:, size:]
                    before, twice, n_rows = before[:, :size], cell[:, :size], size
                    gates = x.new_empty(len(x), size, 4 * self.cell_dim)
                    parts = gates.chunk(4, dim=2)
                torch.baddbmm(added, before, self.state_weight, out=gates)
                gates.sigmoid_()
                before = torch.bmm(_half_output(parts, twice, self.cell_clip), self.projection)
                if self.projection_clip is not None:
                    before.clamp_(-self.projection_clip, self.projection_clip)
                outputs.append(before)
        cell.mul_(0.5)
        hidden[:, : before.shape[1]] = before
        return torch.cat(outputs, dim=1) if outputs else x.new_empty(len(x), 0, hidden.shape[-1])


class _Direction:
    """One layer in one direction, its weights ready for use."""

    def __init__(self, lstm: ProjectedLSTM, precision: Precision) -> None:
        self.cell_dim = lstm.cell_dim
        self.cell_clip, self.projection_clip = lstm.cell_clip, lstm.projection_clip
        self.input = choose_product(lstm.input_weight.detach(), precision)
        self.state = choose_product(lstm.state_weight.detach(), precision, few_rows=True)
        self.projection = choose_product(lstm.projection.detach(), precision, few_rows=True)
        self.bias = lstm.bias.detach().clone()
        self.bias[2 * lstm.cell_dim : 3 * lstm.cell_dim] += FORGET_BIAS

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        before, n_rows = hidden, -1
        cell.mul_(2)
        for rows, some_sizes in _chunks(sizes, 4 * self.cell_dim):
            of_input = self.input(x[rows], self.bias)
            for size, added in zip(some_sizes, of_input.split(some_sizes)):
                if size != n_rows:  # at the start and as sentences end
                    hidden[size : len(before)] = before[size:]
                    before, twice, n_rows = before[:size], cell[:size], size
                before = self._step(added, before, twice)
                outputs.append(before)
        cell.mul_(0.5)
        hidden[: len(before)] = before
        return torch.cat(outputs) if outputs else x.new_empty(0, hidden.shape[-1])

    def _step(self, of_input: Tensor, hidden: Tensor, twice: Tensor) -> Tensor:
        gates = self.state(hidden, of_input)
        parts = gates.chunk(4, dim=1)
        parts[1].mul_(_TWO)
        gates.sigmoid_()
        projected = self.projection(_half_output(parts, twice, self.cell_clip)).mul_(_TWO)
        if self.projection_clip is not None:
            projected.clamp_(-self.projection_clip, self.projection_clip)
        return projected


def _double_j(tensors: Sequence[Tensor]) -> Tensor:
    """The gates i, j, f, o of every direction, stacked, as i, 2j, f, o."""
    stacked = torch.stack([tensor.detach() for tensor in tensors])
    stacked.chunk(4, dim=-1)[1].mul_(2)
    return stacked


def _half_output(gates: Sequence[Tensor], twice: Tensor, clip: float | None) -> Tensor:
    """c ← f·c + i·tanh(j), kept doubled in `twice`, then o·tanh(c) / 2; `gates` are σ(i), σ(2j), σ(f), σ(o)."""
    i, j, f, o = gates
    twice.mul_(f).addcmul_(i, j, value=4).sub_(i, alpha=2)
    if clip is not None:
        twice.clamp_(-2 * clip, 2 * clip)
    return torch.sigmoid(twice).sub_(_HALF).mul_(o)


def _chunks(sizes: list[int], values_per_row: int) -> Iterator[tuple[slice, list[int]]]:
    """Consecutive steps whose input product stays small: their rows, and their sizes."""
    limit = max(1, _CHUNK_VALUES // values_per_row)
    start, first = 0, 0
    while first < len(sizes):
        end, last = start + sizes[first], first + 1
        while last < len(sizes) and end + sizes[last] - start <= limit:
            end, last = end + sizes[last], last + 1
        yield slice(start, end), sizes[first:last]
        start, first = end, last


_PAIRED_VALUES = 1 << 20  # of the state weight: up to here both directions fit one product well


class Packing(NamedTuple):
    """Where every token stands when the sentences are run side by side, longest first."""

    sizes: list[int]  # rows of each step
    forward: Tensor  # (n_tokens,) for each packed place, the place in the text; the forward order
    backward: Tensor  # the same in the backward order
    order: Tensor  # (n_sentences,) the sentences, longest first


class PackedBiLM:
    """All LSTMs of a biLM with their weights prepared; to be made anew when the weights change."""

    def __init__(
        self,
        directions: Sequence[Sequence[ProjectedLSTM]],
        *,
        residual: bool,
        precision: Precision = "float32",
    ) -> None:
        self.residual = residual
        self.backward = [lstms[0].backward for lstms in directions]
        weight = directions[0][0].state_weight
        paired = weight.numel() <= _PAIRED_VALUES or weight.device.type != "cpu"
        self.layers: list[PairedLayer | SeparateLayer] = [
            PairedLayer(lstms) if paired else SeparateLayer(lstms, precision) for lstms in zip(*directions)
        ]

    def run(self, x: Tensor, lengths: Sequence[int], hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n_tokens, projection_dim), sentence after sentence -> (n_layers + 1, n_tokens, dim), same order.

        `hidden` and `cell` (n_directions, n_layers, n_sentences, …) are the state before; the two other
        results are the state after. A sentence of length 0 leaves its state as it is.
        """
        # What comes out must be ordinary tensors: a mix that is trained keeps them for its gradients.
        layers = x.new_empty(len(self.layers) + 1, len(x), len(self.backward), x.shape[1])
        hidden_after, cell_after = torch.empty_like(hidden), torch.empty_like(cell)
        with torch.inference_mode():
            packing = pack(lengths, x.device)
            places = [packing.backward if backward else packing.forward for backward in self.backward]
            below = torch.stack([x[place] for place in places])
            layers[0] = x.unsqueeze(1)
            for j, layer in enumerate(self.layers):
                state = hidden[:, j, packing.order], cell[:, j, packing.order]
                out = layer.run(below, packing.sizes, *state)
                below = out.add_(below) if self.residual and j > 0 else out
                for d, place in enumerate(places):
                    layers[j + 1, :, d].index_copy_(0, place, below[d])
                hidden_after[:, j].index_copy_(1, packing.order, state[0])
                cell_after[:, j].index_copy_(1, packing.order, state[1])
        return layers.flatten(2), hidden_after, cell_after


def pack(lengths: Sequence[int], device: torch.device) -> Packing:
    """
    >>> pack([1, 3], torch.device("cpu")).sizes
    [2, 1, 1]
    """
    of = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-of, kind="stable")
    longest_first = of[order]
    starts = (np.cumsum(of) - of)[order]
    steps = np.arange(longest_first[0] if len(of) else 0)
    sizes = np.searchsorted(-longest_first, -steps, side="left")  # sentences longer than the step
    step, row = np.nonzero(np.arange(len(of)) < sizes[:, None])
    forward = starts[row] + step
    backward = starts[row] + longest_first[row] - 1 - step
    tensors = (torch.from_numpy(array).to(device) for array in (forward, backward, order))
    return Packing(sizes.tolist(), *tensors)
