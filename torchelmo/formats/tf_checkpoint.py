"""Load checkpoints of bilm-tf: options.json + model.ckpt-N.index + model.ckpt-N.data-00000-of-00001.

They contain the arrays of official files under other names, the softmax, and the state of the optimizer.
"""

import logging
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from torchelmo.bilm.model import BiLM
from torchelmo.errors import MissingFileError, WeightsError, short_repr
from torchelmo.files import read_bounded
from torchelmo.formats.layout import canonical_names, config_from_options, is_weight
from torchelmo.formats.official import Source, build_official, find_options, read_options, read_parameters
from torchelmo.formats.tf_bundle import FLOAT32, Checkpoint, read_checkpoint

log = logging.getLogger(__name__)
_SCOPE = "lm/"  # of the variables of bilm-tf while it trains
_NOT_WEIGHTS = re.compile(  # counters, the state of optimizers without its variable, and LSTM states
    r"(?:.*/)?(?:global_step|train_perplexity|beta[12]_power|Adagrad|Adam|Momentum|Variable)(?:_\d+)?"
)
_MAX_LISTED = 40
_WHAT = "a TensorFlow checkpoint, where bilm-tf writes it"  # for errors about options.json


class Variables(NamedTuple):
    """The variables of a checkpoint that are the weights of a biLM."""

    checkpoint: Checkpoint
    scope: str  # what their names start with
    names: dict[str, str]  # by the names of `official_layout`

    def source(self, slot: str = "") -> Source:
        """Return the weights as arrays of the official layout, or the state of an optimizer that has their shapes."""
        entries, names = self.checkpoint.entries, self.names
        datasets = {ours: (entries[name].shape, np.dtype(np.float32)) for ours, name in names.items()}
        return Source(self.path, datasets, lambda ours: self.checkpoint.read(names[ours] + slot))

    @property
    def path(self) -> Path:
        """The index of the checkpoint."""
        return Path(f"{self.checkpoint.prefix}.index")


def load_checkpoint(folder: str | Path) -> BiLM:
    """Load a folder with a checkpoint of bilm-tf and its options.json, with its softmax.

    Args:
        folder: The folder. If it has several checkpoints, the one that the file `checkpoint` names is used.

    Returns:
        The model, in float32 on the CPU.

    Raises:
        ConfigError: options.json has a wrong value.
        MissingFileError: A file is missing.
        WeightsError: The checkpoint is damaged, or does not match the options.
    """
    folder = Path(folder)
    prefix = find_checkpoint(folder)
    options = find_options(folder, _WHAT)
    bilm = build_official(read_options(options), find_variables(read_checkpoint(prefix)).source(), options)
    bilm.origin = f"TensorFlow checkpoint {prefix.name} + {options.name}"
    return bilm


def read_accumulators(folder: str | Path) -> dict[str, Tensor]:
    """Read the state of Adagrad in a checkpoint of bilm-tf: for each parameter, the sum of its squared gradients.

    Args:
        folder: A folder that `load_checkpoint` accepts.

    Returns:
        The sums by the names of our parameters. A projection that the checkpoint does not have is left out.

    Raises:
        MissingFileError: There is no checkpoint in the folder.
        WeightsError: The checkpoint was not trained with Adagrad, or is damaged.
    """
    folder = Path(folder)
    checkpoint = read_checkpoint(find_checkpoint(folder))
    variables = find_variables(checkpoint)
    for name in variables.names.values():
        entry = checkpoint.entries.get(f"{name}/Adagrad")
        if entry is None or (entry.dtype, entry.shape) != (FLOAT32, checkpoint.entries[name].shape):
            raise WeightsError(
                f"{variables.path}: expected the state of Adagrad, {name}/Adagrad, with the shape of {name}; "
                f"found {'none' if entry is None else entry.shape}."
            )
    source, options = variables.source("/Adagrad"), find_options(folder, _WHAT)
    config = config_from_options(read_options(options), source.datasets, str(options))
    tensors = read_parameters(config, source, options)
    if config.input != "words":
        tensors["encoder.embedding"][0] = 1.0  # our row for padding, which has no gradients: the start value
    return tensors


def find_checkpoint(folder: Path) -> Path:
    """Return the path of the checkpoint in a folder, without .index.

    Args:
        folder: The folder.

    Returns:
        The checkpoint that the file `checkpoint` names, or the only one.

    Raises:
        MissingFileError: There is no checkpoint, or it is not known which one to use.
    """
    found = sorted(path.with_suffix("") for path in folder.glob("*.index"))
    state, missing = folder / "checkpoint", ""
    if state.is_file():
        text = read_bounded(state, "the file `checkpoint`", max_bytes=2**20).decode("utf-8", "replace")
        match = re.search(r'^\s*model_checkpoint_path:\s*"([^"\n]*)"', text, re.MULTILINE)
        if match:
            # The path may be that of another machine; the file moved together with `checkpoint`.
            named = folder / (re.split(r"[/\\]", match[1])[-1] or "none")
            if named in found:
                return named
            missing = f" The file `checkpoint` names {short_repr(named.name)}, which is not there."
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{path.name}.index" for path in found) or "none"
    raise MissingFileError(
        f"{folder}: expected one TensorFlow checkpoint, model.ckpt-N.index, or a file `checkpoint` that names one; "
        f"found {names}.{missing}"
    )


def find_variables(checkpoint: Checkpoint) -> Variables:
    """Find the weights among the variables of a checkpoint.

    Args:
        checkpoint: The checkpoint, of bilm-tf or of a program that uses its names.

    Returns:
        The variables that are weights. Counters and the state of optimizers are left out.

    Raises:
        WeightsError: There are no weights of a biLM, or some have a wrong type. The message lists the variables.
    """
    entries, where = checkpoint.entries, f"{checkpoint.prefix}.index"
    # The state of an optimizer is called like its variable, with a part added.
    plain = [name for name in entries if name.rpartition("/")[0] not in entries and not _NOT_WEIGHTS.fullmatch(name)]
    scopes = {match[1] or "" for name in plain if (match := re.fullmatch(r"(.*/)?(?:char_embed|embedding)", name))}
    scope = next(iter(scopes)) if len(scopes) == 1 else _SCOPE
    inside = [name for name in plain if name.startswith(scope)]
    weights = [name for name in inside if is_weight(name.removeprefix(scope))]
    if not weights or not scopes:
        raise WeightsError(
            f"{where}: expected the variables of bilm-tf, such as lm/char_embed, found {_list_variables(checkpoint)}."
        )
    if scope and len(inside) > len(weights):
        others = ", ".join(sorted(set(inside) - set(weights))[:_MAX_LISTED])
        log.warning("%s: ignored the variables %s, which are no weights of a biLM.", where, others)
    for name in weights:
        if entries[name].is_partitioned:
            raise WeightsError(
                f"{where}: {name} is partitioned: stored in several slices, which bilm-tf does not do. Save the "
                "checkpoint again without a partitioner."
            )
        if entries[name].dtype != FLOAT32:
            raise WeightsError(
                f"{where}: {name}: expected float32 (TensorFlow's type 1), found type {entries[name].dtype}."
            )
    names = canonical_names([name.removeprefix(scope) for name in weights], checkpoint.prefix)
    return Variables(checkpoint, scope, {ours: scope + name for ours, name in names.items()})


def _list_variables(checkpoint: Checkpoint) -> str:
    names = sorted(checkpoint.entries)
    listed = [f"{name[:100]} {checkpoint.entries[name].shape}" for name in names[:_MAX_LISTED]]
    more = [f"and {len(names) - _MAX_LISTED} more"] if len(names) > _MAX_LISTED else []
    return ", ".join([*listed, *more]) or "none"
