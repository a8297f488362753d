"""The work of `torchelmo embed`: lines → vectors → spool → file. It may stop anywhere and go on later."""

import contextlib
import dataclasses
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from torchelmo.bulk.outputs import FORMATS, MOST_SAFETENSORS_LINES
from torchelmo.bulk.partial import Array, Spool
from torchelmo.errors import InputError, OutputError, WrongCallError
from torchelmo.files import flush_to_disk, os_errors_as_output_error, read_lines
from torchelmo.progress import progress

T = TypeVar("T")


@contextlib.contextmanager
def in_background(write: Callable[[T], None], *, waiting: int = 32) -> Iterator[Callable[[T], None]]:
    """Gives `put(item)`: a thread calls `write(item)` for one after the other, at most `waiting` behind.

    An error in the thread is raised by the next `put`, or at the end of the block. All that was put is
    written, also when the block itself fails.
    """
    items: queue.Queue[T | _End] = queue.Queue(waiting)
    errors: list[BaseException] = []

    def work() -> None:
        # After a failure items are still taken, so that nobody waits for a place in the queue for ever.
        while not isinstance(item := items.get(), _End):
            if not errors:
                try:
                    write(item)
                except BaseException as error:
                    errors.append(error)

    def put(item: T) -> None:
        if errors:
            raise errors[0]
        items.put(item)

    thread = threading.Thread(target=work, name="writer", daemon=True)
    thread.start()
    try:
        yield put
    finally:
        items.put(_End())
        thread.join()
    if errors:
        raise errors[0]


class _End:
    """No more items will come."""


if TYPE_CHECKING:
    from torchelmo.elmo import Elmo
    from torchelmo.embedder import Layers
COMMIT_SECONDS = 5.0  # no more work than this is lost when a run is killed
LAYERS = ("all", "top", "average")


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that decides the numbers: a run goes on only with the settings it was begun with."""

    model: str  # a hash of the weights
    layers: str
    tokenize: str | None
    pool: Literal["mean", "max"] | None
    dtype: Literal["float32", "float16"]
    precision: Literal["float32", "float16"]
    batch_tokens: int
    state: Literal["reset", "carry"]
    device: str


def embed_lines(spool: Spool, elmo: "Elmo", input_: str, settings: Settings, n_lines: int | None) -> None:
    """Compute what the spool does not have yet; writing overlaps with computing."""

    def write(item: tuple[str, Array] | None) -> None:  # None: commit
        if item is None:
            spool.commit()
        else:
            spool.append(item[0], _pooled(item[1], settings.pool))

    lines = read_lines(input_)
    _skip_known(lines, spool, input_)
    last = time.monotonic()
    with (
        progress("embed", n_lines, done=spool.n_lines, unit="lines") as advance,
        in_background(write) as put,
        contextlib.closing(_vectors(elmo, lines, settings)) as items,
    ):
        for item in items:
            put(item)
            advance(1)
            # A carried state is gone when a run ends: without it there is nothing to go on from.
            if settings.state == "reset" and time.monotonic() - last >= COMMIT_SECONDS:
                put(None)
                last = time.monotonic()
        put(None)
    if not spool.n_lines:
        raise InputError(f"{input_}: expected text, one sentence per line; it is empty.")


def put_together(spool: Spool, out: Path) -> None:
    """The file itself: made inside the spool's folder, and moved to its name when it is whole."""
    spool.close()
    made = spool.folder / f"made{out.suffix}"
    try:
        with os_errors_as_output_error(out), progress(f"write {out.name}", spool.n_lines, unit="lines") as advance:
            FORMATS[out.suffix](spool, made, advance)
            flush_to_disk(made)
            os.replace(made, out)
    finally:
        made.unlink(missing_ok=True)  # half a file is of no use, and the disk may be full
    spool.remove()


def check_size(out: Path, n_lines: int) -> None:
    """What a format cannot hold is said as soon as it is known."""
    if out.suffix == ".safetensors" and n_lines > MOST_SAFETENSORS_LINES:
        raise OutputError(
            f"{out}: a .safetensors file has room for {MOST_SAFETENSORS_LINES:,} lines, the text has more. "
            "Write .h5 instead, or split the text."
        )


def _vectors(elmo: "Elmo", lines: Iterator[str], settings: Settings) -> Generator[tuple[str, Array], None, None]:
    """Each line with its array."""
    waiting: deque[str] = deque()  # lines that were read, whose vectors are not there yet

    def sentences() -> Iterator[list[str] | str]:
        for text in lines:
            waiting.append(text)
            yield text if settings.tokenize else text.split()

    layers: Layers = settings.layers if settings.layers in LAYERS else int(settings.layers)  # type: ignore[assignment]
    arrays = elmo.stream(
        sentences(),
        layers,
        batch_tokens=settings.batch_tokens,
        precision=settings.precision,
        state=settings.state,
        lang=settings.tokenize or "en",
    )
    for array in arrays:
        yield waiting.popleft(), array


def _pooled(array: Array, pool: str | None) -> Array:
    """(..., tokens, dim) -> (..., dim), zeros where there are no tokens."""
    if pool is None:
        return array
    if not array.shape[-2]:
        return np.zeros_like(array, shape=(*array.shape[:-2], array.shape[-1]))
    pooled: Array = array.mean(axis=-2) if pool == "mean" else array.max(axis=-2)
    return pooled


def _skip_known(lines: Iterator[str], spool: Spool, input_: str) -> None:
    """Read past the lines that an earlier run has done, and make sure that they are the same."""
    for number, known in enumerate(spool.lines(), 1):
        text = next(lines, None)
        if text != known.text:
            found = "the text ends" if text is None else f"found {text[:40]!r}"
            raise WrongCallError(
                f"{input_}: line {number}: expected {known.text[:40]!r}, whose vectors {spool.folder} has; "
                f"{found}. Resume with the same text, or start again with --overwrite."
            )
