"""Tiny data and a tiny biLM for the runs of all tasks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_tasks import write_pos
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchelmo.runs.resume import Stop


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.conllu and dev.conllu. Tests that change them write their own."""
    return write_pos(tmp_path_factory.mktemp("pos"))


@pytest.fixture
def stop_after() -> Iterator[Callable[[int], Stop]]:
    """A Stop that is asked for after so many steps of whatever runs next."""
    handles = []

    def stop_after(steps: int) -> Stop:
        stop, taken = Stop(), 0

        def count(*_: Any) -> None:
            nonlocal taken
            taken += 1
            stop.requested = taken >= steps

        handles.append(register_optimizer_step_post_hook(count))
        return stop

    yield stop_after
    for handle in handles:
        handle.remove()
