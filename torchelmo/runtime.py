"""Independent pieces of work in threads of their own, each with its share of the cores."""

import ctypes
import hashlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import Any, TypeVar

import torch

log = logging.getLogger(__name__)
# The numbers of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """Call once, before training on a CPU; true where it could be done (Linux with glibc).

    By default every block of more than 32 MB comes from the system page by page and goes back when it is freed:
    a fifth of the time of a window. All windows need much the same blocks, so the process soon ceases to grow.
    """
    mallopt = _glibc("mallopt")
    if mallopt is None:
        return False
    done = [mallopt(name, value) for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_ARENA_MAX, 1))]
    log.debug("mallopt: %s", done)
    return all(done)


def release_freed_memory() -> None:
    """Call after work that freed much: reading a large model leaves a quarter of its size behind."""
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _glibc(name: str) -> Any | None:
    """A function of glibc; None where the system has another C library."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None


T = TypeVar("T")


def in_parallel(function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], device: torch.device) -> list[T]:
    """`function` of each tuple, without gradients; one after the other where threads would gain nothing."""
    cores, n = torch.get_num_threads(), len(arguments)
    if n == 1 or cores < n or device.type != "cpu":
        with torch.no_grad():
            return [function(*each) for each in arguments]

    def run(each: tuple[Any, ...]) -> T:
        with torch.no_grad():  # the mode belongs to a thread, and gradients are on in a new one
            return function(*each)

    return list(_workers(os.getpid(), n, cores // n).map(run, arguments))


@cache
def _workers(process: int, n_workers: int, n_threads: int) -> ThreadPoolExecutor:
    """Threads that use `n_threads` cores each; made anew in a forked process, which inherits none."""
    before = torch.get_num_threads()
    ready = Barrier(n_workers + 1)

    def begin() -> None:
        torch.get_num_threads()  # the first call in a thread gives it the default, so it must not come later
        torch.set_num_threads(n_threads)

    pool = ThreadPoolExecutor(n_workers, "torchelmo", begin)
    for _ in range(n_workers):
        pool.submit(ready.wait)
    ready.wait()
    # The call above holds for the thread that makes it, but also becomes the default of threads to come.
    torch.set_num_threads(before)
    return pool


def step_seed(*parts: object) -> int:
    """63 bits from the seed of the run, a step and a purpose: no state to save, the same after a resume."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
