"""Two wishes to the C library: keep the memory that was freed, or give it back to the system."""

import ctypes
import logging
import sys
from typing import Any

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


def give_back_freed_memory() -> None:
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
