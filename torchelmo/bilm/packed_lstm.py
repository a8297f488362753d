"""The recurrence of the fast path, in two forms: a thread per direction, or both directions in one product.

Large shapes are bound by memory and want packed weights and a thread each. Small ones are bound by the number
of calls, which one batched product for both directions halves; there two threads would only wait for each other.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchelmo.bilm.lstm import FORGET_BIAS, ProjectedLSTM
from torchelmo.bilm.parallel import in_parallel
from torchelmo.bilm.products import Precision, choose_product

# The input product of this many values is taken at once: 32 MB, enough for a full-speed product.
_CHUNK_VALUES = 1 << 23


class SeparateLayer:
    """One layer of every direction, each run in a thread of its own."""

    def __init__(self, lstms: Sequence[ProjectedLSTM], precision: Precision) -> None:
        self.directions = [_Direction(lstm, precision) for lstm in lstms]

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor) -> Tensor:
        """(n_directions, n_tokens, input_dim), step after step -> (n_directions, n_tokens, projection_dim).

        `sizes` are the rows of each step; `hidden` and `cell` (n_directions, batch, …) are the state, updated
        in place.
        """

        def run_direction(d: int) -> Tensor:
            with torch.inference_mode():  # the mode belongs to a thread
                return self.directions[d].run(x[d], sizes, hidden[d], cell[d])

        return torch.stack(in_parallel(run_direction, [(d,) for d in range(len(x))], x.device))


class PairedLayer:
    """One layer of every direction, the directions in one batched product."""

    def __init__(self, lstms: Sequence[ProjectedLSTM]) -> None:
        self.cell_dim = lstms[0].cell_dim
        self.cell_clip, self.projection_clip = lstms[0].cell_clip, lstms[0].projection_clip
        self.input_weight = self._stack([lstm.input_weight for lstm in lstms])
        self.state_weight = self._stack([lstm.state_weight for lstm in lstms])
        self.bias = self._stack([lstm.bias for lstm in lstms]).unsqueeze(1)
        self.bias[..., self.cell_dim : 2 * self.cell_dim] += FORGET_BIAS
        self.projection = torch.stack([lstm.projection.detach() for lstm in lstms])

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor) -> Tensor:
        """As `SeparateLayer.run`."""
        outputs: list[Tensor] = []  # of each step (n_directions, rows, projection_dim)
        before, n_rows = hidden, -1
        for rows, some_sizes in _chunks(sizes, 4 * self.cell_dim * len(x)):
            of_input = torch.baddbmm(self.bias, x[:, rows], self.input_weight)
            for size, added in zip(some_sizes, of_input.split(some_sizes, dim=1)):
                if size != n_rows:  # at the start and as sentences end: the buffers of a step, and their parts
                    hidden[:, size : before.shape[1]] = before[:, size:]
                    before, now, n_rows = before[:, :size], cell[:, :size], size
                    gates = x.new_empty(len(x), size, 4 * self.cell_dim)
                    i, f, o, j = gates.chunk(4, dim=2)
                    ifo, squashed = gates[..., : 3 * self.cell_dim], x.new_empty(len(x), size, self.cell_dim)
                torch.baddbmm(added, before, self.state_weight, out=gates)
                ifo.sigmoid_()
                now.mul_(f).addcmul_(i, j.tanh_())
                if self.cell_clip is not None:
                    now.clamp_(-self.cell_clip, self.cell_clip)
                torch.tanh(now, out=squashed).mul_(o)
                before = torch.bmm(squashed, self.projection)
                if self.projection_clip is not None:
                    before.clamp_(-self.projection_clip, self.projection_clip)
                outputs.append(before)
        hidden[:, : before.shape[1]] = before
        return torch.cat(outputs, dim=1) if outputs else x.new_empty(len(x), 0, hidden.shape[-1])

    def _stack(self, tensors: Sequence[Tensor]) -> Tensor:
        """The gates i, j, f, o reordered to i, f, o, j, so that the three sigmoids are one call."""
        parts = [tensor.detach().chunk(4, dim=-1) for tensor in tensors]
        return torch.stack([torch.cat([i, f, o, j], dim=-1) for i, j, f, o in parts])


class _Direction:
    """One layer in one direction, its weights ready for use."""

    def __init__(self, lstm: ProjectedLSTM, precision: Precision) -> None:
        self.cell_dim = lstm.cell_dim
        self.cell_clip, self.projection_clip = lstm.cell_clip, lstm.projection_clip
        self.input = choose_product(lstm.input_weight.detach(), precision, small_batches=False)
        self.state = choose_product(lstm.state_weight.detach(), precision, small_batches=True)
        self.projection = choose_product(lstm.projection.detach(), precision, small_batches=False)
        self.bias = lstm.bias.detach().clone()
        self.bias[2 * lstm.cell_dim : 3 * lstm.cell_dim] += FORGET_BIAS

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        before, n_rows = hidden, -1
        for rows, some_sizes in _chunks(sizes, 4 * self.cell_dim):
            of_input = self.input(x[rows], self.bias)
            for size, added in zip(some_sizes, of_input.split(some_sizes)):
                if size != n_rows:  # at the start and as sentences end
                    hidden[size : len(before)] = before[size:]
                    before, now, n_rows = before[:size], cell[:size], size
                before = self._step(added, before, now)
                outputs.append(before)
        hidden[: len(before)] = before
        return torch.cat(outputs) if outputs else x.new_empty(0, hidden.shape[-1])

    def _step(self, of_input: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
        gates = self.state(hidden, of_input)
        i, j, f, o = gates.chunk(4, dim=1)
        gates[:, 2 * self.cell_dim :].sigmoid_()
        cell.mul_(f).addcmul_(i.sigmoid_(), j.tanh_())
        if self.cell_clip is not None:
            cell.clamp_(-self.cell_clip, self.cell_clip)
        projected = self.projection(torch.tanh(cell).mul_(o))
        if self.projection_clip is not None:
            projected.clamp_(-self.projection_clip, self.projection_clip)
        return projected


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
