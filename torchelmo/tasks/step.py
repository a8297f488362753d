"""One step of a task's training: gradients of the loss and of ELMo's penalty, clipped, and the weights moved."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torchelmo.tasks.average import MovingAverage
from torchelmo.tasks.task import TaskModel
from torchelmo.train.optim import clip_gradients


class Step(NamedTuple):
    loss: float  # of the task, without the penalty
    norm: float  # of the whole gradient, before it was clipped

    @property
    def is_finite(self) -> bool:
        """Else no weight was moved."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


def take_step(
    model: TaskModel[Any, Any],
    parameters: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    average: MovingAverage | None,
    examples: Sequence[Any],
    clip: float,
) -> Step:
    """Move the `parameters` of the model, unless that would make them NaN or infinite."""
    loss = model.loss(examples)
    total = loss if model.inputs.elmo is None else loss + model.inputs.elmo.penalty()
    total.backward()
    step = Step(loss.item(), clip_gradients(parameters, clip))
    if step.is_finite:
        optimizer.step()
        optimizer.zero_grad()
        if average:
            average.update(model)
    return step
