"""Products x · W with a fixed W by the fastest kernel of the machine, and the sizes at which the fast paths switch.

Every kind of product is a small class that is built from W and called with x.
"""

import logging
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from torchelmo.runtime import release_freed_memory

Precision = Literal["float32", "float16", "int8"]
log = logging.getLogger(__name__)
_FEW_ROWS = 4  # with fewer rows the plain product is the fastest on one thread


@dataclass(frozen=True)
class Tuning:
    """Sizes, in tensor elements, at which the fast paths choose another method. They change speed, not results."""

    min_packed_weight: int = 1 << 18  # pack weights from this size on; for smaller ones the plain product is as fast
    min_half_weight: int = 1 << 18  # the same for float16 weights
    max_paired_weight: int = 1 << 20  # run both directions in one batched product up to this size of the state weight
    input_chunk: int = 1 << 22  # input products computed at once: 16 MB, which the cache can hold
    table_chunk: int = 1 << 18  # sums of character tables computed at once


class Product(Protocol):
    """x · W (+ add) for a fixed W."""

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """(rows, input_dim) -> (rows, output_dim). `add` is one row for all rows, or one for each."""


class PlainProduct:
    """Use the weight as it is: works on any device, and is the fastest for a few rows."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        return torch.mm(x, self.weight) if add is None else torch.addmm(add, x, self.weight)


class PackedProduct:
    """Use the weight in oneDNN's own layout: exact float32, twice as fast as the plain product of a small batch."""

    def __init__(self, weight: Tensor) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.T.contiguous(), None)
        release_freed_memory()  # of the transposed copy

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        linear = torch.ops.mkldnn._linear_pointwise
        if add is None or add.dim() == 1:
            product: Tensor = linear(x, self.packed, add, "none", [], "")
        else:
            product = linear.binary(x, add, self.packed, None, "add")
        return product


class PackedForMany:
    """Use the plain product for a few rows and the packed one for more; pack the weight when it is first needed."""

    def __init__(self, weight: Tensor) -> None:
        self.plain = PlainProduct(weight)
        self.packed: PackedProduct | None = None

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        if len(x) < _FEW_ROWS:
            return self.plain(x, add)
        if self.packed is None:
            self.packed = PackedProduct(self.plain.weight)
        return self.packed(x, add)


class HalfProduct:
    """Use the weight in float16 and sum in float32: half the memory to read, at any batch size."""

    def __init__(self, weight: Tensor) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the operator announces that quantization will move elsewhere
            self.packed = torch.ops.quantized.linear_prepack_fp16(weight.T.contiguous(), None)
        release_freed_memory()

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return product if add is None else product.add_(add)


def choose_product(weight: Tensor, precision: Precision, tuning: Tuning, *, few_rows: bool = False) -> Product:
    """Return the fastest product with a weight (input_dim, output_dim).

    `few_rows` says that x often has only one or two rows, multiplied on one thread.
    """
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    if precision == "float16" and on_cpu and weight.numel() >= tuning.min_half_weight and has_half():
        return HalfProduct(weight)
    if on_cpu and weight.numel() >= tuning.min_packed_weight and has_packed():
        return PackedForMany(weight) if few_rows else PackedProduct(weight)
    return PlainProduct(weight)


@cache
def has_half() -> bool:
    """Return whether this CPU and this PyTorch have the float16 operator; log once if they do not."""
    return is_available(HalfProduct, "float16 kernels are not available on this machine; using float32 (%s).")


@cache
def has_packed() -> bool:
    """Return whether this PyTorch has oneDNN's packed product; log once if it does not."""
    return is_available(PackedProduct, "oneDNN kernels are not available on this machine; using plain ones (%s).")


def is_available(kind: Any, message: str) -> bool:
    """Return whether a kind of product runs and gives the right result; log `message` if it cannot run."""
    weight, x = torch.eye(16), torch.arange(128.0).view(8, 16)
    try:
        product = kind(weight)(x)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        log.info(message, str(error).splitlines()[0])
        return False
    return torch.equal(product, x)
