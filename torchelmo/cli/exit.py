"""How a call ends: one message on standard error, and the exit code.

0 success · 1 the job failed · 2 the call was wrong
130 Ctrl-C · 141 the reader of our output went away · 143 SIGTERM
"""

import contextlib
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

import typer

from torchelmo.errors import ConfigError, MissingFileError, OutputExistsError, TorchelmoError, WrongCallError
from torchelmo.files import os_errors_as_output_error

SUCCESS, FAILED, WRONG_CALL, INTERRUPTED, PIPE_CLOSED, TERMINATED = 0, 1, 2, 130, 141, 143


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a run in the same orderly way as Ctrl-C."""


# A file that is not there, one that is in the way, and a setting that does not exist are mistakes in the call; all else
# came later.
_WRONG_CALLS = (WrongCallError, MissingFileError, OutputExistsError, ConfigError)


def run(job: Callable[[], object]) -> int:
    """Do the job; say in words what went wrong; give the exit code. TORCHELMO_DEBUG=1 adds the traceback."""
    debug = os.environ.get("TORCHELMO_DEBUG", "") not in ("", "0")
    with _logging(logging.DEBUG if debug else logging.INFO), _sigterm():
        try:
            job()
            _deliver()
            return SUCCESS
        except (Exception, KeyboardInterrupt) as error:
            with contextlib.suppress(OSError):
                _deliver()
            if debug and not isinstance(error, typer.Exit):
                traceback.print_exc()
            return _explain(error)


def speak_utf8() -> None:
    """Whatever the system's encoding is: not every one has all the signs that we print."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=stream.errors)


def echo(text: str) -> None:
    """Print a result, and know at once whether it was delivered."""
    with os_errors_as_output_error("standard output"):
        print(text, flush=True)


def stopped(number: int | None) -> typer.Exit:
    """What a run raises that ended early, in good order, because of signal `number`: its work is not done."""
    return typer.Exit(TERMINATED if number == signal.SIGTERM else INTERRUPTED)


def _explain(error: BaseException) -> int:
    if isinstance(error, typer.Exit):  # --help and --version end in this way
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED
    if isinstance(error, KeyboardInterrupt):
        terminated = isinstance(error, Terminated)
        _say("Terminated." if terminated else "Interrupted.", error)
        return TERMINATED if terminated else INTERRUPTED
    if isinstance(error, TorchelmoError):
        _say(_message(error), error)
        return WRONG_CALL if isinstance(error, _WRONG_CALLS) else FAILED
    # Typer's errors about flags and values; their class has had several homes, their method has not.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "torchelmo"
        _say(f"{error.format_message()} See {path} --help.", error)
        return WRONG_CALL
    if isinstance(error, OSError):
        _say(f"The system refused: {error}.", error)
        return FAILED
    if _is_out_of_memory(error):
        _say("Not enough memory. Take less at once: a smaller --batch-tokens or batch_size, or shorter lines.", error)
        return FAILED
    _say(
        f"Unexpected {type(error).__name__}: {error}. This is a fault in torchelmo: "
        "please report it with what TORCHELMO_DEBUG=1 shows.",
        error,
    )
    return FAILED


def _message(error: TorchelmoError) -> str:
    # An OSError with two arguments would print as "[Errno …]"; ours carry one sentence.
    return str(error.args[0]) if len(error.args) == 1 else str(error)


def _say(message: str, error: BaseException) -> None:
    """The message, and what was noted on the way (such as where a run can go on), in one line."""
    with contextlib.suppress(OSError):  # standard error may be closed too
        print(" ".join([message, *getattr(error, "__notes__", [])]), file=sys.stderr, flush=True)


def _is_out_of_memory(error: BaseException) -> bool:
    # PyTorch raises a plain RuntimeError on the CPU.
    words = ("not enough memory", "can't allocate memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


def _deliver() -> None:
    """Find out here, not when Python ends, that our output could not be delivered."""
    try:
        with os_errors_as_output_error("standard output"):
            sys.stdout.flush()
    except OSError:
        # What still waits in the buffer would fail again at the end of the process, with a traceback.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


@contextlib.contextmanager
def _sigterm() -> Iterator[None]:
    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _StandardError(logging.Handler):
    """Looks standard error up for every record: a progress bar puts its own in place while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            print(self.format(record), file=sys.stderr)


@contextlib.contextmanager
def _logging(level: int) -> Iterator[None]:
    logger, handler = logging.getLogger("torchelmo"), _StandardError()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
