"""Memory that was freed is kept for the next window, instead of being given back and fetched again."""

import ctypes
import logging
import sys

log = logging.getLogger(__name__)

# The numbers of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """Call once, before training on a CPU; true where it could be done (Linux with glibc).

    By default every block of more than 32 MB comes from the system page by page and goes back when it is freed:
    a fifth of the time of a window. All windows need much the same blocks, so the process soon ceases to grow.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    done = [mallopt(name, value) for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_ARENA_MAX, 1))]
    log.debug("mallopt: %s", done)
    return all(done)
