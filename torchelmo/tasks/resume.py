"""Whether a run may begin in a folder, or go on with what the folder holds."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchelmo.bilm.model import BiLM
from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import ConfigError, OutputExistsError, TorchelmoError, WeightsError
from torchelmo.files import content_hash, os_errors_as_output_error
from torchelmo.formats.load import load as load_bilm
from torchelmo.runs.checkpoint import checkpoints, clean, new_checkpoint
from torchelmo.runs.optim import optimizer_tensors, restore_optimizer
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.task import Scores, TaskModel, find_task
from torchelmo.tasks.trained import (
    MixResult,
    Result,
    load_tensors,
    read_result,
    read_tensors,
    save_tensors,
    task_tensors,
    trained_parameters,
    write_result,
)


def fingerprint(config: TaskConfig, bilm: BiLM | None = None) -> dict[str, str]:
    """A hash of each input, by the setting that names it; of the biLM (loaded unless given) only where ELMo enters."""
    found = {"train": content_hash(config.train), "dev": content_hash(config.dev)}
    if config.words.vectors is not None:
        found["words.vectors"] = content_hash(config.words.vectors)
    if config.elmo.place != "none":
        found["elmo.model"] = (bilm or load_bilm(config.elmo.model or None)).fingerprint()
    return found


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


# These change what is kept and how far a run goes, never a step that was already taken.
_MAY_CHANGE = frozenset("out epochs patience checkpoint_every threads elmo.memory_mb elmo.disk_mb".split())
# All that a run writes; the card, by which it is known, goes last.
_FOLDERS = ("checkpoints", "bilm")
_FILES = ("words.json", "words.safetensors", "model.safetensors", "metrics.json", "epochs.jsonl", "task.json")
_OR_ELSE = "use another --out, or remove this folder to begin again."


def open_folder(config: TaskConfig, *, resume: bool, overwrite: bool) -> Saved | None:
    """The checkpoint to go on from, if `out` has one and that is wanted; without one, `out` is a folder to begin in.

    A run that is to be overwritten is still there: `clear_folder` removes it when the new one is sure to begin.
    """
    out = config.out
    is_run = (out / "task.json").exists()
    if not is_run:
        taken = next((name for name in (*_FOLDERS, *_FILES) if (out / name).exists()), None)
        if taken is not None:
            raise OutputExistsError(
                f"{out}: holds {taken}, but not of a task run. It is left alone: use another --out."
            )
    if is_run and not resume and not overwrite:
        raise OutputExistsError(
            f"{out}: holds a run already. Use --resume to go on with it, --overwrite to replace it, or another --out."
        )
    with os_errors_as_output_error(out):
        out.mkdir(parents=True, exist_ok=True)
    clean(out)
    return None if overwrite else find_saved(config)


def clear_folder(out: Path) -> None:
    """Remove all that a run before this one wrote."""
    for name in _FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)
    for name in _FILES:
        (out / name).unlink(missing_ok=True)


def find_saved(config: TaskConfig) -> Saved | None:
    """The last checkpoint in `out`, which must be of a run with these settings and the same files behind them."""
    saved = latest(config.out)
    if saved is not None:
        _check_settings(config, saved)
        _check_inputs(config, saved)
    return saved


def find_finished(config: TaskConfig) -> Result | None:
    """The result of the run in `out`, if it has no step left to take."""
    saved = find_saved(config)
    return result_of_finished(config, saved) if saved is not None else None


def result_of_finished(config: TaskConfig, saved: Saved) -> Result | None:
    """The result that belongs to a checkpoint, if the run has no step left to take."""
    if not is_over(config, saved.progress):
        return None
    result = read_result(config.out)
    if not result.finished:  # it was stopped, and now fewer epochs are wanted
        result = result._replace(finished=True)
        write_result(config.out, result)
    return result


def is_over(config: TaskConfig, progress: Progress) -> bool:
    stale = progress.epoch - progress.best_epoch
    return progress.epoch >= config.epochs or (0 < config.patience <= stale)


def _check_settings(config: TaskConfig, saved: Saved) -> None:
    before, now = _flat(build_config(TaskConfig, saved.settings, str(saved.folder))), _flat(config)
    names = (before.keys() | now.keys()) - _MAY_CHANGE
    if config.optim.decay != "none" or 0 < config.optim.warmup < 1:
        names.add("epochs")  # the learning rate of every step depends on them
    if "none" in (before["elmo.place"], now["elmo.place"]):  # then no other setting of ELMo matters
        names = {name for name in names if name == "elmo.place" or not name.startswith("elmo.")}
    for name in sorted(names):
        if before.get(name) != now.get(name):
            raise ConfigError(
                f"{config.out}: a resumed run must keep its settings, but {name} was {before.get(name)!r} and is "
                f"{now.get(name)!r}. Leave it as it was, {_OR_ELSE}"
            )
    if saved.progress.epoch > config.epochs:
        raise ConfigError(
            f"{config.out}: holds a run of {saved.progress.epoch} epochs, and epochs is {config.epochs}: its best may "
            f"have come later. Ask for as many, {_OR_ELSE}"
        )


def _check_inputs(config: TaskConfig, saved: Saved) -> None:
    for name, found in fingerprint(config).items():
        if found != saved.inputs.get(name):
            what = _flat(config)[name] or "the model inside the package"
            raise ConfigError(
                f"{config.out}: a resumed run must keep what it is made from, but {name} ({what}) has changed since it "
                f"began. Put that back, {_OR_ELSE}"
            )


def _flat(config: TaskConfig) -> dict[str, Any]:
    """Every setting by its name on the command line, those that were left out with their defaults."""
    task, plain = find_task(config.task), config_to_dict(config)
    for table, kind in (("data", task.data_config), ("model", task.model_config)):
        plain[table] = config_to_dict(build_config(kind, plain[table], where=table))
    return dict(_leaves(plain))


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
