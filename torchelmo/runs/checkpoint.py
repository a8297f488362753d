"""Checkpoints: one format for pre-training, fine-tuning and tasks.

    out/checkpoints/step-00001200/
        checkpoint.json          kind of run, settings, input hashes, progress, and the SHA-256 of every other file
        optimizer.safetensors    one file for every group of tensors
        config.json …            files that the run adds, such as those of a model folder

A checkpoint is written under a temporary name, flushed to disk and renamed, so it is complete or absent. Random numbers
need no state: they derive from the seed and the step (`torchelmo.runtime.step_seed`).
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torchelmo import __version__
from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import TorchelmoError, WeightsError, short_repr
from torchelmo.files import content_hash, flush_to_disk, os_errors_as_output_error, read_json, write_json
from torchelmo.tensors import Shape, read_tensors, write_tensors

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORMAT = 3
CARD = "checkpoint.json"
_NAME = re.compile(r"step-\d{8,18}")
_TYPES: dict[str, type] = {
    "kind": str, "step": int, "settings": dict, "inputs": dict, "progress": dict, "files": dict, "sha256": str
}  # fmt: skip
T = TypeVar("T")


class Checkpoint(NamedTuple):
    """A checkpoint whose card and checksums have been verified. The tensors are read by `read`."""

    folder: Path
    kind: str  # of run: "pretrain", "task"
    step: int
    settings: dict[str, Any]  # the configuration of the run
    inputs: dict[str, str]  # a hash of each input, by the setting that names it
    progress: dict[str, Any]  # see `read_progress`

    def read_progress(self, cls: type[T]) -> T:
        """Return the progress of the run as the dataclass `cls`; every field is checked.

        Raises:
            WeightsError: A field is missing, unknown, of the wrong type or out of range.
        """
        with _as_weights_error(self.folder):
            return build_config(cls, self.progress, where=f"{self.folder / CARD}: progress")

    def read(
        self,
        group: str,
        expected: Mapping[str, Shape],
        *,
        optional: Collection[str] = (),
        dtype: "torch.dtype | None" = None,
    ) -> dict[str, "Tensor"]:
        """Read a group of tensors. Names, shapes, dtypes and values are checked before anything is used.

        Args:
            group: The name of the group, as given to `save_checkpoint`.
            expected: The shape of every tensor.
            optional: Names in `expected` that may be missing.
            dtype: The dtype of the result; default float32.

        Raises:
            MissingFileError: The checkpoint has no such group.
            WeightsError: The tensors are damaged, or not those that are expected.
        """
        path = self.folder / f"{group}.safetensors"
        what, advice = f"the {group} tensors of this run", _advice(self.folder)
        return read_tensors(path, expected, what=what, optional=optional, dtype=dtype, advice=advice)


def save_checkpoint(
    out: Path,
    *,
    kind: str,
    step: int,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
    progress: Any,
    tensors: Mapping[str, Mapping[str, "Tensor"]],
    keep: int,
    add_files: Callable[[Path], object] | None = None,
) -> Path:
    """Write out/checkpoints/step-N, and remove all checkpoints except the last `keep`.

    Args:
        out: The folder of the run.
        kind: The kind of run, such as "pretrain" or "task".
        step: The number of steps taken.
        settings: The configuration of the run, as plain data.
        inputs: A hash of each input, by the setting that names it.
        progress: A dataclass; `Checkpoint.read_progress` returns it.
        tensors: Groups of tensors; each group is one file.
        keep: How many checkpoints to keep, at least 1.
        add_files: Called with the folder, which is still empty, to add other files.

    Returns:
        The folder of the checkpoint.

    Raises:
        OutputError: The checkpoint could not be written; none is left half-written.
    """
    with new_checkpoint(out, step, keep) as temporary:
        if add_files is not None:
            add_files(temporary)
        for group, named in tensors.items():
            write_tensors(temporary / f"{group}.safetensors", named)
        card = {
            "format": FORMAT,
            "torchelmo": __version__,
            "kind": kind,
            "step": step,
            "settings": dict(settings),
            "inputs": dict(inputs),
            "progress": config_to_dict(progress),
            "files": {path.name: content_hash(path) for path in sorted(temporary.iterdir())},
        }
        write_json(temporary / CARD, {**card, "sha256": _card_hash(card)})
    return folder_of(out, step)


@contextlib.contextmanager
def new_checkpoint(out: Path, step: int, keep: int) -> Iterator[Path]:
    """Yield a temporary folder that becomes checkpoints/step-N; then remove all except the last `keep`."""
    folder = folder_of(out, step)
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        with os_errors_as_output_error(folder):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            yield temporary
            for path in (*temporary.iterdir(), temporary):
                flush_to_disk(path)
            if folder.exists():  # the run was resumed from an earlier checkpoint by hand
                remove_checkpoint(folder)
            os.rename(temporary, folder)
            flush_to_disk(folder.parent)
            for old in checkpoints(out)[:-keep]:
                remove_checkpoint(old)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # present only if it was not renamed


def latest_checkpoint(out: Path, kind: str) -> Checkpoint | None:
    """Read the last checkpoint of the run in `out`; None if there is none."""
    found = checkpoints(out)
    return read_checkpoint(found[-1], kind) if found else None


def read_checkpoint(folder: Path, kind: str) -> Checkpoint:
    """Read the card of a checkpoint, and verify the checksum of every file.

    Raises:
        WeightsError: The checkpoint is damaged, or belongs to another kind of run or another version of torchelmo.
    """
    with _as_weights_error(folder):
        card = read_json(folder / CARD, "the card of a checkpoint")
        if not isinstance(card, dict) or card.get("format") != FORMAT:
            found = card.get("format") if isinstance(card, dict) else card
            raise WeightsError(
                f"{folder / CARD}: expected a checkpoint of format {FORMAT}, found {short_repr(found)}. "
                "Resume with the version of torchelmo that wrote it."
            )
        for name, type_ in _TYPES.items():
            if type(card.get(name)) is not type_:
                raise WeightsError(_damaged(folder, f"{name} is {short_repr(card.get(name))}"))
        if not all(isinstance(value, str) for name in ("inputs", "files") for value in card[name].values()):
            raise WeightsError(_damaged(folder, "a hash is not text"))
        if card.pop("sha256") != _card_hash(card):
            raise WeightsError(_damaged(folder, f"{CARD} does not have its checksum"))
        if card["kind"] != kind:
            raise WeightsError(f"{folder}: expected a checkpoint of {kind}, found one of {card['kind']:.60}.")
        present = {path.name for path in folder.iterdir()} - {CARD}
        for name in sorted(present ^ card["files"].keys()):
            raise WeightsError(_damaged(folder, f"{name:.80} is {'unknown' if name in present else 'missing'}"))
        for name, expected in card["files"].items():
            if content_hash(folder / name) != expected:
                raise WeightsError(_damaged(folder, f"{name} does not have its checksum"))
    return Checkpoint(folder, *(card[name] for name in Checkpoint._fields[1:]))


def checkpoints(out: Path) -> list[Path]:
    """Return the finished checkpoints of a run, oldest first."""
    folders = [path for path in (out / "checkpoints").glob("step-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("step-")))


def folder_of(out: Path, step: int) -> Path:
    """Return the folder of the checkpoint after `step`."""
    return out / "checkpoints" / f"step-{step:08d}"


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that a half-removed one does not look like a checkpoint."""
    doomed = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def clean(out: Path) -> None:
    """Remove temporary files that a killed run left in `out`."""
    for pattern in (".*.tmp", "*/.*.tmp", "checkpoints/.step-*.old"):
        for path in out.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _card_hash(card: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()


def _damaged(folder: Path, problem: str) -> str:
    return f"{folder}: expected a checkpoint, but it is damaged: {problem}. {_advice(folder)}"


def _advice(folder: Path) -> str:
    before = [path for path in checkpoints(folder.parent.parent) if path.name < folder.name]
    if before:
        return f"Remove {folder} to resume from {before[-1].name}."
    return "Start again with overwrite=True."


@contextlib.contextmanager
def _as_weights_error(folder: Path) -> Iterator[None]:
    """Raise errors of a damaged card as a WeightsError with advice."""
    try:
        yield
    except WeightsError:
        raise
    except (TorchelmoError, OSError) as error:
        raise WeightsError(_damaged(folder, str(error).rstrip("."))) from error
