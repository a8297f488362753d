"""All layers of a biLM for inference: no padding, no gradients, weights prepared once.

Sentences are sorted by length, longest first, and both directions run side by side. At step t the forward LSTM reads
token t of every sentence that has one, and the backward LSTM token length − 1 − t: the two share their batch sizes,
which shrink as sentences end. The product with the input does not depend on the step before, so it is computed for many
steps at once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from torchelmo.bilm.encoder import CharCNN, WordEmbedding
from torchelmo.bilm.fast.encoder import FastEncoder, TokenVectorCache
from torchelmo.bilm.fast.int8 import WEIGHTS, Int8LSTM, has_int8
from torchelmo.bilm.fast.int8_layer import Int8Layer
from torchelmo.bilm.fast.products import (
    ROW_CLASSES,
    Kernel,
    Kernels,
    Precision,
    Tuning,
    WeightsKey,
    WeightsVersion,
    choose_kernel,
    kernels_setting,
    list_candidates,
    list_kernels,
    prepare_product,
    split_steps,
)
from torchelmo.bilm.lstm import FORGET_BIAS, ProjectedLSTM
from torchelmo.runtime import in_parallel, release_freed_memory

LSTM = ProjectedLSTM | Int8LSTM
State = tuple[Tensor, Tensor]  # hidden and cell (n_directions, n_layers, n_sentences, …), as in BiLMState
# Tensors, because PyTorch converts a number in every call, which takes longer than the sum for a single sentence.
_HALF, _TWO = torch.tensor(0.5), torch.tensor(2.0)


class FastInference:
    """The modules of a biLM with their weights prepared for speed.

    The weights are prepared at the first call, and again whenever a parameter has changed. A copy prepares its own.

    Args:
        encoder: The token encoder.
        directions: For each direction its LSTMs, first layer first.
        residual: Whether every layer but the first adds its input.
        tuning: The sizes at which another method is chosen; it may be changed later.
    """

    def __init__(
        self,
        encoder: CharCNN | WordEmbedding,
        directions: Sequence[nn.ModuleList],
        *,
        residual: bool,
        tuning: Tuning | None = None,
    ) -> None:
        self.encoder, self.directions = encoder, list(directions)
        self.residual, self.tuning = residual, tuning or Tuning()
        self._versions = {"encoder": WeightsVersion(), "lstms": WeightsVersion()}
        self._prepared: dict[tuple[str, Precision], tuple[Any, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_prepared": {}}

    def token_vectors(
        self, words: Sequence[str], cache: TokenVectorCache, *, precision: Precision = "float32"
    ) -> Tensor:
        """Return the token vectors (n_words, projection_dim) of words; only those not in the cache are encoded."""
        places: dict[str, int] = {}
        order = [places.setdefault(word, len(places)) for word in words]
        distinct = list(places)
        precision = self._usable(precision)
        key = precision, self._encoder_key()
        vectors, missing = cache.look_up(distinct, key)
        if missing:
            new_words = [distinct[place] for place in missing]
            assert isinstance(self.encoder, CharCNN), "only a model that reads characters needs a cache"
            ids = self.encoder.characters.encode(new_words)
            new = self.encode(torch.from_numpy(ids).to(self.encoder.embedding.device), precision=precision)
            cache.add(new_words, new, key)
            vectors = new if vectors is None else vectors.index_copy_(0, torch.tensor(missing, device=new.device), new)
        assert vectors is not None, "a batch has at least one word"
        return vectors[torch.tensor(order)]

    def encode(self, ids: Tensor, *, precision: Precision = "float32") -> Tensor:
        """Encode ids (n, max_characters), or word ids (n,), of distinct words -> (n, projection_dim)."""
        encoder = self.encoder
        if isinstance(encoder, WordEmbedding):
            vectors: Tensor = encoder(ids)
            return vectors.detach()
        precision, key = self._usable(precision), (self._encoder_key(), self.tuning)
        with torch.autocast(ids.device.type, enabled=False):  # the fast paths choose their precision themselves
            prepared = self._prepare("encoder", precision, key, lambda: FastEncoder(encoder, precision, self.tuning))
            return cast("Tensor", prepared(ids))

    def run(
        self,
        x: Tensor,
        lengths: Sequence[int],
        state: State | None = None,
        *,
        precision: Precision = "float32",
        kernels: Kernels = "fixed",
    ) -> tuple[Tensor, State]:
        """Run all layers.

        Args:
            x: Token vectors (n_tokens, projection_dim), sentence after sentence.
            lengths: The number of tokens of each sentence. One without tokens keeps its state.
            state: The state before; default: zero.
            precision: "float16" stores large weights in float16, and "int8" all LSTM weights in int8, if the machine
                has kernels for it. A model that was loaded in int8 always runs in int8.
            kernels: "measured" uses the fastest kernels of this machine, whose results differ in the last digits
                between machines and processes; "fixed" always the same. TORCHELMO_KERNELS=fixed overrides "measured".

        Returns:
            The layers (n_layers + 1, n_tokens, dim), in the order of `x`, and the state after.
        """
        precision = self._usable(precision)
        lstms = [cast("list[LSTM]", [*modules]) for modules in self.directions]
        key = self._versions["lstms"](
            weight for modules in self.directions for weight in (*modules.parameters(), *modules.buffers())
        )
        with torch.autocast(x.device.type, enabled=False):
            prepared = self._prepare(
                "lstms",
                precision,
                (key, self.tuning),
                lambda: Recurrence(lstms, residual=self.residual, precision=precision, tuning=self.tuning),
            )
            start = state or _zero_state(lstms, x, len(lengths))
            kernels = kernels if kernels == "fixed" else kernels_setting()
            layers, hidden, cell = prepared.run(x.detach(), lengths, *start, kernels)
        return layers, (hidden, cell)

    def _usable(self, precision: Precision) -> Precision:
        """Return the precision that the model and the machine have instead of `precision`."""
        first = cast("LSTM", self.directions[0][0])
        if precision != "int8" and not isinstance(first, Int8LSTM):
            return precision
        in_float32 = first.bias.device.type == "cpu" and first.bias.dtype == torch.float32
        return "int8" if in_float32 and has_int8() else "float32"

    def _encoder_key(self) -> WeightsKey:
        # Weights in float16 change only together with their biases; they are no buffers while they are packed.
        buffers = (buffer for buffer in self.encoder.buffers() if buffer.dtype != torch.float16)
        return self._versions["encoder"]((*self.encoder.parameters(), *buffers))

    def _prepare(self, part: str, precision: Precision, key: Any, prepare: Callable[[], Any]) -> Any:
        """Return what was prepared for this key, or prepare it now."""
        # Drop what belongs to older weights first, so that there are never three copies in memory.
        for name, (other, _) in list(self._prepared.items()):
            if name[0] == part and other != key:
                self._prepared.pop(name, None)
        kept = self._prepared.get((part, precision))
        if kept is None:
            kept = self._prepared[part, precision] = (key, prepare())
        return kept[1]


def _zero_state(lstms: Sequence[Sequence[LSTM]], x: Tensor, n_sentences: int) -> State:
    shape, first = (len(lstms), len(lstms[0]), n_sentences), lstms[0][0]
    return x.new_zeros(*shape, first.projection_dim), x.new_zeros(*shape, first.cell_dim)


# Sentences without padding


class Packing(NamedTuple):
    """The places of all tokens when sentences run side by side, longest first."""

    sizes: list[int]  # rows of each step
    forward: Tensor  # (n_tokens,) for each packed place its place in the text, in forward order
    backward: Tensor  # the same in backward order
    order: Tensor  # (n_sentences,) the sentences, longest first


def pack(lengths: Sequence[int], device: torch.device) -> Packing:
    """Pack sentences of the given lengths.

    >>> pack([1, 3], torch.device("cpu")).sizes
    [2, 1, 1]
    """
    all_lengths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-all_lengths, kind="stable")
    longest_first = all_lengths[order]
    starts = (np.cumsum(all_lengths) - all_lengths)[order]
    steps = np.arange(longest_first[0] if len(all_lengths) else 0)
    sizes = np.searchsorted(-longest_first, -steps, side="left")  # sentences longer than the step
    step, row = np.nonzero(np.arange(len(all_lengths)) < sizes[:, None])
    forward = starts[row] + step
    backward = starts[row] + longest_first[row] - 1 - step
    tensors = (torch.from_numpy(array).to(device) for array in (forward, backward, order))
    return Packing(sizes.tolist(), *tensors)


# The recurrence


class Recurrence:
    """All LSTMs of a biLM with weights prepared for the kernels that were used so far."""

    def __init__(
        self, directions: Sequence[Sequence[LSTM]], *, residual: bool, precision: Precision, tuning: Tuning
    ) -> None:
        self.residual, self.precision, self.tuning = residual, precision, tuning
        self.backward = [lstms[0].backward for lstms in directions]
        if precision != "int8":
            directions = [
                [lstm.dequantize() if isinstance(lstm, Int8LSTM) else lstm for lstm in lstms] for lstms in directions
            ]
        self.lstms = list(zip(*directions))  # layer by layer
        self.kernels = list_kernels(directions[0][0].state_weight, precision, tuning)
        self._layers: dict[tuple[str, int], _Layer] = {}  # by product and number
        self._chosen: dict[tuple[int, bool, int], Kernel] = {}

    def run(
        self, x: Tensor, lengths: Sequence[int], hidden: Tensor, cell: Tensor, kernels: Kernels
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(n_tokens, projection_dim) -> layers (n_layers + 1, n_tokens, dim), and hidden and cell state after."""
        # Allocated outside of inference mode: a mix that is trained saves these tensors for its gradients.
        layers = x.new_empty(len(self.lstms) + 1, len(x), len(self.backward), x.shape[1])
        hidden_after, cell_after = torch.empty_like(hidden), torch.empty_like(cell)
        with torch.inference_mode():
            packing = pack(lengths, x.device)
            kernel = self.choose(packing.sizes, measure=kernels == "measured")
            places = [packing.backward if backward else packing.forward for backward in self.backward]
            below = torch.stack([x[place] for place in places])
            layers[0] = x.unsqueeze(1)
            for j in range(len(self.lstms)):
                state = hidden[:, j, packing.order], cell[:, j, packing.order]
                joint = self.lstms[j][0].input_dim > x.shape[1]  # reads both directions of the layer below
                inputs = torch.stack([layers[j].flatten(1)[place] for place in places]) if joint else below
                out = self._layer(kernel, j).run(inputs, packing.sizes, *state, kernel)
                below = out.add_(below) if self.residual and j > 0 else out
                for d, place in enumerate(places):
                    layers[j + 1, :, d].index_copy_(0, place, below[d])
                hidden_after[:, j].index_copy_(1, packing.order, state[0])
                cell_after[:, j].index_copy_(1, packing.order, state[1])
        return layers.flatten(2), hidden_after, cell_after

    def _layer(self, kernel: Kernel, j: int) -> "_Layer":
        """Return layer j with the weights that a kernel needs; prepare them when they are first needed."""
        product = kernel.layout
        if (product, j) not in self._layers:
            lstms, tuning = self.lstms[j], self.tuning
            if product == "int8":
                layer: _Layer = Int8Layer(lstms, tuning.input_chunk // 4)  # less memory
            else:
                layer = JointLayer(lstms, tuning) if product == "joint" else _SeparateLayer(lstms, product, tuning)
            self._layers[product, j] = layer
        return self._layers[product, j]

    def choose(self, sizes: Sequence[int], *, measure: bool = True) -> Kernel:
        """Return the kernel for steps of these sizes: the fastest one of the first layer, or without measuring."""
        mean = sum(size * size for size in sizes) / max(1, sum(sizes))  # rows of a step, on average over the tokens
        rows = min(ROW_CLASSES, key=lambda rows: abs(math.log(rows / max(1.0, mean))))
        key = rows, measure, torch.get_num_threads()
        if key not in self._chosen:
            self._chosen[key] = self._choose(rows, measure=measure)
        return self._chosen[key]

    def _choose(self, rows: int, *, measure: bool) -> Kernel:
        first, n = self.lstms[0][0], len(self.backward)
        kernels = list_candidates(self.kernels, rows, n)
        if not measure or first.bias.device.type != "cpu" or first.bias.dtype != torch.float32:
            return kernels[0]
        small = self.kernels[0].product == "batched"
        dims = f"{first.input_dim}-{first.cell_dim}-{first.projection_dim}"
        key = f"{self.precision}, {n} × {dims}, {rows} rows, {torch.get_num_threads()} threads, tuning {self.tuning}"

        def prepare(kernel: Kernel) -> Callable[[], Tensor]:
            steps = [rows] * max(2, min(8 if small else 3, 128 // rows))
            x, hidden, cell = (
                torch.zeros(n, size, dim)
                for size, dim in ((sum(steps), first.input_dim), (rows, first.projection_dim), (rows, first.cell_dim))
            )
            layer = self._layer(kernel, 0)
            return lambda: layer.run(x, steps, hidden, cell, kernel)

        used = {layout for layout, j in self._layers}
        chosen = choose_kernel(key, kernels, prepare)
        self._layer(chosen, 0)
        keep = used | {chosen.layout}
        self._layers = {name: layer for name, layer in self._layers.items() if name[0] in keep}  # drop others' weights
        release_freed_memory()
        return chosen


class _Layer(Protocol):
    """The LSTMs of all directions of one layer."""

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor, kernel: Kernel) -> Tensor:
        """(n_directions, n_tokens, input_dim), step after step -> (n_directions, n_tokens, projection_dim).

        `sizes` are the rows of each step. `hidden` and `cell` (n_directions, batch, …) are updated in place.
        """


class _SeparateLayer:
    """One layer of every direction, each direction with its own products: for large models."""

    def __init__(self, lstms: Sequence[LSTM], product: str, tuning: Tuning) -> None:
        arguments = [(lstm, product, tuning) for lstm in lstms]
        self.directions = in_parallel(_Direction, arguments, lstms[0].bias.device)  # packing uses one core

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor, kernel: Kernel) -> Tensor:
        """As `_Layer.run`."""
        out = x.new_empty(*x.shape[:2], hidden.shape[-1])

        def run_direction(d: int) -> None:
            with torch.inference_mode():  # the mode belongs to a thread
                self.directions[d].run(x[d], sizes, hidden[d], cell[d], out[d])

        for group in [range(len(x))] if kernel.in_threads else [[d] for d in range(len(x))]:
            in_parallel(run_direction, [(d,) for d in group], x.device)  # a single direction uses all threads
        return out


class _Direction:
    """One layer in one direction."""

    def __init__(self, lstm: LSTM, product: str, tuning: Tuning) -> None:
        self.cell_dim = lstm.cell_dim
        self.chunk, self.steps = tuning.input_chunk, _Steps(lstm, product, tuning)

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor, out: Tensor) -> None:
        """As `_Layer.run`, for one direction; `out` (n_tokens, projection_dim) is overwritten."""
        before, n_rows = hidden, -1
        cell.mul_(2)
        for rows, some_sizes in split_steps(sizes, self.chunk // (4 * self.cell_dim)):
            parts = zip(some_sizes, self.steps.inputs(x[rows]).split(some_sizes), out[rows].split(some_sizes))
            for size, added, after in parts:
                if size != n_rows:  # at the start, and when sentences end
                    hidden[size : len(before)] = before[size:]
                    before, twice, n_rows = before[:size], cell[:size], size
                    output = x.new_empty(size, self.cell_dim)
                before = after.copy_(self.steps.step(added, before, twice, output))
        cell.mul_(0.5)
        hidden[: len(before)] = before


class _Steps:
    """The steps of one LSTM in one direction."""

    def __init__(self, lstm: LSTM, product: str, tuning: Tuning) -> None:
        self.cell_clip, self.projection_clip = lstm.cell_clip, lstm.projection_clip
        self.input, self.state, self.projection = (
            prepare_product(getattr(lstm, name).detach(), product, tuning) for name in WEIGHTS
        )
        self.bias = lstm.bias.detach().clone()
        self.bias[2 * lstm.cell_dim : 3 * lstm.cell_dim] += FORGET_BIAS

    def inputs(self, x: Tensor) -> Tensor:
        return self.input(x, self.bias)

    def step(self, from_input: Tensor, hidden: Tensor, twice: Tensor, output: Tensor) -> Tensor:
        gates = self.state(hidden, from_input)
        parts = gates.chunk(4, dim=1)
        parts[1].mul_(_TWO)
        gates.sigmoid_()
        _half_output(parts, twice, self.cell_clip, output)
        projected = self.projection(output).mul_(_TWO)
        if self.projection_clip is not None:
            projected.clamp_(-self.projection_clip, self.projection_clip)
        return projected


class JointLayer:
    """One layer of every direction, with the gates of all directions in one tensor: for small models and for GPUs."""

    def __init__(self, lstms: Sequence[LSTM], tuning: Tuning) -> None:
        self.cell_dim, self.chunk = lstms[0].cell_dim, tuning.input_chunk
        self.cell_clip, self.projection_clip = lstms[0].cell_clip, lstms[0].projection_clip
        self.input_weight = _double_j([lstm.input_weight for lstm in lstms])
        self.state_weight = _double_j([lstm.state_weight for lstm in lstms])
        self.bias = _double_j([lstm.bias for lstm in lstms]).unsqueeze(1)
        self.bias[..., 2 * self.cell_dim : 3 * self.cell_dim] += FORGET_BIAS
        self.projection = 2 * torch.stack([lstm.projection.detach() for lstm in lstms])
        self.state_weights, self.projections = self.state_weight.unbind(), self.projection.unbind()

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor, kernel: Kernel) -> Tensor:
        """As `_Layer.run`."""
        outputs: list[Tensor] = []
        before, n_rows, batched = hidden, -1, kernel.product == "batched"
        cell.mul_(2)
        for rows, some_sizes in split_steps(sizes, self.chunk // (4 * self.cell_dim * len(x))):
            from_input = torch.baddbmm(self.bias, x[:, rows], self.input_weight)
            for size, added in zip(some_sizes, from_input.split(some_sizes, dim=1)):
                if size != n_rows:  # at the start, and when sentences end
                    hidden[:, size : before.shape[1]] = before[:, size:]
                    before, twice, n_rows = before[:, :size], cell[:, :size], size
                    gates, output = x.new_empty(len(x), size, 4 * self.cell_dim), torch.empty_like(twice)
                    parts, directions = gates.chunk(4, dim=2), gates.unbind()
                if batched:
                    torch.baddbmm(added, before, self.state_weight, out=gates)
                else:
                    for add, h, weight, gate in zip(added.unbind(), before.unbind(), self.state_weights, directions):
                        torch.addmm(add, h, weight, out=gate)
                gates.sigmoid_()
                _half_output(parts, twice, self.cell_clip, output)
                if batched:
                    before = torch.bmm(output, self.projection)
                else:
                    before = torch.stack([torch.mm(half, w) for half, w in zip(output.unbind(), self.projections)])
                if self.projection_clip is not None:
                    before.clamp_(-self.projection_clip, self.projection_clip)
                outputs.append(before)
        cell.mul_(0.5)
        hidden[:, : before.shape[1]] = before
        return torch.cat(outputs, dim=1) if outputs else x.new_empty(len(x), 0, hidden.shape[-1])


def _double_j(tensors: Sequence[Tensor]) -> Tensor:
    """Stack the gates i, j, f, o of every direction as i, 2j, f, o."""
    stacked = torch.stack([tensor.detach() for tensor in tensors])
    stacked.chunk(4, dim=-1)[1].mul_(2)
    return stacked


def _half_output(gates: Sequence[Tensor], twice: Tensor, clip: float | None, out: Tensor) -> None:
    """Update c ← f·c + i·tanh(j) and write o·tanh(c) / 2 to `out`.

    `gates` are σ(i), σ(2j), σ(f), σ(o), and `twice` is 2c: tanh(x) = 2σ(2x) − 1, and σ is faster than tanh.
    """
    i, j, f, o = gates
    twice.mul_(f).addcmul_(i, j, value=4).sub_(i, alpha=2)
    if clip is not None:
        twice.clamp_(-2 * clip, 2 * clip)
    torch.sigmoid(twice, out=out).sub_(_HALF).mul_(o)
