"""Writing while the next vectors are computed: one thread, and a queue that cannot grow."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

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
