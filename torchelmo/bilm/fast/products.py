"""Products x · W with a fixed W, the choice of the fastest kernel by measuring, and the detection of a changed W.

Every kind of product is a small class that is built from W and called with x. Kernels differ in rounding, so a process
keeps its choice, and jobs that must give the same bytes after a restart use the fixed choice.
"""

import contextlib
import json
import logging
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from torchelmo.errors import ConfigError, OutputError
from torchelmo.files import atomic_write
from torchelmo.runtime import prefers_onednn, processor_name, release_freed_memory, transpose

Precision = Literal["float32", "float16", "int8"]
Kernels = Literal["measured", "fixed"]
WeightsKey = tuple[tuple[int, ...], tuple[int, ...], bytes]  # addresses, versions, some values
log = logging.getLogger(__name__)
ROW_CLASSES = (1, 3, 8, 32, 128)  # rows per step for which kernels are measured
_N_SAMPLES = 8  # values compared of a large parameter
_SMALL = 1 << 13  # the most values of a small parameter
_MANY_ROWS = 8  # from here on, oneDNN is faster than MKL's batched product where MKL does not use AVX-512
FEW_ROWS = 2  # with fewer rows the plain product is the fastest on one thread


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
        self.packed = torch.ops.mkldnn._reorder_linear_weight(transpose(weight), None)
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
        if len(x) < FEW_ROWS:
            return self.plain(x, add)
        if self.packed is None:
            self.packed = PackedProduct(self.plain.weight)
        return self.packed(x, add)


class HalfProduct:
    """Use the weight in float16 and sum in float32: half the memory to read, at any batch size."""

    def __init__(self, weight: Tensor) -> None:
        self.packed = torch.ops.quantized.linear_prepack_fp16(transpose(weight), None)
        release_freed_memory()

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return product if add is None else product.add_(add)

    def unpack(self) -> Tensor:
        """Return the weight (input_dim, output_dim) in float32, with the values of float16."""
        weight: Tensor = torch.ops.quantized.linear_unpack_fp16(self.packed)[0]
        return weight.T


def choose_product(weight: Tensor, precision: Precision, tuning: Tuning) -> Product:
    """Return the product with a weight (input_dim, output_dim) that is the fastest for many rows."""
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    if precision == "float16" and on_cpu and weight.numel() >= tuning.min_half_weight and has_half():
        return HalfProduct(weight)
    if on_cpu and weight.numel() >= tuning.min_packed_weight and has_packed():
        return PackedProduct(weight)
    return PlainProduct(weight)


def prepare_product(weight: Tensor, kind: str, tuning: Tuning) -> Product:
    """Return the product of a kernel for any number of rows; plain for small weights."""
    if kind == "half" and weight.numel() >= tuning.min_half_weight:
        return HalfProduct(weight)
    if kind in ("packed", "always packed") and weight.numel() >= tuning.min_packed_weight:
        return PackedForMany(weight) if kind == "packed" else PackedProduct(weight)
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some versions announce, once, that quantization will move elsewhere
            product = kind(weight)(x)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        log.info(message, str(error).splitlines()[0])
        return False
    return torch.equal(product, x)


def split_steps(sizes: list[int], max_rows: int) -> Iterator[tuple[slice, list[int]]]:
    """Group consecutive steps of at most `max_rows` rows (but at least one step): their rows, and their sizes."""
    start, first = 0, 0
    while first < len(sizes):
        end, last = start + sizes[first], first + 1
        while last < len(sizes) and end + sizes[last] - start <= max_rows:
            end, last = end + sizes[last], last + 1
        yield slice(start, end), sizes[first:last]
        start, first = end, last


# The choice of a kernel


class Kernel(NamedTuple):
    """A way to run the LSTMs of one layer."""

    # "batched", "joined", "int8 together": the gates of all directions together; "plain", "half", "int8",
    # "always packed": one kind of product; "packed": plain for a single row, packed for several
    product: str
    in_threads: bool = False  # each direction on its own thread; otherwise one after the other, with all threads

    @property
    def layout(self) -> str:
        """The name of the prepared weights, which some kernels share."""
        shared = {"batched": "joint", "joined": "joint", "int8 together": "int8"}
        return shared.get(self.product, self.product)

    def __str__(self) -> str:
        return f"{self.product}, in threads" if self.in_threads else self.product


def list_kernels(weight: Tensor, precision: Precision, tuning: Tuning) -> list[Kernel]:
    """Return the kernels for LSTMs with this state weight; the first is the fixed choice for a few rows."""
    on_cpu = weight.device.type == "cpu"
    if precision == "int8":
        # Together needs fewer calls, in turn less of the processor's cache.
        one, other = Kernel("int8"), Kernel("int8 together")
        small = weight.numel() <= tuning.max_paired_weight
        return [*((other, one) if small else (one, other)), Kernel("int8", in_threads=True)]
    if weight.numel() <= tuning.max_paired_weight or not on_cpu:
        joint = [Kernel("batched"), Kernel("joined")]
        if not on_cpu or weight.numel() < tuning.min_packed_weight or not has_packed():
            return joint
        return [*joint, Kernel("packed")]  # in threads it is slower: steps are short
    in_float32 = weight.dtype == torch.float32
    if precision == "float16" and in_float32 and has_half():
        return [Kernel("half"), Kernel("half", in_threads=True)]
    kind = "packed" if in_float32 and has_packed() else "plain"
    if kind == "packed" and prefers_onednn():  # plain products of a single row are slow, too
        return [Kernel("always packed"), Kernel("always packed", in_threads=True)]
    return [Kernel(kind, in_threads=True), Kernel(kind)]


def list_candidates(kernels: Sequence[Kernel], rows: int, n_directions: int) -> list[Kernel]:
    """Return the kernels to measure for steps of about `rows` rows; the first is the fixed choice."""
    small = kernels[0].product == "batched"
    packed, fixed = Kernel("packed"), kernels[0]
    if small and rows >= _MANY_ROWS and packed in kernels and prefers_onednn():
        fixed = packed
    elif fixed == Kernel("int8") and rows > _MANY_ROWS and n_directions > 1:
        fixed = Kernel("int8", in_threads=True)
    others = [kernel for kernel in kernels if kernel != fixed and (n_directions > 1 or not kernel.in_threads)]
    if small and rows < FEW_ROWS:  # packed kernels use the plain product
        others = [kernel for kernel in others if kernel.product != "packed"]
    return [fixed, *others]


def kernels_setting() -> Kernels:
    """Return the value of the environment variable TORCHELMO_KERNELS; default "measured".

    Raises:
        ConfigError: It has another value than "measured" or "fixed".
    """
    value = os.environ.get("TORCHELMO_KERNELS", "measured")
    if value not in ("measured", "fixed"):
        raise ConfigError(f"TORCHELMO_KERNELS: expected measured or fixed, found {value!r:.60}.")
    return "fixed" if value == "fixed" else "measured"


_CHOICES: dict[str, Kernel] = {}  # of this process
_CHOOSING = threading.Lock()
_GAIN = 0.87  # another kernel than the fixed one must take at most this share of its time: timings are noisy
_BUDGET = 0.1  # seconds of measuring, after two rounds


def choose_kernel(key: str, kernels: Sequence[Kernel], prepare: Callable[[Kernel], Callable[[], object]]) -> Kernel:
    """Return the fastest kernel: the earlier choice for `key`, of this process or kept in a file, or else measure.

    Args:
        key: Everything that the times depend on, except the processor and PyTorch.
        kernels: The kernels; the first is the fixed choice.
        prepare: Maps a kernel to a function that runs it once.
    """
    with _CHOOSING:
        if key not in _CHOICES:
            names = {str(kernel): kernel for kernel in kernels}
            place = f"{processor_name()}, PyTorch {torch.__version__}, {key}"
            kept = names.get(_read_choices().get(place, ""))
            _CHOICES[key] = kept or measure_kernels(kernels, prepare)
            log.debug("kernel for %s: %s", key, _CHOICES[key])
            if kept is None:
                _write_choice(place, str(_CHOICES[key]))
        return _CHOICES[key]


def measure_kernels(kernels: Sequence[Kernel], prepare: Callable[[Kernel], Callable[[], object]]) -> Kernel:
    """Run the kernels in turn for a few rounds, and return the fastest; the first unless another is clearly faster."""
    if len(kernels) == 1:
        return kernels[0]
    runs = {kernel: prepare(kernel) for kernel in kernels}
    for run in runs.values():
        run()  # the first call packs weights
    best = dict.fromkeys(kernels, math.inf)
    start = time.perf_counter()
    for number in range(12):
        fastest = min(best.values())
        for kernel in kernels:
            if number < 2 or best[kernel] <= 2 * fastest:
                if kernel.in_threads:  # OpenMP's threads of the kernel before still wait actively, and need a core
                    runs[kernel]()
                before = time.perf_counter()
                runs[kernel]()
                best[kernel] = min(best[kernel], time.perf_counter() - before)
        if number > 0 and time.perf_counter() - start > _BUDGET:
            break
    winner = min(kernels, key=lambda kernel: best[kernel])
    return winner if best[winner] <= _GAIN * best[kernels[0]] else kernels[0]


def _choices_file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchelmo" / "kernels.json"


def _read_choices() -> dict[str, str]:
    """Return the choices of earlier processes; none if the file is missing or damaged."""
    try:
        found = json.loads(_choices_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home folder
        return {}
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}


def _write_choice(place: str, kernel: str) -> None:
    with contextlib.suppress(OSError, RuntimeError, OutputError):  # a read-only home is no reason to fail
        text = json.dumps(_read_choices() | {place: kernel}, indent=1, sort_keys=True) + "\n"
        with atomic_write(_choices_file()) as temporary:
            temporary.write_text(text, encoding="utf-8")


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
