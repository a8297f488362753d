"""Checkpoints: everything a run needs to go on exactly, in a folder that is whole or not there at all.

    out/                        a model folder: the weights of the last checkpoint
    out/best/                   a model folder: the weights with the lowest held-out perplexity
    out/checkpoints/step-00001200/
        config.json, model.safetensors, vocab.txt      a model folder, too
        training.safetensors                           optimiser and LSTM state
        training.json                                  step, time, place in the data, settings

Random numbers need no state: those of a step are drawn from its number and the seed.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchelmo.bilm.model import BiLM, BiLMState
from torchelmo.errors import TorchelmoError, WeightsError
from torchelmo.files import flush_to_disk, os_errors_as_output_error

FORMAT = 1
MODEL_FILES = ("model.safetensors", "vocab.txt", "config.json")
_OPTIMIZER = "optimizer/"


class Progress(NamedTuple):
    """Where a run stands after a step: the JSON part of a checkpoint."""

    step: int = 0
    seconds: float = 0.0  # of training, over all pieces of the run
    position: Any = None  # of the stream, as it gave it
    best: float | None = None  # the lowest held-out perplexity so far
    best_step: int = 0
    stale: int = 0  # evaluations since then
    threads: int = 0


class Checkpoint(NamedTuple):
    folder: Path
    progress: Progress
    settings: dict[str, Any]  # the configuration of the run
    data: str  # fingerprint of the prepared text
    optimizer: dict[str, Tensor]
    state: BiLMState  # all rows of the batch


def save_checkpoint(
    out: Path,
    bilm: BiLM,
    *,
    progress: Progress,
    settings: dict[str, Any],
    data: str,
    optimizer: dict[str, Tensor],
    state: BiLMState,
    keep: int,
) -> Path:
    """Write checkpoints/step-N, give `out` the same weights, and drop all checkpoints but the last `keep`."""
    from safetensors.torch import save_file

    with new_checkpoint(out, progress.step, keep) as temporary:
        bilm.save(temporary)
        tensors = {f"{_OPTIMIZER}{name}": tensor for name, tensor in optimizer.items()}
        tensors |= {f"state/{name}": tensor for name, tensor in state._asdict().items()}
        save_file(
            {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()},
            temporary / "training.safetensors",
        )
        card = {"format": FORMAT, "progress": progress._asdict(), "data": data, "settings": settings}
        (temporary / "training.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    folder = folder_of(out, progress.step)
    with os_errors_as_output_error(folder):
        publish(folder, out)
    return folder


@contextlib.contextmanager
def new_checkpoint(out: Path, step: int, keep: int) -> Iterator[Path]:
    """A folder to write into, which then becomes checkpoints/step-N; all but the last `keep` are dropped."""
    folder = folder_of(out, step)
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        with os_errors_as_output_error(folder):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            yield temporary
            for path in (*temporary.iterdir(), temporary):
                flush_to_disk(path)
            if folder.exists():  # a run that was resumed from an earlier checkpoint by hand
                _remove(folder)
            os.rename(temporary, folder)
            flush_to_disk(folder.parent)
            for old in checkpoints(out)[:-keep]:
                _remove(old)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # where it was not renamed: of a full disk it may be the rest


def publish(folder: Path, out: Path) -> None:
    """Make `out` a model folder with the weights of a checkpoint; each file is replaced at once."""
    for name in MODEL_FILES:
        temporary = out / f".{name}.tmp"
        temporary.unlink(missing_ok=True)
        try:
            os.link(folder / name, temporary)  # the same bytes, not a second copy
        except OSError:
            shutil.copyfile(folder / name, temporary)
            flush_to_disk(temporary)
        os.replace(temporary, out / name)
        temporary.unlink(missing_ok=True)  # a rename between two links of one file does nothing


def folder_of(out: Path, step: int) -> Path:
    return out / "checkpoints" / f"step-{step:08d}"


def checkpoints(out: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    return sorted((out / "checkpoints").glob("step-*"))


def read_checkpoint(folder: Path) -> Checkpoint:
    """Everything but the weights, which `restore_weights` puts into a model."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        card = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        if card.get("format") != FORMAT:
            raise WeightsError(
                f"{folder}: expected a checkpoint of format {FORMAT}, found {card.get('format')!r}. "
                "Go on with the version of torchelmo that wrote it."
            )
        tensors = load_file(folder / "training.safetensors")
        return Checkpoint(
            folder,
            Progress(**card["progress"]),
            card["settings"],
            card["data"],
            {name.removeprefix(_OPTIMIZER): tensor for name, tensor in tensors.items() if name.startswith(_OPTIMIZER)},
            BiLMState(tensors["state/hidden"].clone(), tensors["state/cell"].clone()),
        )
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, TorchelmoError):
            raise
        raise WeightsError(
            f"{folder}: expected a checkpoint, but it is damaged ({type(error).__name__}: {error}). "
            "Remove this folder to go on from the checkpoint before it."
        ) from error


def restore_weights(bilm: BiLM, folder: Path) -> None:
    """Copy the weights of a checkpoint into a model of the same shape."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(folder / "model.safetensors")
        with torch.no_grad():
            for name, parameter in bilm.own_tensors().items():
                parameter.copy_(tensors[name])
    except (SafetensorError, OSError, KeyError, RuntimeError) as error:
        raise WeightsError(
            f"{folder}: expected the weights of this model, but they are damaged or of another shape "
            f"({error}). Remove this folder to go on from the checkpoint before it."
        ) from error


def clean(out: Path) -> None:
    """Remove what a killed process left half done."""
    for pattern in (".*.tmp", "best/.*.tmp", "checkpoints/.*.tmp", "checkpoints/.*.old"):
        for path in out.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def remove_run(out: Path) -> None:
    """Remove what a run writes into `out`, and nothing else."""
    for name in ("checkpoints", "best", "tensorboard"):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in (*MODEL_FILES, "metrics.jsonl", "curve.png"):
        (out / name).unlink(missing_ok=True)


def has_run(out: Path) -> bool:
    return bool(checkpoints(out)) or any((out / name).exists() for name in ("config.json", "metrics.jsonl"))


def _remove(folder: Path) -> None:
    """A folder on its way out must not look like a checkpoint, not even for a moment."""
    doomed = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
