"""x · W for a fixed W, as fast as this machine can: each way is a small class that is called with x."""

import logging
import warnings
from functools import cache
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from torchelmo.runtime import give_back_freed_memory

Precision = Literal["float32", "float16"]
log = logging.getLogger(__name__)
# Below these sizes the plain product is as fast, and nothing is held twice.
_FEW_ROWS = 4
_MIN_PACKED = 1 << 18
_MIN_HALF = 1 << 18


class Product(Protocol):
    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """x · W (+ add): (rows, input_dim) -> (rows, output_dim); `add` is a row for all, or one for each."""


class PlainProduct:
    """The weight as it is: for any device, and the fastest for a few rows."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        return torch.mm(x, self.weight) if add is None else torch.addmm(add, x, self.weight)


class PackedProduct:
    """The weight in oneDNN's own order: exact float32, and twice as fast as the plain product of a small batch."""

    def __init__(self, weight: Tensor) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.T.contiguous(), None)
        give_back_freed_memory()  # of the transposed copy

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        linear = torch.ops.mkldnn._linear_pointwise
        if add is None or add.dim() == 1:
            product: Tensor = linear(x, self.packed, add, "none", [], "")
        else:
            product = linear.binary(x, add, self.packed, None, "add")
        return product


class PackedForMany:
    """Plain for a few rows, where it is the fastest on one thread; packed, when it is first needed, for more."""

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
    """The weight in float16, products summed in float32: half the memory to read, at any batch size."""

    def __init__(self, weight: Tensor) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the operator announces that quantisation will move elsewhere
            self.packed = torch.ops.quantized.linear_prepack_fp16(weight.T.contiguous(), None)
        give_back_freed_memory()

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return product if add is None else product.add_(add)


def choose_product(weight: Tensor, precision: Precision, *, few_rows: bool = False) -> Product:
    """The fastest product with a weight (input_dim, output_dim); `few_rows`: often of one or two, on one thread."""
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    if precision == "float16" and on_cpu and weight.numel() >= _MIN_HALF and has_half():
        return HalfProduct(weight)
    if on_cpu and weight.numel() >= _MIN_PACKED and _has_packed():
        return PackedForMany(weight) if few_rows else PackedProduct(weight)
    return PlainProduct(weight)


@cache
def has_half() -> bool:
    """Whether this CPU and this PyTorch have the float16 operator; says so once where they do not."""
    return _works(HalfProduct, "float16 weights are not to be had on this machine: float32 is used instead (%s).")


@cache
def _has_packed() -> bool:
    return _works(PackedProduct, "oneDNN's packed product is not to be had here: the plain one is used (%s).")


def _works(kind: Any, message: str) -> bool:
    weight, x = torch.eye(16), torch.arange(128.0).view(8, 16)
    try:
        product = kind(weight)(x)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        log.info(message, str(error).splitlines()[0])
        return False
    return torch.equal(product, x)
