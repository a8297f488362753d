"""Checkpoints of a task run: weights, optimiser, moving average, and where the run stands. No pickle, no RNG state:
the random numbers of a step are drawn from its number and the seed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchelmo.errors import TorchelmoError, WeightsError
from torchelmo.tasks.folder import load_tensors, save_tensors, task_tensors
from torchelmo.tasks.task import Scores, TaskModel
from torchelmo.train.checkpoint import checkpoints, new_checkpoint
from torchelmo.train.optim import optimizer_tensors, restore_optimizer

FORMAT = 1
_OPTIMIZER, _AVERAGE = "optimizer/", "average/"


class Progress(NamedTuple):
    """Where a run stands."""

    step: int = 0
    epoch: int = 0  # finished ones
    batch: int = 0  # of the epoch after them
    loss: float = 0.0  # sum over those batches
    best: Scores | None = None
    best_epoch: int = 0
    rate: float = 1.0  # what halving has left of the learning rate
    halved_epoch: int = 0
    seconds: float = 0.0
    bilm_seconds: float = 0.0


def save_checkpoint(
    out: Path,
    model: TaskModel[Any, Any],
    optimizer: torch.optim.Optimizer,
    average: Mapping[str, Tensor] | None,
    progress: Progress,
    settings: dict[str, Any],
) -> None:
    with new_checkpoint(out, progress.step, keep=1) as folder:
        save_tensors(folder / "model.safetensors", task_tensors(model))
        tensors = {f"{_OPTIMIZER}{key}": value for key, value in optimizer_tensors(optimizer, _names(model)).items()}
        tensors |= {f"{_AVERAGE}{key}": value for key, value in (average or {}).items()}
        save_tensors(folder / "training.safetensors", tensors)
        card = {"format": FORMAT, "progress": progress._asdict(), "settings": settings}
        (folder / "training.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def latest(out: Path) -> Path | None:
    found = checkpoints(out)
    return found[-1] if found else None


def read_card(folder: Path) -> tuple[Progress, dict[str, Any]]:
    """Where the run stands, and its settings."""
    try:
        card = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        if card["format"] != FORMAT:
            raise WeightsError(f"{folder}: expected a checkpoint of format {FORMAT}, found {card['format']!r}.")
        return Progress(**card["progress"]), card["settings"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, TorchelmoError):
            raise
        raise WeightsError(
            f"{folder}: expected a checkpoint of a task run, but it is damaged ({error}). Begin again with --overwrite."
        ) from error


def restore(
    folder: Path,
    model: TaskModel[Any, Any],
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor] | None,
) -> None:
    """Weights, optimiser and moving average as they were."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    load_tensors(model, folder / "model.safetensors")
    try:
        tensors = load_file(folder / "training.safetensors")
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{folder}: the checkpoint is damaged ({error}). Begin again with --overwrite.") from error
    state = {key.removeprefix(_OPTIMIZER): value for key, value in tensors.items() if key.startswith(_OPTIMIZER)}
    # Parameters that no example has reached yet have no state.
    restore_optimizer(optimizer, _names(model), state, str(folder), complete=False)
    for name, tensor in (average or {}).items():
        tensor.copy_(tensors[f"{_AVERAGE}{name}"])


def trained_parameters(model: TaskModel[Any, Any]) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _names(model: TaskModel[Any, Any]) -> list[str]:
    return list(trained_parameters(model))
