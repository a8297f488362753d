"""All layers of a biLM for inference: no padding, no gradients, weights prepared once.

Sentences are sorted by length, longest first, and both directions run side by side. At step t the forward LSTM reads
token t of every sentence that has one, and the backward LSTM token length − 1 − t: the two share their batch sizes,
which shrink as sentences end. The product with the input does not depend on the step before, so it is computed for many
steps at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from torchelmo.bilm.encoder import CharCNN, WordEmbedding
from torchelmo.bilm.fast.cache import TokenVectorCache
from torchelmo.bilm.fast.encoder import FastEncoder
from torchelmo.bilm.fast.int8 import WEIGHTS, Int8LSTM, Int8Product, has_int8, int8_weight, sigmoid_rows_
from torchelmo.bilm.fast.products import Precision, Product, Tuning, choose_product, has_half
from torchelmo.bilm.lstm import FORGET_BIAS, ProjectedLSTM
from torchelmo.runtime import in_parallel

T = TypeVar("T")
LSTM = ProjectedLSTM | Int8LSTM
State = tuple[Tensor, Tensor]  # hidden and cell (n_directions, n_layers, n_sentences, …), as in BiLMState
WeightsKey = tuple[tuple[int, ...], tuple[int, ...], bytes]  # addresses, versions, some values
_N_SAMPLES = 8  # values compared of a large parameter
_SMALL = 1 << 13  # the most values of a small parameter
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
        with torch.autocast(ids.device.type, enabled=False):  # the fast paths choose their precision themselves
            precision = self._usable(precision)
            key = self._encoder_key(), self.tuning
            prepared = self._prepare("encoder", precision, key, lambda: FastEncoder(encoder, precision, self.tuning))
            return prepared(ids)

    def run(
        self, x: Tensor, lengths: Sequence[int], state: State | None = None, *, precision: Precision = "float32"
    ) -> tuple[Tensor, State]:
        """Run all layers.

        Args:
            x: Token vectors (n_tokens, projection_dim), sentence after sentence.
            lengths: The number of tokens of each sentence. One without tokens keeps its state.
            state: The state before; default: zero.
            precision: "float16" stores large weights in float16, and "int8" all LSTM weights in int8, if the machine
                has kernels for it. A model that was loaded in int8 always runs in int8.

        Returns:
            The layers (n_layers + 1, n_tokens, dim), in the order of `x`, and the state after.
        """
        precision = self._usable(precision)
        lstms = [_lstms(modules) for modules in self.directions]
        key = self._versions["lstms"](
            weight for modules in self.directions for weight in (*modules.parameters(), *modules.buffers())
        )
        with torch.autocast(x.device.type, enabled=False):
            prepared = self._prepare(
                "lstms",
                precision,
                (key, self.tuning),
                lambda: _Recurrence(lstms, residual=self.residual, precision=precision, tuning=self.tuning),
            )
            layers, hidden, cell = prepared.run(x.detach(), lengths, *(state or _zero_state(lstms, x, len(lengths))))
        return layers, (hidden, cell)

    def _usable(self, precision: Precision) -> Precision:
        """Return the precision that the model and the machine have instead of `precision`."""
        first = _lstms(self.directions[0])[0]
        if precision != "int8" and not isinstance(first, Int8LSTM):
            return precision
        in_float32 = first.bias.device.type == "cpu" and first.bias.dtype == torch.float32
        return "int8" if in_float32 and has_int8() else "float32"

    def _encoder_key(self) -> WeightsKey:
        return self._versions["encoder"](self.encoder.parameters())

    def _prepare(self, part: str, precision: Precision, key: Any, prepare: Callable[[], T]) -> T:
        """Return what was prepared for this key, or prepare it now."""
        # Drop what belongs to older weights first, so that there are never three copies in memory.
        for name, (other, _) in list(self._prepared.items()):
            if name[0] == part and other != key:
                self._prepared.pop(name, None)
        kept = self._prepared.get((part, precision))
        if kept is None:
            kept = self._prepared[part, precision] = (key, prepare())
        prepared: T = kept[1]
        return prepared


def _lstms(modules: nn.ModuleList) -> list[LSTM]:
    return list(modules)  # type: ignore[arg-type]


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


class _Recurrence:
    """All LSTMs of a biLM with prepared weights."""

    def __init__(
        self, directions: Sequence[Sequence[LSTM]], *, residual: bool, precision: Precision, tuning: Tuning
    ) -> None:
        self.residual = residual
        self.backward = [lstms[0].backward for lstms in directions]
        first = directions[0][0].state_weight
        paired = precision != "int8" and (first.numel() <= tuning.max_paired_weight or first.device.type != "cpu")
        self.layers: list[_PairedLayer | _SeparateLayer] = []
        for lstms in zip(*directions):
            if precision != "int8":
                lstms = tuple(lstm.dequantize() if isinstance(lstm, Int8LSTM) else lstm for lstm in lstms)
            self.layers += [_PairedLayer(lstms, tuning) if paired else _SeparateLayer(lstms, precision, tuning)]

    def run(self, x: Tensor, lengths: Sequence[int], hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n_tokens, projection_dim) -> layers (n_layers + 1, n_tokens, dim), and hidden and cell state after."""
        # Allocated outside of inference mode: a mix that is trained saves these tensors for its gradients.
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


class _SeparateLayer:
    """One layer of every direction, each direction with its own products: for large models."""

    def __init__(self, lstms: Sequence[LSTM], precision: Precision, tuning: Tuning) -> None:
        self.directions = [_Direction(lstm, precision, tuning) for lstm in lstms]
        self.in_threads = precision == "float32" or (precision == "float16" and not has_half())

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor) -> Tensor:
        """(n_directions, n_tokens, input_dim), step after step -> (n_directions, n_tokens, projection_dim).

        `sizes` are the rows of each step. `hidden` and `cell` (n_directions, batch, …) are updated in place.
        """

        def run_direction(d: int) -> Tensor:
            with torch.inference_mode():  # the mode belongs to a thread
                return self.directions[d].run(x[d], sizes, hidden[d], cell[d])

        if self.in_threads:
            return torch.stack(in_parallel(run_direction, [(d,) for d in range(len(x))], x.device))
        return torch.stack([run_direction(d) for d in range(len(x))])


class _Direction:
    """One layer in one direction."""

    def __init__(self, lstm: LSTM, precision: Precision, tuning: Tuning) -> None:
        self.cell_dim, self.chunk = lstm.cell_dim, tuning.input_chunk
        self.cell_clip, self.projection_clip = lstm.cell_clip, lstm.projection_clip
        self.sigmoid_: Callable[[Tensor], Tensor] = Tensor.sigmoid_
        self.input: Product
        self.state: Product
        self.projection: Product
        if precision == "int8":
            self.sigmoid_ = sigmoid_rows_
            self.input, self.state, self.projection = (Int8Product(int8_weight(lstm, name)) for name in WEIGHTS)
        else:
            self.input = choose_product(lstm.input_weight.detach(), precision, tuning)
            self.state = choose_product(lstm.state_weight.detach(), precision, tuning, few_rows=True)
            self.projection = choose_product(lstm.projection.detach(), precision, tuning, few_rows=True)
        self.bias = lstm.bias.detach().clone()
        self.bias[2 * lstm.cell_dim : 3 * lstm.cell_dim] += FORGET_BIAS

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor) -> Tensor:
        """As `_SeparateLayer.run`, for one direction."""
        outputs: list[Tensor] = []
        before, n_rows = hidden, -1
        cell.mul_(2)
        for rows, some_sizes in _chunks(sizes, self.chunk // (4 * self.cell_dim)):
            from_input = self.input(x[rows], self.bias)
            for size, added in zip(some_sizes, from_input.split(some_sizes)):
                if size != n_rows:  # at the start, and when sentences end
                    hidden[size : len(before)] = before[size:]
                    before, twice, n_rows = before[:size], cell[:size], size
                before = self._step(added, before, twice)
                outputs.append(before)
        cell.mul_(0.5)
        hidden[: len(before)] = before
        return torch.cat(outputs) if outputs else x.new_empty(0, hidden.shape[-1])

    def _step(self, from_input: Tensor, hidden: Tensor, twice: Tensor) -> Tensor:
        gates = self.state(hidden, from_input)
        parts = gates.chunk(4, dim=1)
        parts[1].mul_(_TWO)
        self.sigmoid_(gates)
        projected = self.projection(_half_output(parts, twice, self.cell_clip, self.sigmoid_)).mul_(_TWO)
        if self.projection_clip is not None:
            projected.clamp_(-self.projection_clip, self.projection_clip)
        return projected


class _PairedLayer:
    """One layer of every direction, all directions in one batched product: for small models and for GPUs."""

    def __init__(self, lstms: Sequence[LSTM], tuning: Tuning) -> None:
        self.cell_dim, self.chunk = lstms[0].cell_dim, tuning.input_chunk
        self.cell_clip, self.projection_clip = lstms[0].cell_clip, lstms[0].projection_clip
        self.input_weight = _double_j([lstm.input_weight for lstm in lstms])
        self.state_weight = _double_j([lstm.state_weight for lstm in lstms])
        self.bias = _double_j([lstm.bias for lstm in lstms]).unsqueeze(1)
        self.bias[..., 2 * self.cell_dim : 3 * self.cell_dim] += FORGET_BIAS
        self.projection = 2 * torch.stack([lstm.projection.detach() for lstm in lstms])

    def run(self, x: Tensor, sizes: list[int], hidden: Tensor, cell: Tensor) -> Tensor:
        """As `_SeparateLayer.run`."""
        outputs: list[Tensor] = []  # of each step (n_directions, rows, projection_dim)
        before, n_rows = hidden, -1
        cell.mul_(2)
        for rows, some_sizes in _chunks(sizes, self.chunk // (4 * self.cell_dim * len(x))):
            from_input = torch.baddbmm(self.bias, x[:, rows], self.input_weight)
            for size, added in zip(some_sizes, from_input.split(some_sizes, dim=1)):
                if size != n_rows:  # at the start, and when sentences end: make the buffers of a step
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


def _double_j(tensors: Sequence[Tensor]) -> Tensor:
    """Stack the gates i, j, f, o of every direction as i, 2j, f, o."""
    stacked = torch.stack([tensor.detach() for tensor in tensors])
    stacked.chunk(4, dim=-1)[1].mul_(2)
    return stacked


def _half_output(
    gates: Sequence[Tensor],
    twice: Tensor,
    clip: float | None,
    sigmoid_: Callable[[Tensor], Tensor] = Tensor.sigmoid_,
) -> Tensor:
    """Update c ← f·c + i·tanh(j) and return o·tanh(c) / 2.

    `gates` are σ(i), σ(2j), σ(f), σ(o), and `twice` is 2c: tanh(x) = 2σ(2x) − 1, and σ is faster than tanh.
    """
    i, j, f, o = gates
    twice.mul_(f).addcmul_(i, j, value=4).sub_(i, alpha=2)
    if clip is not None:
        twice.clamp_(-2 * clip, 2 * clip)
    return sigmoid_(twice.clone()).sub_(_HALF).mul_(o)


def _chunks(sizes: list[int], max_rows: int) -> Iterator[tuple[slice, list[int]]]:
    """Group consecutive steps of at most `max_rows` rows (but at least one step): their rows, and their sizes."""
    start, first = 0, 0
    while first < len(sizes):
        end, last = start + sizes[first], first + 1
        while last < len(sizes) and end + sizes[last] - start <= max_rows:
            end, last = end + sizes[last], last + 1
        yield slice(start, end), sizes[first:last]
        start, first = end, last


class WeightsVersion:
    """Map parameters to a key that changes whenever a parameter is replaced, moved or written to.

    Fused optimizers write to a tensor without raising its version, so some values are compared, too. The views of these
    values are kept, and with them the memory: no other tensor can get the same address unnoticed.
    """

    def __init__(self) -> None:
        self._sampled: tuple[tuple[int, ...], list[Tensor]] = ((), [])

    def __reduce__(self) -> tuple[Any, ...]:
        return WeightsVersion, ()  # a copy belongs to other parameters

    def __call__(self, parameters: Iterable[Tensor]) -> WeightsKey:
        tensors = list(parameters)
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
        known, samples = self._sampled
        if addresses != known:
            samples = [_sample(tensor.detach()) for tensor in tensors]
            self._sampled = addresses, samples
        versions = tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)
        # One copy of bytes for all samples, because this runs before every batch. Bytes, so that NaN equals itself.
        return addresses, versions, torch.cat(samples).cpu().view(torch.uint8).numpy().tobytes()


def _sample(tensor: Tensor) -> Tensor:
    """Return a view (n,) of values spread over a tensor, the last one included."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return tensor.reshape(-1)
    # Every row of a small tensor: training writes only to the rows of the character table that it reads.
    n = len(tensor) if tensor.numel() <= _SMALL else _N_SAMPLES
    steps = [(size - 1) // max(1, n - 1) for size in tensor.shape]
    first = [size - 1 - step * (n - 1) for size, step in zip(tensor.shape, steps)]
    strides = tensor.stride()
    offset = tensor.storage_offset() + sum(i * stride for i, stride in zip(first, strides))
    return tensor.as_strided((n,), (sum(step * stride for step, stride in zip(steps, strides)),), offset)
