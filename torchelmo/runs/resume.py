"""Start, resume and stop a run: the output folder and its lock, what may change on resume, patience, signals."""

import contextlib
import logging
import math
import os
import shutil
import signal
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from torchelmo import __version__
from torchelmo.errors import ConfigError, OutputExistsError, TorchelmoError, TrainingError, WrongCallError
from torchelmo.files import (
    hold_lock,
    make_folders,
    os_errors_as_output_error,
    read_json,
    remove_empty_folders,
    write_json,
)
from torchelmo.runs.checkpoint import Checkpoint, checkpoints, clean, latest_checkpoint, remove_checkpoint
from torchelmo.runs.config import BaseOptimConfig, changed_setting

MARKER = "run.json"
LOCK = ".torchelmo.lock"
_MARKER_FORMAT = 1
log = logging.getLogger(__name__)


class RunFolder:
    """The output folder of a run: locked while the run writes to it, and marked as the run's own.

    The file run.json marks a folder that a run of this kind wrote. A run removes only files that match `owned`, and
    only from a folder that has this mark; everything else stays. Use it as a context manager::

        with RunFolder(out, "pretrain", owned=OWNED, resume=resume, overwrite=overwrite) as folder:
            ...                           # read the data and build the model: an error leaves everything as it was
            if folder.checkpoint is None:
                folder.start()            # removes the older run, marks the folder

    Args:
        out: The folder.
        kind: The kind of run, such as "pretrain" or "task".
        owned: Glob patterns of all files that a run of this kind writes, relative to `out`, checkpoints not included.
        resume: Resume from the last checkpoint, if there is one.
        overwrite: Replace an older run.
        writes: For a run of several processes: False on all ranks except the first. These ranks check the folder, but
            neither create nor lock it. None for a run of one process.

    Attributes:
        checkpoint: The checkpoint to resume from; None for a run that starts at the beginning.
        details: The details that the older run stored with `mark`; empty if there are none.

    Raises:
        ConfigError: Both `resume` and `overwrite` are given.
        OutputExistsError: The folder holds something that this call must not touch.
        OutputError: Another process is writing to the folder, or it cannot be written.
        WrongCallError: torchrun started several processes for a run of one process.
    """

    def __init__(
        self,
        out: Path,
        kind: str,
        *,
        owned: Sequence[str],
        resume: bool = False,
        overwrite: bool = False,
        writes: bool | None = None,
    ) -> None:
        if writes is None and (n_processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
            raise WrongCallError(
                f"{kind}: expected one process, found {n_processes} that torchrun started. Start it without torchrun; "
                "`pretrain` trains a model, or one that init names, on several processes."
            )
        if resume and overwrite:
            raise ConfigError(
                "Expected resume, which continues the run in out, or overwrite, which replaces it; got both."
            )
        self.out, self.kind, self.owned = out, kind, tuple(owned)
        self.resume, self.overwrite, self.writes = resume, overwrite, writes is not False
        self.checkpoint: Checkpoint | None = None
        self.details: dict[str, Any] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "RunFolder":
        is_run = self._check()
        with contextlib.ExitStack() as stack:
            if self.writes:
                stack.enter_context(_folder(self.out))
                stack.enter_context(hold_lock(self.out / LOCK, str(self.out)))
                is_run = self._check()  # another process may have finished in the meantime
                if is_run:
                    clean(self.out)
            if is_run and self.resume:
                self.details = _read_marker(self.out)
                self.checkpoint = latest_checkpoint(self.out, self.kind)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, **details: Any) -> None:
        """Remove the files of an older run, and mark the folder as this run's own."""
        if not self.writes:
            return
        with os_errors_as_output_error(self.out):
            self._remove()
            self.mark(**details)

    def mark(self, **details: Any) -> None:
        """Write run.json; `details` are plain data that the next run finds in `self.details`."""
        if self.writes:
            marker = {"format": _MARKER_FORMAT, "torchelmo_run": self.kind, "torchelmo": __version__, **details}
            write_json(self.out / MARKER, marker)

    def abandon(self) -> None:
        """Remove everything that this run wrote, the mark included."""
        if self.writes:
            self._remove()
            remove_owned(self.out, (MARKER,))

    def _remove(self) -> None:
        for folder in checkpoints(self.out):
            remove_checkpoint(folder)
        with contextlib.suppress(OSError):  # there is none, or it holds files of others
            (self.out / "checkpoints").rmdir()
        remove_owned(self.out, self.owned)

    def _check(self) -> bool:
        """Return whether the folder holds a run of this kind; raise an error if this call must not touch it."""
        if self.out.exists() and not self.out.is_dir():
            raise OutputExistsError(f"{self.out}: expected a folder or a new name, found a file. Choose another out.")
        kind = _read_marker(self.out).get("torchelmo_run")
        if kind is None:
            taken = next(find_owned(self.out, (MARKER, "checkpoints/*", *self.owned)), None)
            if taken is not None:
                raise OutputExistsError(
                    f"{self.out}: holds {taken.relative_to(self.out)}, and no {MARKER} of a torchelmo run. "
                    "It was left alone: choose another out."
                )
            return False
        if kind != self.kind:
            raise OutputExistsError(
                f"{self.out}: expected a {self.kind} run or a new folder, found a {kind} run. It was left alone: "
                "choose another out."
            )
        if not self.resume and not self.overwrite:
            raise OutputExistsError(
                f"{self.out}: holds a run already. Continue it with resume=True, replace it with overwrite=True, or "
                "choose another out."
            )
        return True


def find_owned(out: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Yield the files and folders in `out` that match glob patterns."""
    for pattern in patterns:
        yield from sorted(out.glob(pattern))


def remove_owned(out: Path, patterns: Sequence[str]) -> None:
    """Remove the files and folders that match `patterns`, then their parent folders if they are empty now."""
    parents: set[Path] = set()
    for path in list(find_owned(out, patterns)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        parents |= {parent for parent in path.parents if out in parent.parents}
    for parent in sorted(parents, reverse=True):  # the deepest first
        with contextlib.suppress(OSError):  # it is gone, or holds files of others
            parent.rmdir()


def check_settings(
    out: Path, before: Mapping[str, Any], now: Mapping[str, Any], *, changeable: Collection[str] = ()
) -> None:
    """Check that a resumed run keeps its settings.

    Args:
        out: The folder of the run, for the error message.
        before: The settings of the run, flat (`runs.config.flatten`).
        now: The settings of this call, flat.
        changeable: Names of settings that may differ.

    Raises:
        ConfigError: A setting differs. The message names it.
    """
    change = changed_setting(before, now, changeable)
    if change is not None:
        raise ConfigError(
            f"{out}: a resumed run must keep its settings, but {change}. Change it back, or start a new run with "
            "another out."
        )


def check_inputs(
    out: Path, before: Mapping[str, str], now: Mapping[str, str], *, paths: Mapping[str, object] | None = None
) -> None:
    """Check that the inputs of a resumed run have the same content as before.

    Args:
        out: The folder of the run, for the error message.
        before: A hash of each input, by the setting that names it.
        now: The same for this call.
        paths: The value of each setting, for the error message.

    Raises:
        ConfigError: An input has changed. The message names it.
    """
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            path = (paths or {}).get(name)
            raise ConfigError(
                f"{out}: a resumed run must keep its inputs, but {name}{f' ({path})' if path else ''} has changed "
                "since the run started. Restore it, or start a new run with another out."
            )


def out_of_patience(n_without_gain: int, patience: int) -> bool:
    """Return whether a run should stop: `patience` evaluations without a new best; a patience of 0 never ends."""
    return 0 < patience <= n_without_gain


def require_sound(
    step: int,
    loss: float,
    norm: float,
    *,
    out: Path,
    optim: BaseOptimConfig,
    clip: float,
    most: float = math.inf,
) -> None:
    """Check the loss and the gradient norm of a step before the weights change.

    Raises:
        TrainingError: One of them is NaN or infinite, or the loss is greater than `most`. The message names the last
            checkpoint and what to try.
    """
    if math.isfinite(norm) and loss <= most and math.isfinite(loss):
        return
    limit = "" if math.isinf(most) else f" and a loss of at most {most:.3g}"
    saved = checkpoints(out)
    kept = f"The last checkpoint is {saved[-1]}." if saved else f"There is no checkpoint in {out} yet."
    raise TrainingError(
        f"step {step}: expected finite numbers{limit}, got a loss of {loss} and a gradient norm of {norm}; the "
        f"weights were not changed. {kept} Start a new run with a lower optim.lr (now {optim.peak:g}), a smaller clip "
        f"(now {clip:g}) or a longer optim.warmup (now {optim.warmup:g})."
    )


class Stop:
    """Ask a run to stop after its current step, by `requested` or by a signal.

    Attributes:
        requested: Set it to end the run after its step.
        signal: The signal that requested it, if one did.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: int | None = None

    @contextlib.contextmanager
    def on_signals(self) -> Iterator["Stop"]:
        """Handle Ctrl-C and SIGTERM inside the block. A second Ctrl-C raises KeyboardInterrupt at once."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
            yield self
            return
        before = {number: signal.signal(number, self._request) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested, self.signal = True, number


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Create a folder with its parents; remove those that are empty in the end."""
    with os_errors_as_output_error(out):
        created = make_folders(out)
    try:
        yield
    finally:
        remove_empty_folders(created)


def _read_marker(out: Path) -> dict[str, Any]:
    """Return the content of run.json; empty if there is none, or one that no run of torchelmo wrote."""
    if not (out / MARKER).is_file():
        return {}
    try:
        marker = read_json(out / MARKER, "the mark of a run", max_bytes=2**20)
    except TorchelmoError:
        return {}
    if not isinstance(marker, dict) or not isinstance(marker.get("torchelmo_run"), str):
        return {}
    if marker.get("format") != _MARKER_FORMAT:
        raise OutputExistsError(
            f"{out / MARKER}: was written by another version of torchelmo. It was left alone: choose another out."
        )
    return marker
