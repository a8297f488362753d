"""Independent pieces of work in threads of their own, each with its share of the cores."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import Any, TypeVar

import torch

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
