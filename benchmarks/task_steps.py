"""Time the training steps of a task. Used by the benchmarks of tasks."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from torchelmo.config import load_config
from torchelmo.runs.optim import MovingAverage, build_optimizer
from torchelmo.runtime import keep_freed_memory, step_seed
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.runner import Setup, set_up, take_step
from torchelmo.tasks.trained import all_sentences, example_length, trained_parameters
from torchelmo.text.batching import training_batches


class Run(NamedTuple):
    """A task in training."""

    setup: Setup
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    average: MovingAverage | None


class Steps(NamedTuple):
    n_examples: int
    n_tokens: int
    seconds: float


def start_task(config: Path, settings: Sequence[str]) -> Run:
    """Read the data of a task and build its model and optimizer. Nothing is written to the task's `out`."""
    keep_freed_memory()  # as `task train` does
    here = f"out={tempfile.gettempdir()}"  # only the layer cache is written there
    found = load_config(TaskConfig, config, [*settings, here])
    setup = set_up(found)
    assert setup is not None  # it was not asked to stop
    model = setup.trained.model
    parameters = list(trained_parameters(model).values())
    average = MovingAverage(model, found.ema) if found.ema else None
    return Run(setup, parameters, build_optimizer(found.optim, parameters), average)


def take_steps(run: Run, epoch: int, n_steps: int) -> Steps:
    """Take the first steps of an epoch. Runs with the same data use the same batches."""
    trained, data = run.setup.trained, run.setup.examples
    task, model, config = trained.task, trained.model, trained.config
    lengths = [example_length(task, example) for example in data]
    batches = training_batches(lengths, config.batch_size, seed=step_seed(1, epoch, "batches"))[:n_steps]
    model.train()
    n_examples, n_tokens, before = 0, 0, time.perf_counter()
    for batch in batches:
        examples: list[Any] = [data[i] for i in batch]
        take_step(model, run.parameters, run.optimizer, run.average, examples, config.clip)
        n_examples += len(examples)
        n_tokens += sum(map(len, all_sentences(task, examples)))
    return Steps(n_examples, n_tokens, time.perf_counter() - before)
