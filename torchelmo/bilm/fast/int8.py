"""Models with LSTM weights in int8, for inference on CPUs.

    x · W ≈ a · (round(127 x / a) · round(W / s)) · s / 127

Every row of x has its own a = max |x|, and every column of W its own s = max |W| / 127. Among the outputs of cells, a
few are 15 times as large as usual, which makes a large. So they are mixed: for a Hadamard matrix H of 8 parts of a row,
x · W = (x H) · (H W) / 8, and x H has no such outliers.

The sums of int8 products are exact. Together with sigmoids that round every row in the same way, this makes the layers
of a sentence independent of the other sentences in its batch, to the last bit, whichever kernel multiplies.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import gcd
from threading import Lock
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.bilm.fast.products import HalfProduct
from torchelmo.bilm.lstm import LSTMState, ProjectedLSTM
from torchelmo.errors import InputError
from torchelmo.runtime import release_freed_memory, why_onednn_crashes

log = logging.getLogger(__name__)
WEIGHTS = ("input_weight", "state_weight", "projection")  # of an LSTM
_ROUNDED = ("input_weight", "state_weight", "mixed_projection")  # of an LSTM in int8
_PARTS = 8  # of the outputs of cells that are mixed; or 4, 2 or 1 if their number is not divisible by 8
_LARGEST = 127  # of the int8 values that are used, so that every value has its negative
_ZERO_POINT = 128  # oneDNN's kernel takes activations as uint8
_TINY = 1e-30  # a row or column without larger values becomes zero
_ROWS = 2  # packed products are computed for multiples of this number of rows
_SMALL = 1 << 20  # weights up to this size are multiplied without oneDNN's packing: preparing a call takes longer
# Tensors, because PyTorch converts a number in every call.
_MOST = torch.tensor(float(_LARGEST))
_SIGNS = torch.tensor([[1.0], [-1.0]])
_GRAIN = 1 << 15  # PyTorch splits elementwise work over threads from this number of elements on
_LANES = 32  # elements that its vectorized loops take at a time, with AVX-512 or less
_FORMS = Lock()  # of weights in float16: other threads may read them


class Int8Weight(NamedTuple):
    """A weight in int8: W ≈ valuesᵀ · scale."""

    values: Tensor  # (output_dim, input_dim) int8, the layout that the products read
    scale: Tensor  # (output_dim,) float32

    def dequantize(self) -> Tensor:
        """Return the weight (input_dim, output_dim) as floating-point numbers."""
        return self.values.T.to(self.scale.dtype, memory_format=torch.contiguous_format).mul_(self.scale)


def quantize(weight: Tensor) -> Int8Weight:
    """Round a weight (input_dim, output_dim) to int8, with one scale for each output channel."""
    weight = weight.detach().float()
    scale = weight.abs().amax(dim=0).div_(_LARGEST).clamp_min_(_TINY)
    return Int8Weight((weight / scale).round_().to(torch.int8).T.contiguous(), scale)


class MixedParts:
    """x · H for rows x (rows, width): sums and differences of their parts, without products that round.

    Args:
        x: The rows, contiguous. A call reads the values that they have then.
        other: Memory of the same shape, which is overwritten; so is `x`.
    """

    def __init__(self, x: Tensor, other: Tensor) -> None:
        (rows, width), parts = x.shape, 1
        self.result, self._signs = x, _SIGNS.to(x.device)
        self._passes: list[tuple[Tensor, Tensor, Tensor]] = []
        while parts < gcd(width, _PARTS):
            shape = rows, parts, 2, width // parts // 2
            one, two = self.result.view(shape).split(1, dim=2)
            self._passes.append((one, two, other.view(shape)))
            self.result, other, parts = other, self.result, 2 * parts

    def __call__(self) -> Tensor:
        for one, two, out in self._passes:
            torch.addcmul(one, two, self._signs, out=out)
        return self.result


def mix(x: Tensor) -> Tensor:
    """Return x · H for rows x (rows, cell_dim).

    >>> mix(torch.tensor([[8.0, 0, 0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 0, 0]])).int().tolist()
    [[8, 8, 8, 8, 8, 8, 8, 8], [21, -3, 7, -1, -1, -1, -15, 1]]
    """
    rows = x.clone(memory_format=torch.contiguous_format)
    return MixedParts(rows, torch.empty_like(rows))()


def _mix_columns(weight: Tensor) -> Tensor:
    """Return H · W for W (cell_dim, projection_dim); H · H · W = 8 W."""
    return mix(weight.T).T


class Int8Product:
    """x · W (+ add) with W in int8 and x rounded to int8, row by row. W is packed when it is first needed.

    Args:
        weight: The weight.
        pack_from: The fewest rows for which a packed copy is made. Both kernels give the same result.
    """

    def __init__(self, weight: Int8Weight, *, pack_from: int = 2) -> None:
        self.values, self.scale, self.pack_from = weight.values, weight.scale / _LARGEST, pack_from
        self._columns = weight.values.T
        self._packed: Tensor | None = None

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """(rows, input_dim) -> (rows, output_dim). `add` is one row for all rows, or one for each."""
        [product], largest = Int8Products([self], len(x))(x.unsqueeze(1))
        return product.mul_(largest[:, 0]) if add is None else torch.addcmul(add, product, largest[:, 0], out=product)

    def use_packed(self, rows: int) -> bool:
        """Return whether a packed copy multiplies `rows` rows. It is made now if it is missing."""
        if self._packed is None and rows >= self.pack_from and self.values.numel() > _SMALL and _has_packed_int8():
            self._packed = _pack(self.values)
        return self._packed is not None and rows > 1

    def multiply(self, x: Tensor, rows: int) -> Tensor:
        """Multiply the first `rows` of the rows that `Int8Products` rounded."""
        if x.dtype == torch.uint8:
            assert self._packed is not None
            return _multiply_packed(x, self._packed, self.scale)[:rows]
        return torch._int_mm(x, self._columns).float().mul_(self.scale)


class Int8Products:
    """Round rows (rows, n_directions, width) to int8 and multiply them with one weight for each direction.

    Args:
        products: The product of each direction.
        rows: The largest number of rows, for which memory is allocated; `resize` sets a smaller one.
    """

    def __init__(self, products: Sequence[Int8Product], rows: int) -> None:
        self.products, width = products, products[0].values.shape[1]
        self._all_scaled = torch.empty(rows, len(products), width)
        self._all_rounded = torch.zeros(len(products) * (rows + _ROWS) * width, dtype=torch.int8)
        self.resize(rows)

    def resize(self, rows: int) -> None:
        """Set the number of rows."""
        self.rows = rows
        packed = [product.use_packed(rows) for product in self.products]
        self.is_packed = packed[0]  # all have the same shape
        # oneDNN makes a kernel for every number of rows, which takes a millisecond and 0.2 MB.
        n, width, padding = len(self.products), self._all_scaled.shape[2], -rows % _ROWS if self.is_packed else 0
        rounded = self._all_rounded[: n * (rows + padding) * width].view(n, rows + padding, width)
        self._scaled, self._rounded = self._all_scaled[:rows], rounded[:, :rows].transpose(0, 1)
        self._shifted = rounded.view(torch.uint8)
        self._directions = (self._shifted if self.is_packed else rounded).unbind()

    def __call__(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """(rows, n_directions, width) -> x / max |x| · W of each direction, and max |x| (rows, n_directions, 1)."""
        largest = torch.abs(x, out=self._scaled).amax(dim=2, keepdim=True).clamp_min_(_TINY)
        torch.mul(x, _MOST / largest, out=self._scaled).round_()
        self._rounded.copy_(self._scaled)
        if self.is_packed:
            self._shifted.add_(_ZERO_POINT)  # wraps around; converting to uint8 takes PyTorch eight times as long
        products = zip(self.products, self._directions)
        return [product.multiply(rounded, self.rows) for product, rounded in products], largest


def _pack(values: Tensor) -> Tensor:
    packed: Tensor = torch.ops.onednn.qlinear_prepack(values, None)
    release_freed_memory()  # of temporary copies
    return packed


def _multiply_packed(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    output = 1.0, 0, torch.float32  # scale, zero point, type
    multiply = torch.ops.onednn.qlinear_pointwise
    product: Tensor = multiply(x, 1.0, _ZERO_POINT, packed, scale, _zeros(len(scale)), None, *output, "none", [], "")
    return product


@cache
def _zeros(n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.int64)


@cache
def _has_packed_int8() -> bool:
    """Return whether oneDNN's product with packed weights is available and rounds as the other one."""
    values = torch.arange(-128, 128, dtype=torch.int8).repeat(8).view(64, 32)
    x, scale = torch.arange(-127, 128).repeat(2)[:128].view(4, 32), torch.rand(64)
    try:
        packed = _multiply_packed((x + _ZERO_POINT).to(torch.uint8), _pack(values), scale)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        log.debug("oneDNN's int8 kernels are not available: %s", error)
        return False
    return torch.equal(packed, torch._int_mm(x.to(torch.int8), values.T).float().mul_(scale))


@cache
def has_int8() -> bool:
    """Return whether this machine multiplies int8 fast and without overflow; log once if it does not."""
    reason = _why_no_int8()
    if reason:
        log.info("int8 kernels are not available on this machine; using float32 (%s).", reason)
    return not reason


def _why_no_int8() -> str:
    """Return why int8 products cannot be used; empty if they can."""
    # Without VNNI the kernels are slower, and sums of two products saturate at 16 bits.
    if not getattr(torch.cpu, "_is_vnni_supported", lambda: False)():
        return "the processor has no VNNI instructions"
    if reason := why_onednn_crashes():
        return reason
    values = torch.tensor([[127, -127], [127, 64]], dtype=torch.int8).repeat(8, 8)
    x = torch.ones(3, 16)
    try:
        product = Int8Product(Int8Weight(values, torch.ones(16)))(x)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    return "" if torch.allclose(product, x @ values.T.float()) else "the operator gives wrong results"


def sigmoid_rows(x: Tensor, *, out: Tensor, function: Callable[..., Tensor] = torch.sigmoid) -> Tensor:
    """Write σ(x), or tanh(x), to `out` (rows, width), with the same rounding for a row whatever its place.

    PyTorch's vectorized σ rounds differently from the one for the elements that remain at the end of a row or of the
    part of a thread, so x is given to it in parts without such elements, or row by row.
    """
    parts = _aligned_parts(len(x), x.shape[1], torch.get_num_threads())
    if len(parts) == 1:
        return function(x, out=out)
    for part, result in zip(x.split(parts), out.split(parts)):
        function(part, out=result)
    return out


@cache
def _aligned_parts(rows: int, width: int, threads: int) -> list[int]:
    """Split rows into few parts, whose share for each thread is a multiple of the vector length."""
    if width % _LANES:
        return [1] * rows
    parts = []
    while rows:
        n = rows
        while n > 1 and -(-n * width // min(threads, -(-n * width // _GRAIN))) % _LANES:
            n -= 1
        parts.append(n)
        rows -= n
    return parts


class Int8LSTM(nn.Module):
    """A `ProjectedLSTM` with int8 weights, for inference. It has buffers instead of parameters.

    Args:
        like: The LSTM whose weights are rounded to int8. On the meta device, only the shapes are taken.
    """

    input_weight: Tensor
    state_weight: Tensor
    projection: Tensor
    bias: Tensor

    def __init__(self, like: ProjectedLSTM) -> None:
        super().__init__()
        self.input_dim, self.cell_dim, self.projection_dim = like.input_dim, like.cell_dim, like.projection_dim
        self.cell_clip, self.projection_clip, self.backward = like.cell_clip, like.projection_clip, like.backward
        self.register_buffer("bias", like.bias.detach() if like.bias.is_meta else like.bias.detach().float())
        for name, (values, scale) in int8_weights(like).items():
            self.register_buffer(name, values)
            self.register_buffer(f"{name}_scale", scale)

    def dequantize(self) -> ProjectedLSTM:
        """Return an LSTM with the same weights in float32."""
        with torch.device("meta"):
            lstm = ProjectedLSTM(
                self.input_dim,
                self.cell_dim,
                self.projection_dim,
                cell_clip=self.cell_clip,
                projection_clip=self.projection_clip,
                backward=self.backward,
            )
        weights = dict(zip(WEIGHTS, (weight.dequantize() for weight in int8_weights(self).values())))
        weights["projection"] = _mix_columns(weights["projection"]).contiguous()
        lstm.load_state_dict({**weights, "bias": self.bias}, assign=True)
        return lstm

    def forward(self, x: Tensor, mask: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        """Run over all tokens in float32, with the rounded weights: as `ProjectedLSTM.forward`."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise InputError("This model has int8 weights, which have no gradients. Train `bilm.dequantized()`.")
        with torch.no_grad():
            result: tuple[Tensor, LSTMState] = self.dequantize()(x, mask, state)
        return result


class HalfLinear(nn.Module):
    """x · Wᵀ + b with W in float16, for the encoder of an int8 model. It has buffers instead of parameters.

    W is in memory once: in the layout of its kernel after `packed`, until somebody reads `weight`.

    Args:
        like: The layer whose weight is rounded to float16. On the meta device, only the shapes are taken.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, like: nn.Linear) -> None:
        super().__init__()
        weight = like.weight.detach()
        rounded = torch.empty(weight.shape, dtype=torch.float16, device="meta")
        self._product: HalfProduct | None = None
        self.register_buffer("weight", rounded if weight.is_meta else to_half(weight))
        self.register_buffer("bias", like.bias.detach())

    def packed(self) -> Callable[[Tensor], Tensor]:
        """Return a function that computes what `forward` does, with the kernel for float16."""
        self._pack()
        return lambda x: self._pack()(x, self.bias)

    def _pack(self) -> HalfProduct:
        product, weight = self._forms()
        if product is None:
            assert weight is not None
            product = HalfProduct(weight.T.float())
            self._forms(product, None)
        return product

    def _unpack(self) -> Tensor:
        product, weight = self._forms()
        if weight is None:
            assert product is not None
            with torch.inference_mode(False):
                weight = product.unpack().T.half()
            self._forms(None, weight)
        return weight

    def _forms(self, *new: Any) -> tuple[HalfProduct | None, Tensor | None]:
        """Return W packed, or else as a tensor; replace both together if new ones are given."""
        with _FORMS:
            if new:
                self._product, self._buffers["weight"] = new
            return self._product, self._buffers["weight"]

    def __getattr__(self, name: str) -> Any:
        if name == "weight" and name in self._buffers:
            return self._unpack()
        return super().__getattr__(name)

    def __getstate__(self) -> dict[str, Any]:
        self._unpack()
        return self.__dict__

    def _save_to_state_dict(self, *arguments: Any) -> None:
        self._unpack()
        super()._save_to_state_dict(*arguments)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._unpack()
        super()._load_from_state_dict(*arguments)

    def _apply(self, *arguments: Any) -> Self:
        self._unpack()
        moved: Self = super()._apply(*arguments)  # type: ignore[no-untyped-call]
        return moved

    def dequantize(self) -> nn.Linear:
        """Return a layer with the same weights in float32."""
        weight = self.weight.to(self.bias.dtype)
        linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        linear.load_state_dict({"weight": weight, "bias": self.bias}, assign=True)
        return linear

    def forward(self, x: Tensor) -> Tensor:
        """(..., input_dim) -> (..., output_dim)."""
        return F.linear(x, self.weight.to(x.dtype), self.bias)


def to_half(weight: Tensor) -> Tensor:
    """Round a weight to float16; numbers beyond its range become the largest ones in it."""
    largest = torch.finfo(torch.float16).max
    return weight.clamp(-largest, largest).half()


def quantize_module(module: nn.Module) -> "Int8LSTM | HalfLinear":
    """Return an LSTM in int8, or a linear layer in float16."""
    if isinstance(module, ProjectedLSTM):
        return Int8LSTM(module)
    assert isinstance(module, nn.Linear), type(module)
    return HalfLinear(module)


def replace_module(tensors: Mapping[str, Tensor], name: str, module: nn.Module) -> dict[str, Tensor]:
    """Return tensors by name, with those of one module replaced by those of another one."""
    kept = {key: tensor for key, tensor in tensors.items() if not key.startswith(f"{name}.")}
    return kept | {f"{name}.{part}": tensor for part, tensor in module.state_dict().items()}


def int8_weights(lstm: ProjectedLSTM | Int8LSTM) -> dict[str, Int8Weight]:
    """Return the weights of an LSTM in int8 by name."""
    if isinstance(lstm, Int8LSTM):
        return {name: Int8Weight(getattr(lstm, name), getattr(lstm, f"{name}_scale")) for name in _ROUNDED}
    weights = dict(zip(_ROUNDED, (getattr(lstm, name).detach() for name in WEIGHTS)))
    if lstm.projection.is_meta:
        return {name: _empty(weight) for name, weight in weights.items()}
    weights["mixed_projection"] = _mix_columns(lstm.projection.detach().float()) / gcd(lstm.cell_dim, _PARTS)
    return {name: quantize(weight) for name, weight in weights.items()}


def _empty(weight: Tensor) -> Int8Weight:
    # Operators on the meta device import PyTorch's compiler, which takes seconds.
    values = torch.empty(weight.T.shape, dtype=torch.int8, device="meta")
    return Int8Weight(values, torch.empty(weight.shape[1], device="meta"))
