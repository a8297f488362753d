"""How a call prints and ends: results on standard output or in a file, one error message on standard error, exit code.

0 success · 1 the job failed · 2 the call was wrong
130 Ctrl-C · 141 the reader of the output closed it · 143 SIGTERM
"""

import contextlib
import csv
import io
import json
import logging
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from torchelmo.errors import (
    ConfigError,
    InputError,
    MissingFileError,
    OutputExistsError,
    TorchelmoError,
    WrongCallError,
)
from torchelmo.files import content_hash, os_errors_as_output_error, source_name
from torchelmo.progress import count
from torchelmo.unfinished import GrowingOutput, check_output

SUCCESS, FAILED, WRONG_CALL, INTERRUPTED, PIPE_CLOSED, TERMINATED = 0, 1, 2, 130, 141, 143

COMMIT_SECONDS = 5.0  # a killed run loses no more work than this

log = logging.getLogger("torchelmo.cli")

# A missing file, an output that exists and an unknown setting are mistakes in the call; other errors come later.
_WRONG_CALLS = (WrongCallError, MissingFileError, OutputExistsError, ConfigError)
# Typer has moved this class between modules and exports only classes that derive from it.
_UsageError = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
# All control characters except tab and newline, among them the escape sequences of terminals.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


# The library names its arguments (`heldout`, overwrite=True); a command names the flags that set them.
_FLAGS = {
    "dtype": "--dtype",
    "file_format": "--out-format",
    "format": "--format",
    "grouping": "--grouping",
    "heldout": "--heldout",
    "id_column": "--id-column",
    "lang": "--lang",
    "layers": "--layers",
    "max_characters": "--max-characters",
    "min_count": "--min-count",
    "n_shards": "--shards",
    "out": "--out",
    "overwrite": "--overwrite",
    "part": "--shard",
    "pool": "--pool",
    "pretokenized": "--pretokenized",
    "questions": "--question",
    "resume": "--resume",
    "settings": "--set",
    "shard_size": "--shard-size",
    "targets": "--targets",
    "text_column": "--text-column",
    "to": "--to",
    "vocab_size": "--vocab-size",
    "workers": "--workers",
}
_ARGUMENT = re.compile(rf"`({'|'.join(_FLAGS)})`|\b({'|'.join(_FLAGS)})=True\b")


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a run in the same orderly way as Ctrl-C."""


def run(job: Callable[[], object]) -> int:
    """Run the job, report what went wrong, and return the exit code. TORCHELMO_DEBUG=1 adds the traceback."""
    debug = os.environ.get("TORCHELMO_DEBUG", "") not in ("", "0")
    with _logging(logging.DEBUG if debug else logging.INFO), _sigterm():
        try:
            job()
            _flush_stdout()
            return SUCCESS
        except (Exception, KeyboardInterrupt) as error:
            with contextlib.suppress(OSError):
                _flush_stdout()
            if debug and not isinstance(error, typer.Exit):
                traceback.print_exc()
            return _report_and_get_exit_code(error)


def use_utf8_output() -> None:
    """Print UTF-8 whatever the encoding of the system is: not every encoding has all characters."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def echo(text: str) -> None:
    """Print a result, and fail at once if it cannot be delivered. On a terminal, control characters are escaped."""
    with os_errors_as_output_error("standard output"):
        print(escape_control(text) if sys.stdout.isatty() else text, flush=True)


class Table:
    """Print rows as tab-separated values with a header, quoted so that pandas and R read them, or as JSON lines.

    With spaces as separators, nothing is quoted, as in a table that pandas prints; a space in a value becomes "_".
    """

    def __init__(
        self, columns: Sequence[str], as_json: bool, separator: str = "\t", output: "Output | None" = None
    ) -> None:
        self.columns, self.as_json = columns, as_json
        self._output = output or Output()
        self._buffer = io.StringIO()
        self._separator = separator
        self._writer = csv.writer(self._buffer, delimiter="\t", lineterminator="\n")
        self._n_rows = 0

    def row(self, *values: Any) -> None:
        """Add a row; None is an empty field."""
        if not self._n_rows and not self.as_json and not self._output.has_header(self.columns):
            self._write(self.columns)
        self._n_rows += 1
        if self.as_json:
            self._buffer.write(json.dumps(dict(zip(self.columns, values)), ensure_ascii=False) + "\n")
        else:
            self._write(values)

    def _write(self, values: Sequence[Any]) -> None:
        if self._separator == "\t":
            self._writer.writerow(values)
        else:
            self._buffer.write(" ".join("_".join(str(value).split(" ")) for value in values) + "\n")

    def print(self) -> None:
        """Write the rows that were added since the last call, to standard output or the file."""
        if self._n_rows and (text := self._buffer.getvalue()):
            self._output.write(text)
            self._buffer.seek(0)
            self._buffer.truncate()

    def end(self, files: Iterable[str], expected: str = "text") -> None:
        """Check that there was a row."""
        if not self._n_rows and not self._output.state:
            raise InputError(f"{', '.join(map(source_name, files))}: expected {expected}, found none.")


class Output:
    """The destination of the results of a long command: standard output, or the file of --out, which can be resumed.

    Attributes:
        state: Plain data of the last commit of an interrupted run; empty at the beginning, and for standard output.
    """

    def __init__(self, job: GrowingOutput | None = None, *, can_resume: bool = False) -> None:
        self._job, self._can_resume = job, can_resume
        self.state: dict[str, Any] = {} if job is None else job.state
        self._columns: Any = self.state.get("columns")
        self._last = time.monotonic()

    def has_header(self, columns: Sequence[str]) -> bool:
        """Return whether the last rows have these columns already, so that the next ones need no header."""
        before, self._columns = self._columns, list(columns)
        return bool(before == self._columns)

    def write(self, text: str) -> None:
        """Write whole lines."""
        if self._job is None and text:
            echo(text.removesuffix("\n"))
        elif self._job is not None:
            self._job.write("output", text.encode("utf-8", "backslashreplace"))

    def commit(self, n: int, **state: Any) -> None:
        """Make the results safe, if the last commit was some seconds ago.

        Args:
            n: How many units are done.
            **state: The data from which the command can continue.
        """
        if self._job is not None and self._can_resume and time.monotonic() - self._last >= COMMIT_SECONDS:
            self._job.commit(n, columns=self._columns, **state)
            self._last = time.monotonic()


@contextlib.contextmanager
def open_output(
    out: Path | None, kind: str, inputs: Sequence[str], settings: Mapping[str, Any], *, resume: bool, unit: str
) -> Iterator[Output]:
    """Open the output of a long command. The file of --out appears when the block has ended.

    Args:
        out: The file, or None for standard output.
        kind: The name of the command.
        inputs: The files that the command reads. Results from standard input or a pipe, which cannot be read again,
            are not resumed.
        settings: Everything else that determines the results.
        resume: Continue an interrupted run, if there is one.
        unit: What `Output.commit` counts, in the plural.
    """
    if out is None:
        yield Output()
        return
    can_resume = all(path != "-" and Path(path).is_file() for path in inputs)
    about = {"files": list(inputs), "text": [content_hash(path) for path in inputs] if can_resume else None}
    log.info("%s: %s for %s", kind, count(len(inputs), "inputs"), out)
    with GrowingOutput(out, kind, {**settings, **about}, unit=unit).open() as job:
        job.begin(resume=resume)
        yield Output(job, can_resume=can_resume)
        job.publish("output")


def check_table_output(out: Path | None, kind: str, inputs: Sequence[str], *, resume: bool, overwrite: bool) -> bool:
    """Check --out, --resume and --overwrite before any work, and return whether there is anything left to do."""
    if out is None:
        if resume or overwrite:
            flag = "--resume" if resume else "--overwrite"
            raise WrongCallError(f"{flag}: expected --out FILE, the file to write, with it.")
        return True
    check_output(out, kind, resume=resume, overwrite=overwrite, inputs=inputs)
    job = GrowingOutput(out, kind, {})
    if not (resume and job.is_complete()):
        return True
    job.remove()
    log.info("%s: was already complete; nothing was done.", out)
    return False


def escape_control(text: str) -> str:
    r"""Escape control characters, so that text from elsewhere cannot control the terminal.

    >>> escape_control("\x1b[2Jfoo\tbar\n")
    '\\x1b[2Jfoo\tbar\n'
    """
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def name_flags(message: str) -> str:
    """Replace the arguments of library functions by the flags of the commands.

    >>> name_flags("Choose another `out`, or add overwrite=True.")
    'Choose another --out, or add --overwrite.'
    """
    return _ARGUMENT.sub(lambda match: _FLAGS[match[1] or match[2]], message)


def stopped(number: int | None) -> typer.Exit:
    """Return the exception for a run that ended early and in order because of signal `number`."""
    return typer.Exit(TERMINATED if number == signal.SIGTERM else INTERRUPTED)


def _report_and_get_exit_code(error: BaseException) -> int:
    if isinstance(error, typer.Exit):  # --help and --version end in this way
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED
    if isinstance(error, KeyboardInterrupt):
        terminated = isinstance(error, Terminated)
        _print_error("Terminated." if terminated else "Interrupted.", error)
        return TERMINATED if terminated else INTERRUPTED
    if isinstance(error, TorchelmoError):
        _print_error(_message(error), error)
        return WRONG_CALL if isinstance(error, _WRONG_CALLS) else FAILED
    if isinstance(error, _UsageError):
        _print_error(_usage_message(error), error)
        return WRONG_CALL
    if _is_out_of_memory(error):
        _print_error("Out of memory. Reduce --batch-tokens or batch_size, or split long lines.", error)
        return FAILED
    if isinstance(error, OSError):
        _print_error(f"Operating system error: {error}.", error)
        return FAILED
    _print_error(
        f"Unexpected {type(error).__name__}: {error}. This is a bug in torchelmo. "
        "Please report it with the output of TORCHELMO_DEBUG=1.",
        error,
    )
    return FAILED


def _message(error: TorchelmoError) -> str:
    # An OSError with two arguments would print as "[Errno …]"; ours carry one sentence.
    return str(error.args[0]) if len(error.args) == 1 else str(error)


def _usage_message(error: BaseException) -> str:
    """Typer's message about a wrong flag or value, and where to find help."""
    message = str(error.format_message()).strip().removeprefix("Value error, ")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "torchelmo"
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See {path} --help."


def _print_error(message: str, error: BaseException) -> None:
    """Print a message and the notes of the error (such as how to continue) in one line."""
    with contextlib.suppress(OSError):  # standard error may be closed too
        line = " ".join([message, *getattr(error, "__notes__", [])])
        print(escape_control(name_flags(line)), file=sys.stderr, flush=True)


def _is_out_of_memory(error: BaseException) -> bool:
    # PyTorch raises a plain RuntimeError on the CPU.
    words = ("not enough memory", "allocate memory", "out of memory", "bad_alloc")
    return isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, ImportError, OSError)) and any(word in str(error) for word in words)
    )


def _flush_stdout() -> None:
    """Flush standard output now: Python would report a failure at its end with a traceback."""
    try:
        with os_errors_as_output_error("standard output"):
            sys.stdout.flush()
    except OSError:
        # What is left in the buffer would fail again at the end of the process.
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


class _StderrHandler(logging.Handler):
    """Print log records to standard error, which a progress bar replaces while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            print(escape_control(name_flags(self.format(record))), file=sys.stderr)


@contextlib.contextmanager
def _logging(level: int) -> Iterator[None]:
    logger, handler = logging.getLogger("torchelmo"), _StderrHandler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
