"""Checkpoints of a task run: weights, optimiser, moving average, and where the run stands. No pickle, no RNG state:
the random numbers of a step are drawn from its number and the seed."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchelmo.errors import TorchelmoError, WeightsError
from torchelmo.tasks.result import MixResult
from torchelmo.tasks.task import Scores, TaskModel
from torchelmo.tasks.weights import load_tensors, read_tensors, save_tensors, task_tensors, trained_parameters
from torchelmo.train.checkpoint import checkpoints, new_checkpoint
from torchelmo.train.optim import optimizer_tensors, restore_optimizer

FORMAT = 2
_OPTIMIZER, _AVERAGE = "optimizer/", "average/"


class Progress(NamedTuple):
    """Where a run stands."""

    step: int = 0
    epoch: int = 0  # finished ones
    batch: int = 0  # of the epoch after them
    loss: float = 0.0  # sum over those batches
    best: Scores | None = None
    best_epoch: int = 0
    mixes: Sequence[MixResult] = ()  # of the best epoch
    rate: float = 1.0  # what halving has left of the learning rate
    halved_epoch: int = 0
    seconds: float = 0.0
    bilm_seconds: float = 0.0


class Saved(NamedTuple):
    """A checkpoint, without its tensors."""

    folder: Path
    progress: Progress
    settings: dict[str, Any]  # the configuration of the run
    inputs: dict[str, str]  # a hash of each file it is made from, by the setting that names it


def save_checkpoint(
    out: Path,
    model: TaskModel[Any, Any],
    optimizer: torch.optim.Optimizer,
    average: Mapping[str, Tensor] | None,
    progress: Progress,
    settings: dict[str, Any],
    inputs: dict[str, str],
) -> None:
    with new_checkpoint(out, progress.step, keep=1) as folder:
        save_tensors(folder / "model.safetensors", task_tensors(model))
        names = list(trained_parameters(model))
        tensors = {f"{_OPTIMIZER}{key}": value for key, value in optimizer_tensors(optimizer, names).items()}
        tensors |= {f"{_AVERAGE}{key}": value for key, value in (average or {}).items()}
        save_tensors(folder / "training.safetensors", tensors)
        card = {"format": FORMAT, "progress": progress._asdict(), "settings": settings, "inputs": inputs}
        (folder / "training.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def latest(out: Path) -> Saved | None:
    """The last checkpoint of the run in `out`, if it has one."""
    found = checkpoints(out)
    if not found:
        return None
    folder = found[-1]
    try:
        card = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        if card["format"] != FORMAT:
            raise WeightsError(
                f"{folder}: expected a checkpoint of format {FORMAT}, found {card['format']!r}. Another version of "
                f"torchelmo wrote it: go on with that one, or remove {out} to begin again."
            )
        progress = Progress(**card["progress"])
        mixes = [MixResult(*mix) for mix in progress.mixes]
        return Saved(folder, progress._replace(mixes=mixes), card["settings"], dict(card["inputs"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, TorchelmoError):
            raise
        raise WeightsError(
            f"{folder}: expected a checkpoint of a task run, but it is damaged ({type(error).__name__}: {error}). "
            f"Remove {out} to begin again."
        ) from error


def restore(
    folder: Path,
    model: TaskModel[Any, Any],
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor] | None,
) -> None:
    """Weights, optimiser and moving average as they were."""
    load_tensors(model, folder / "model.safetensors")
    tensors = read_tensors(folder / "training.safetensors", "the state of a task run")
    state = {key.removeprefix(_OPTIMIZER): value for key, value in tensors.items() if key.startswith(_OPTIMIZER)}
    # Parameters that no example has reached yet have no state.
    restore_optimizer(optimizer, list(trained_parameters(model)), state, str(folder), complete=False)
    for name, tensor in (average or {}).items():
        if f"{_AVERAGE}{name}" not in tensors:
            raise WeightsError(f"{folder}: expected the moving average of {name}, which is missing.")
        tensor.copy_(tensors[f"{_AVERAGE}{name}"])
