"""LSTM weights in int8, for inference on CPUs.

    x · W ≈ a · (round(127 x / a) · round(W / s)) · s / 127

Every row of x has its own a = max |x|, and every column of W its own s = max |W| / 127. The sums of int8 products are
exact. Together with sigmoids that round every row in the same way, this makes the layers of a sentence independent of
the other sentences in its batch, to the last bit.
"""

import logging
import math
import warnings
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.bilm.lstm import LSTMState, ProjectedLSTM
from torchelmo.errors import InputError
from torchelmo.runtime import release_freed_memory

log = logging.getLogger(__name__)
WEIGHTS = ("input_weight", "state_weight", "projection")  # of an LSTM that are rounded
_LARGEST = 127  # of the int8 values that are used, so that every value has its negative
_ZERO_POINT = 128  # the kernels take activations as uint8
_TINY = torch.finfo(torch.float32).tiny
_GRAIN = 1 << 15  # PyTorch splits elementwise work over threads from this number of elements on
_LANES = 32  # elements that its vectorized loops take at a time, with AVX-512 or less


class Int8Weight(NamedTuple):
    """A weight in int8: W ≈ values · scale."""

    values: Tensor  # (input_dim, output_dim) int8
    scale: Tensor  # (output_dim,) float32

    def dequantize(self) -> Tensor:
        """Return the weight as floating-point numbers."""
        return self.values.to(self.scale.dtype).mul_(self.scale)


def quantize(weight: Tensor) -> Int8Weight:
    """Round a weight (input_dim, output_dim) to int8, with one scale for each output channel."""
    weight = weight.detach().float()
    scale = weight.abs().amax(dim=0).div_(_LARGEST).clamp_min_(_TINY)
    return Int8Weight((weight / scale).round_().to(torch.int8), scale)


class Int8Product:
    """x · W (+ add) with W in int8 and x rounded to int8, row by row."""

    def __init__(self, weight: Int8Weight) -> None:
        values, scale = weight
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the operators announce that quantization will move elsewhere
            zeros = torch.zeros(len(scale), dtype=torch.int64)
            channels = torch._make_per_channel_quantized_tensor(values.T.contiguous(), scale.double(), zeros, 0)
            self.packed = torch.ops.quantized.linear_prepack(channels, None)
        release_freed_memory()  # of the transposed copy

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """(rows, input_dim) -> (rows, output_dim). `add` is one row for all rows, or one for each."""
        largest = torch.linalg.vector_norm(x, math.inf, dim=1, keepdim=True).clamp_min_(_TINY)
        # The range of the quantized rows is always [−1, 1], so that no row depends on the others.
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        product: Tensor = multiply(x / largest, 1.0 / _LARGEST, _ZERO_POINT, self.packed)
        return product.mul_(largest) if add is None else torch.addcmul(add, product, largest, out=product)


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
    values = torch.tensor([[127, -127], [127, 64]], dtype=torch.int8).repeat(8, 8)
    x = torch.ones(3, 16)
    try:
        product = Int8Product(Int8Weight(values, torch.ones(16)))(x)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    return "" if torch.allclose(product, x @ values.float()) else "the operator gives wrong results"


def sigmoid_rows_(x: Tensor) -> Tensor:
    """Replace x (rows, width) by σ(x), with the same rounding for a row whatever its place.

    PyTorch's vectorized σ rounds differently from the one for the elements that remain at the end of a row or of the
    part of a thread, so x is given to it in parts without such elements, or row by row.
    """
    for part in x.split(_aligned_parts(len(x), x.shape[1], torch.get_num_threads())):
        part.sigmoid_()
    return x


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
        for name in WEIGHTS:
            weight = getattr(like, name)
            # Operators on the meta device import PyTorch's compiler, which takes seconds.
            empty = Int8Weight(
                torch.empty(weight.shape, dtype=torch.int8, device="meta"), torch.empty(weight.shape[1], device="meta")
            )
            values, scale = empty if weight.is_meta else quantize(weight)
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
        weights = {name: int8_weight(self, name).dequantize() for name in WEIGHTS}
        lstm.load_state_dict({**weights, "bias": self.bias}, assign=True)
        return lstm

    def forward(self, x: Tensor, mask: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        """Run over all tokens in float32, with the rounded weights: as `ProjectedLSTM.forward`."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise InputError("This model has int8 weights, which have no gradients. Train `bilm.dequantized()`.")
        with torch.no_grad():
            result: tuple[Tensor, LSTMState] = self.dequantize()(x, mask, state)
        return result


def int8_weight(lstm: ProjectedLSTM | Int8LSTM, name: str) -> Int8Weight:
    """Return one of the `WEIGHTS` of an LSTM in int8."""
    if isinstance(lstm, Int8LSTM):
        return Int8Weight(getattr(lstm, name), getattr(lstm, f"{name}_scale"))
    return quantize(getattr(lstm, name))
