"""Training steps of a task as the runner takes them, timed: what the benchmarks of tasks share."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.config import load_config
from torchelmo.tasks.batches import training_batches
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.start import Start, start
from torchelmo.tasks.trained import all_sentences, example_length
from torchelmo.tasks.weights import trained_parameters
from torchelmo.train.optim import build_optimizer
from torchelmo.train.signals import Stop


class Steps(NamedTuple):
    n_examples: int
    n_tokens: int
    seconds: float


def start_task(config: Path, settings: Sequence[str]) -> Start:
    """The task's data, vocabularies and model, ready for its first step; nothing is left behind."""
    here = f"out={tempfile.gettempdir()}"  # `out` of the file may not be there yet, and only layers go there
    found = start(load_config(TaskConfig, config, [*settings, here]), Stop())
    assert found is not None  # nobody asks it to stop
    return found


def take_steps(run: Start, epoch: int, n_steps: int) -> Steps:
    """The first steps of an epoch, on the same batches for every run of the same data."""
    task, model = run.trained.task, run.trained.model
    lengths = [example_length(task, example) for example in run.examples]
    batches = training_batches(lengths, run.trained.config.batch_size, seed=1, epoch=epoch)[:n_steps]
    optimizer = build_optimizer(run.trained.config.optim, list(trained_parameters(model).values()))
    model.train()
    n_examples, n_tokens, before = 0, 0, time.perf_counter()
    for batch in batches:
        examples: list[Any] = [run.examples[i] for i in batch]
        model.loss(examples).backward()
        optimizer.step()
        optimizer.zero_grad()
        n_examples += len(examples)
        n_tokens += sum(map(len, all_sentences(task, examples)))
    return Steps(n_examples, n_tokens, time.perf_counter() - before)
