"""Process-wide settings and helpers: seeds, the device, worker threads, glibc malloc."""

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Barrier, Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchelmo.errors import ConfigError

T = TypeVar("T")
_TILE_LEAF = 29  # of CPUID
log = logging.getLogger(__name__)
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # parameters of mallopt, from glibc's malloc.h
_PAGE, _HUGE_PAGES = 4096, 14  # bytes; MADV_HUGEPAGE of Linux


def step_seed(*parts: object) -> int:
    """Return a seed of 63 bits for the seed of the run, a step and a purpose.

    There is no state to save: the seed is the same after a resume.
    """
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def choose_device(name: str) -> torch.device:
    """Return the device that a setting names.

    Args:
        name: "auto" (CUDA if there is a GPU, otherwise the CPU), "cpu", "cuda" (this rank's GPU), "cuda:1" or "mps".

    Raises:
        ConfigError: PyTorch has no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device is None or device.type not in available:
        raise ConfigError(f"device: expected auto, cpu or cuda (or cuda:1, …), got {name!r:.60}.")
    if not available[device.type] or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"device: PyTorch finds no device {name!r:.60} on this machine. Use auto or cpu.")
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


@cache
def processor_name() -> str:
    """Return the name of the processor, as the system gives it."""
    lines = _read_cpuinfo().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _read_cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return ""


@cache
def why_onednn_crashes() -> str:
    """Return why bfloat16 and int8 products would kill this process, and what to do; empty if they would not.

    Some virtual machines pass AMX instructions on to the guest, but not CPUID leaf 29, which describes the tiles.
    oneDNN then configures no tiles, and the first AMX instruction is illegal.
    """
    chosen = any(name in os.environ for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"))
    if chosen or not hides_tiles(_read_cpuinfo()):
        return ""
    return (
        "this virtual machine announces AMX instructions but does not describe them, on which oneDNN crashes; "
        "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment before Python starts"
    )


def hides_tiles(cpuinfo: str) -> bool:
    """Return whether a processor announces AMX but does not describe its tiles, by the text of /proc/cpuinfo."""
    fields = _cpuinfo_fields(cpuinfo)
    highest_leaf = int("".join(fields.get("cpuid level", [])) or _TILE_LEAF)
    return "amx_tile" in fields.get("flags", []) and highest_leaf < _TILE_LEAF


def _cpuinfo_fields(cpuinfo: str) -> dict[str, list[str]]:
    """Return the words of every field, of the last processor."""
    return {key.strip(): value.split() for key, _, value in (line.partition(":") for line in cpuinfo.splitlines())}


_ONEDNN_LOCK = Lock()
_onednn_users = 0


@contextlib.contextmanager
def onednn_products(device: torch.device) -> Iterator[bool]:
    """Multiply float32 matrices with oneDNN where that is faster: for training on AMD processors with AVX-512.

    PyTorch multiplies with Intel's MKL, which uses AVX2 on processors of AMD. oneDNN uses AVX-512 and has the same
    float32 rounding, but needs more time for a single row, so inference chooses its own products.

    It is a setting of the process, so products of other threads use oneDNN, too. It stays as it is if the program has
    changed PyTorch's `float32_matmul_precision`.

    Args:
        device: The device of the training.

    Yields:
        Whether oneDNN is used.
    """
    global _onednn_users
    usable = device.type == "cpu" and prefers_onednn() and _onednn_is_exact()
    with _ONEDNN_LOCK:
        used = usable and (_onednn_users > 0 or torch.get_float32_matmul_precision() == "highest")
        if used:
            _onednn_users += 1
            torch.set_float32_matmul_precision("medium")
    try:
        yield used
    finally:
        with _ONEDNN_LOCK:
            _onednn_users -= used
            if used and not _onednn_users:
                torch.set_float32_matmul_precision("highest")


@cache
def prefers_onednn() -> bool:
    """Return whether MKL does not use AVX-512 although the processor has it: on processors of AMD."""
    fields = _cpuinfo_fields(_read_cpuinfo())
    return fields.get("vendor_id") == ["AuthenticAMD"] and "avx512f" in fields.get("flags", [])


@cache
def _onednn_is_exact() -> bool:
    """Return whether oneDNN multiplies float32 without rounding its operands to bfloat16, as it does with AMX."""
    exact = torch.full((64, 64), 1.0 + 2.0**-12)  # bfloat16 rounds it to 1
    with _ONEDNN_LOCK:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        product = torch.mm(exact, exact)
        torch.set_float32_matmul_precision(before)
    return torch.allclose(product.double(), exact.double() @ exact.double(), rtol=1e-6)


def in_parallel(function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], device: torch.device) -> list[T]:
    """Call `function` with each tuple of arguments, without gradients, in threads that share the cores.

    The calls run one after the other if there are too few cores, or on a device other than the CPU.
    """
    cores, n = torch.get_num_threads(), len(arguments)
    if n <= 1 or cores < n or device.type != "cpu":
        with torch.no_grad():
            return [function(*each) for each in arguments]

    def run(each: tuple[Any, ...]) -> T:
        with torch.no_grad():  # the mode belongs to a thread, and gradients are enabled in a new one
            return function(*each)

    return list(_workers(os.getpid(), n, cores // n).map(run, arguments))


@cache
def _workers(process: int, n_workers: int, n_threads: int) -> ThreadPoolExecutor:
    """Return threads that use `n_threads` cores each. `process` is the key for forks, which inherit no threads."""
    before = torch.get_num_threads()
    ready = Barrier(n_workers + 1)

    def initialize() -> None:
        torch.get_num_threads()  # the first call in a thread sets its default, so it must come before the next line
        torch.set_num_threads(n_threads)

    pool = ThreadPoolExecutor(n_workers, "torchelmo", initialize)
    for _ in range(n_workers):
        pool.submit(ready.wait)
    ready.wait()
    # set_num_threads changes the thread that calls it, but also the default of new threads: restore that.
    torch.set_num_threads(before)
    return pool


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory instead of returning it to the system. Call once, before training on a CPU.

    By default every block of more than 32 MB is mapped page by page and returned when it is freed, which takes a fifth
    of the time of a training step. All steps need similar blocks, so the process soon stops growing.

    Returns:
        Whether it was possible: only on Linux with glibc.
    """
    mallopt = _glibc("mallopt")
    if mallopt is None:
        return False
    done = [mallopt(name, value) for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_ARENA_MAX, 1))]
    log.debug("mallopt: %s", done)
    return all(done)


def release_freed_memory() -> None:
    """Return freed memory to the system. Call after work that freed much, such as loading a model."""
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def transpose(matrix: Tensor) -> Tensor:
    """Return a contiguous copy of the transpose.

    Linux is asked to map it in pages of 2 MB, because mapping a large copy page by page takes longer than writing it.
    """
    copy = matrix.new_empty(matrix.shape[::-1])
    madvise = _glibc("madvise") if copy.device.type == "cpu" else None
    start = -(-copy.data_ptr() // _PAGE) * _PAGE
    size = copy.data_ptr() + copy.nbytes - start
    if madvise is not None and size > 0:
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _HUGE_PAGES)  # advice: an error changes nothing
    return copy.copy_(matrix.T)


def _glibc(name: str) -> Any | None:
    """Return a function of glibc, or None if the system has another C library."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
