"""Load a biLM by the name of a model in the package, or from a folder or an archive in any of the known formats."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from torchelmo.bilm.folder import read_card, read_weights
from torchelmo.bilm.model import BiLM
from torchelmo.errors import MissingFileError, TorchelmoError
from torchelmo.formats.archives import is_archive, unpack
from torchelmo.formats.efml import load_efml
from torchelmo.formats.hdf5 import check_download, open_hdf5
from torchelmo.formats.official import find_options, load_official, not_one_file
from torchelmo.formats.tf_checkpoint import load_checkpoint
from torchelmo.runtime import release_freed_memory

PRETRAINED = Path(__file__).parent.parent / "pretrained"
DEFAULT_MODEL = "english-small"
Kind = Literal["folder", "official", "checkpoint", "efml", "none"]
log = logging.getLogger(__name__)


def load(model: str | Path | None = None) -> BiLM:
    """Load a biLM.

    Args:
        model: The name of a model in the package, or a folder or archive (.zip, .tar, .tar.gz) that contains a model
            folder, official files (options.json + weights.hdf5 under any of their usual names, and the softmax in a
            second *softmax*.hdf5 if there is one), a TensorFlow checkpoint of bilm-tf with its options.json, or a model
            of ELMoForManyLangs. Default: the English model in the package. For a folder with the name of a model in the
            package, write "./english-small".

    Returns:
        The model, in float32 on the CPU.

    Raises:
        MissingFileError: There is no such folder or name.
        ConfigError: config.json or options.json has a wrong value.
        WeightsError: A weight file is damaged or does not match its configuration.

    Example:
        >>> import torchelmo
        >>> torchelmo.load("english-small").config.cell_dim
        512
    """
    path = find_model(model)
    if path.is_dir():
        return _LOADERS[model_kind(path)](path)
    with unpack(path) as root:
        try:
            folder = _folder_in_archive(root)
            bilm = _LOADERS[model_kind(folder)](folder)
        except TorchelmoError as error:  # name the archive, not the temporary folder
            raise type(error)(str(error).replace(str(root), str(path))) from error
    bilm.origin, bilm.source = f"{bilm.origin} in {path.name}", str(path)
    return bilm


def load_official_folder(folder: Path) -> BiLM:
    """Load the official files of a folder, under any of their usual names."""
    # Released files are called elmo_…_options.json, elmo_…_weights.hdf5 and elmo_…_softmax_weights.hdf5.
    options = find_options(folder)
    files = sorted(path for pattern in ("*.hdf5", "*.h5") for path in folder.glob(pattern))
    softmax = [path for path in files if "softmax" in path.name]
    weights = [path for path in files if path not in softmax] or softmax
    if len(weights) > 1:  # there may also be vectors that bilm-tf or torchelmo wrote
        weights = [path for path in weights if _holds_lstms(path)]
    if len(weights) != 1:
        raise not_one_file(folder, "*.hdf5 with the weights", weights or files)
    if weights == softmax:
        softmax = []
    if len(softmax) > 1:
        raise not_one_file(folder, "*softmax*.hdf5", softmax)
    return load_official(options, weights[0], softmax=softmax[0] if softmax else None)


def find_model(model: str | Path | None = None) -> Path:
    """Return the folder of a model that `load` accepts.

    Args:
        model: What `load` takes.

    Returns:
        A folder with a model, or an archive that may contain one.

    Raises:
        MissingFileError: There is no such folder or name, or no model in it.
    """
    name = DEFAULT_MODEL if model is None else model
    folder, packaged = Path(name), PRETRAINED / name
    if name == packaged.name and (packaged / "config.json").exists():  # a string without a slash
        if model is not None and (folder / "config.json").exists():
            log.warning("%s is a model in the package. To load the folder of that name, write ./%s", name, name)
        return packaged
    if folder.is_file():
        if is_archive(folder):
            return folder
        raise MissingFileError(
            f"{folder}: expected a model folder or an archive (.zip, .tar, .tar.gz), found another file. "
            "Give the folder that contains it."
        )
    if not folder.exists():
        known = ", ".join(sorted(path.parent.name for path in PRETRAINED.glob("*/config.json"))) or "none"
        raise MissingFileError(
            f"{folder}: expected a model folder, or the name of a model in the package ({known}); found no such folder."
        )
    if model_kind(folder) == "none":
        raise _no_model_error(folder)
    return folder


def load_folder(folder: str | Path) -> BiLM:
    """Load a model folder that `BiLM.save` wrote: as float32, or with LSTMs in int8 if they were saved so.

    Args:
        folder: The folder.

    Returns:
        The model, on the CPU. It does not depend on the files any more.

    Raises:
        ConfigError: config.json has a wrong value.
        MissingFileError: A file is missing.
        WeightsError: model.safetensors is damaged or does not match config.json.
    """
    check_download(Path(folder) / "model.safetensors")
    with torch.device("meta"):  # nothing is allocated before the file is known to have these shapes
        bilm = build_folder(folder)
    bilm.assign_parameters(read_weights(folder, bilm.own_tensors()))
    release_freed_memory()
    return bilm


def build_folder(folder: str | Path) -> BiLM:
    """Build the model of a folder with its shape and vocabulary, without reading its weights."""
    card = read_card(folder)
    bilm = BiLM(card.config, card.vocabulary, card.symbols)
    bilm.origin, bilm.source, bilm.official_options = card.origin, str(folder), card.official_options
    bilm.lang, bilm.pretokenized = card.lang, card.pretokenized
    if card.int8:
        bilm.quantize()
    return bilm


def _holds_lstms(path: Path) -> bool:
    with open_hdf5(path) as file:
        return any(name in file for name in ("RNN_0", "RNN", "rnn"))


def model_kind(folder: Path) -> Kind:
    """Return the format of the model in a folder; "none" for an archive, which must be unpacked first."""
    if (folder / "encoder.pkl").is_file() and (folder / "token_embedder.pkl").is_file():
        return "efml"
    if (folder / "config.json").is_file():
        return "folder"
    if any(folder.glob("*.index")):  # unlike the HDF5 file that may be beside it, it has the softmax
        return "checkpoint"
    return "official" if any(folder.glob("*options*.json")) else "none"


def _folder_in_archive(root: Path) -> Path:
    """Return the folder of the model in an unpacked archive: the top folder, or the only one with a model."""
    folders = [root, *sorted(path for path in root.rglob("*") if path.is_dir())]
    found = [folder for folder in folders if model_kind(folder) != "none"]
    if found and (found[0] == root or len(found) == 1):
        return found[0]
    if found:
        names = ", ".join(str(folder.relative_to(root)) for folder in found)
        raise MissingFileError(f"{root}: expected one model, found several: {names}. Unpack it, and load one of them.")
    raise _no_model_error(root)


def _no_model_error(folder: Path) -> MissingFileError:
    return MissingFileError(
        f"{folder}: expected a model folder with config.json + model.safetensors, official files: options.json + "
        "*.hdf5, a TensorFlow checkpoint: options.json + *.index + *.data, or a model of ELMoForManyLangs: config.json "
        "+ *.pkl + *.dic. Found none of them."
    )


_LOADERS: dict[Kind, Callable[[Path], BiLM]] = {
    "folder": load_folder,
    "official": load_official_folder,
    "checkpoint": load_checkpoint,
    "efml": load_efml,
}
