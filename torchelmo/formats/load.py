"""Load a biLM by its name, or from a folder or an archive in any of the known formats."""

import contextlib
import itertools
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import torch

from torchelmo.bilm.folder import read_card, read_weights
from torchelmo.bilm.model import BiLM
from torchelmo.errors import MissingFileError, TorchelmoError, short_repr
from torchelmo.formats.allennlp import WEIGHTS as ALLENNLP_WEIGHTS
from torchelmo.formats.allennlp import load_allennlp
from torchelmo.formats.archives import is_archive, unpack
from torchelmo.formats.efml import load_efml
from torchelmo.formats.hdf5 import UNFINISHED, check_download, open_hdf5, unfinished_download
from torchelmo.formats.official import find_options, load_official, not_one_file
from torchelmo.formats.tf_checkpoint import load_checkpoint
from torchelmo.formats.tf_hub import PREFIX as TF_HUB_PREFIX
from torchelmo.formats.tf_hub import load_tf_hub
from torchelmo.runtime import release_freed_memory

PRETRAINED = Path(__file__).parent.parent / "pretrained"
DEFAULT_MODEL = "english-small"
Kind = Literal["folder", "official", "checkpoint", "tf-hub", "efml", "allennlp", "none"]
_HUB_ID = re.compile(r"(?P<prefix>hf:/{1,2})?\w[\w.-]*/\w[\w.-]*(?:@[\w./-]+)?")  # a Path has one slash
log = logging.getLogger(__name__)


def load(model: str | Path | None = None) -> BiLM:
    """Load a biLM.

    Args:
        model: The name of a model in the package; a folder or archive (.zip, .tar, .tar.gz) that contains a model
            folder, official files (options.json + weights.hdf5 under any of their usual names, and the softmax in a
            second *softmax*.hdf5 if there is one), a TensorFlow checkpoint of bilm-tf with its options.json, a TF-Hub
            module, a model of ELMoForManyLangs or of AllenNLP; the name of a published model whose files are in
            TORCHELMO_HOME, such as "nlpl:210" or "elmo-original"; or "owner/name[@revision]" on the Hugging Face hub.
            Default: the English model in the package. For a folder with the name of a model in the package, write
            "./english-small".

    Returns:
        The model, in float32 on the CPU.

    Raises:
        MissingFileError: There is no such folder or name.
        ConfigError: config.json or options.json has a wrong value.
        WeightsError: A weight file is damaged or does not match its configuration.

    Example:
        >>> import torchelmo
        >>> torchelmo.load("english-small").config.cell_dim
        768
    """
    path = find_model(model)
    if path.is_dir():
        return _LOADERS[model_kind(path)](path)
    if is_hdf5(path):
        return load_official(_options_of(path), path)
    with open_folder(path) as folder:
        bilm = _LOADERS[model_kind(folder)](folder)
    bilm.origin, bilm.source = f"{bilm.origin} in {path.name}", str(path)
    return bilm


def from_pretrained(
    pretrained_model_name_or_path: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
) -> BiLM:
    """Load a model by its id on the Hugging Face hub, or from a folder.

    Args:
        pretrained_model_name_or_path: "owner/name", "owner/name@revision", or anything else that `load` accepts.
        revision: A branch, a tag or a commit; default: that of the name, or the main branch.
        token: The access token for a private model; default: that of `hf auth login`.
        cache_dir: The folder of downloaded models; default: that of huggingface_hub.
        local_files_only: Use only files that were downloaded before.
        force_download: Download the files again.

    Returns:
        The model, in float32 on the CPU.

    Raises:
        MissingFileError: There is no such model, or the hub cannot be reached.
    """
    name = str(pretrained_model_name_or_path)
    if not is_hub_id(name) or Path(name).exists():
        return load(pretrained_model_name_or_path)
    from torchelmo.formats.hub import download

    folder = download(
        name,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        force_download=force_download,
    )
    return load(folder)


@contextlib.contextmanager
def open_folder(model: str | Path | None) -> Iterator[Path]:
    """Give the folder of a model; that of an archive is temporary, and errors in the block name the archive."""
    path = find_model(model)
    if path.is_dir():
        yield path
        return
    with unpack(path) as root:
        try:
            yield _folder_in_archive(root)
        except TorchelmoError as error:
            raise type(error)(str(error).replace(str(root), str(path))) from error


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
        if is_archive(folder) or is_hdf5(folder):
            return folder
        raise _wrong_file_error(folder)
    if not folder.exists():
        if Path(f"{name}.index").is_file():  # what TensorFlow calls the path of a checkpoint
            raise _wrong_file_error(Path(f"{name}.index"))
        return _find_elsewhere(str(name))
    if model_kind(folder) == "none":
        raise _no_model_error(folder)
    return folder


def is_hub_id(name: str) -> bool:
    """Return whether a name can be an id on the Hugging Face hub: "owner/name[@revision]", also after "hf://".

    A path whose first folder exists is not an id, unless it has the prefix.

    >>> is_hub_id("lysandre/elmo"), is_hub_id("hf://lysandre/elmo@main"), is_hub_id("./runs/mine")
    (True, True, False)
    """
    match = _HUB_ID.fullmatch(name)
    return match is not None and (match["prefix"] is not None or not Path(name).parent.exists())


def _find_elsewhere(name: str) -> Path:
    """Return the files of a name that is no path: a model of the registry, or of the Hugging Face hub."""
    from torchelmo.formats.registry import find_download, find_published

    published = None if is_hub_id(name) else find_published(name)
    if published is not None:
        return find_download(published)
    if is_hub_id(name):
        from torchelmo.formats.hub import download

        return download(name)
    known = ", ".join(sorted(path.parent.name for path in PRETRAINED.glob("*/config.json"))) or "none"
    raise MissingFileError(
        f"{name}: expected a model folder, an archive, or the name of a model; found no such folder. Models in the "
        f"package: {known}. `torchelmo models` lists published models."
    )


def _options_of(weights: Path) -> Path:
    """Return the options of a weights.hdf5: X_options.json for X_weights.hdf5, or the only one in its folder."""
    start = re.split("weights|model", weights.name)[0]
    named = weights.with_name(f"{start}options.json")
    return named if named.is_file() else find_options(weights.parent)


def is_hdf5(path: Path) -> bool:
    """Return whether a path is a file of official weights, by its name."""
    return path.suffix.lower() in (".hdf5", ".h5") and path.is_file()


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
    bilm.lang, bilm.pretokenized, bilm.mixes = card.lang, card.pretokenized, card.mixes
    if card.int8:
        bilm.quantize()
    return bilm


def _holds_lstms(path: Path) -> bool:
    with open_hdf5(path) as file:
        return any(name in file for name in ("RNN_0", "RNN", "rnn"))


def model_kind(folder: Path) -> Kind:
    """Return the format of the model in a folder; "none" for an archive, which must be unpacked first."""
    # A format is also recognized if a file of it is missing: its reader names the file.
    if any((folder / name).is_file() for name in ("encoder.pkl", "token_embedder.pkl", "char.dic", "word.dic")):
        return "efml"
    if (folder / "config.json").is_file():
        if any((folder / name).exists() for name in (*ALLENNLP_WEIGHTS, "vocabulary")):
            return "allennlp"
        if (folder / "model.safetensors").exists() or not any(folder.glob("*options*.json")):
            return "folder"
    if any(folder.glob("*.index")):  # unlike the HDF5 file that may be beside it, it has the softmax
        return "checkpoint"
    if (folder / f"{TF_HUB_PREFIX}.index").is_file():
        return "tf-hub"
    return "official" if any(folder.glob("*options*.json")) else "none"


def _folder_in_archive(root: Path) -> Path:
    """Return the folder of the model in an unpacked archive: the only one, without what is inside of it."""
    found: list[Path] = []
    for folder in (root, *sorted(path for path in root.rglob("*") if path.is_dir())):
        if model_kind(folder) != "none" and not any(folder.is_relative_to(other) for other in found):
            found.append(folder)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(folder.relative_to(root)) for folder in found)
        raise MissingFileError(f"{root}: expected one model, found several: {names}. Unpack it, and load one of them.")
    raise _no_model_error(root)


def _no_model_error(folder: Path) -> MissingFileError:
    names = sorted(path.name for path in itertools.islice(folder.iterdir(), 1000)) if folder.is_dir() else []
    listed = ", ".join(short_repr(name) for name in names[:10]) + (", …" if len(names) > 10 else "")
    weights = next((name for name in names if name.endswith((".hdf5", ".h5"))), None)
    advice = f" If {short_repr(weights)} has the weights of a model, put its options.json beside it." if weights else ""
    return MissingFileError(
        f"{folder}: expected a model folder with config.json + model.safetensors, official files: options.json + "
        "*.hdf5, a TensorFlow checkpoint: options.json + *.index + *.data, a TF-Hub module: variables/variables.index, "
        "a model of ELMoForManyLangs: config.json + *.pkl + *.dic, or of AllenNLP: config.json + weights.th. Found "
        f"{listed or 'an empty folder'}.{advice}{unfinished_download(folder)}"
    )


def _wrong_file_error(path: Path) -> MissingFileError:
    check_download(path)
    if path.name.endswith(UNFINISHED):
        return MissingFileError(f"{path}: expected a model, found a download that has not finished. Download it again.")
    return MissingFileError(
        f"{path}: expected a model folder or an archive (.zip, .tar, .tar.gz), found another file. "
        "Give the folder that contains it."
    )


_LOADERS: dict[Kind, Callable[[Path], BiLM]] = {
    "folder": load_folder,
    "official": load_official_folder,
    "checkpoint": load_checkpoint,
    "tf-hub": load_tf_hub,
    "efml": load_efml,
    "allennlp": load_allennlp,
}
