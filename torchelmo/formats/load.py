"""Load a biLM from any place: the package, a model folder, or a folder with official files."""

from pathlib import Path

import torch

from torchelmo.bilm.folder import read_card, read_weights
from torchelmo.bilm.model import BiLM
from torchelmo.errors import MissingFileError
from torchelmo.formats.official import load_official
from torchelmo.runtime import release_freed_memory

PRETRAINED = Path(__file__).parent.parent / "pretrained"
DEFAULT_MODEL = "english-small"


def load(model: str | Path | None = None) -> BiLM:
    """Load a biLM.

    Args:
        model: A model folder, a folder with official files (one *options.json and one *.hdf5), or the name of a model
            in the package. Default: the English model in the package.

    Returns:
        The model, in float32 on the CPU.

    Raises:
        MissingFileError: There is no such folder or name.
        WeightsError: A file is damaged or does not fit its configuration.

    >>> load().config.cell_dim
    512
    """
    if model is None or not Path(model).exists():
        return load_folder(_pretrained_folder(model or DEFAULT_MODEL))
    folder = Path(model)
    if folder.is_file():
        raise MissingFileError(f"{folder}: expected a model folder, found a file. Give the folder that holds it.")
    if (folder / "config.json").exists():
        return load_folder(folder)
    if any(folder.glob("*options.json")):  # released ones are called elmo_…_options.json and elmo_…_weights.hdf5
        options, weights = (_only(folder, pattern) for pattern in ("*options.json", "*.hdf5"))
        vocabulary = folder / "vocab.txt"
        return load_official(options, weights, vocabulary if vocabulary.exists() else None)
    raise MissingFileError(
        f"{folder}: expected a model folder with config.json (ours) or options.json + *.hdf5 (official), found neither."
    )


def load_folder(folder: str | Path) -> BiLM:
    """Load a model folder that `BiLM.save` wrote; float16 weights become float32 in memory."""
    with torch.device("meta"):
        bilm = build_folder(folder)
    shapes = {name: tuple(tensor.shape) for name, tensor in bilm.own_tensors().items()}
    bilm.assign_parameters(read_weights(folder, shapes))
    release_freed_memory()
    return bilm


def build_folder(folder: str | Path) -> BiLM:
    """Build the model of a folder with its shape and vocabulary, without reading its weights."""
    card = read_card(folder)
    bilm = BiLM(card.config, card.vocabulary)
    bilm.origin, bilm.official_options = card.origin, card.official_options
    bilm.lang, bilm.pretokenized = card.lang, card.pretokenized
    return bilm


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise MissingFileError(f"{folder}: expected one {pattern} in a folder of official files, found {names}.")
    return found[0]


def _pretrained_folder(name: str | Path) -> Path:
    folder = PRETRAINED / str(name)
    if "/" not in str(name) and (folder / "config.json").exists():
        return folder
    known = sorted(path.parent.name for path in PRETRAINED.glob("*/config.json"))
    raise MissingFileError(
        f"{name}: expected a model folder, or the name of a model in the package "
        f"({', '.join(known) or 'this version has none'}); found no such folder."
    )
