"""Run a function in a process of its own that has everything imported: a start of Python and PyTorch takes seconds."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

import torch


def run_forked(function: Callable[[], object], *, seconds: float = 120.0) -> int:
    """Call a function in a child process, and return its exit code, or −n if signal n killed it.

    Changes that the function makes, such as those of attributes of modules, stay in the child.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)  # the threads of a pool are not forked
            function()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"The process did not end within {seconds} s.")
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])


def kill_in_call(owner: object, name: str, n: int) -> None:
    """Replace a function so that this process is killed (kill −9) at the beginning of its call number `n`, from 0."""
    function, calls = getattr(owner, name), [0]

    def killed(*arguments: object, **options: object) -> object:
        if calls[0] == n:
            os.kill(os.getpid(), signal.SIGKILL)
        calls[0] += 1
        return function(*arguments, **options)

    setattr(owner, name, killed)
