"""Model folders: config.json + model.safetensors (+ vocab.txt), and `load`, which takes any model by its name."""

import contextlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.model import BiLM
from torchelmo.bilm.tensors import check_finite, fill, own_tensors
from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import ConfigError, MissingFileError, OutputError, WeightsError
from torchelmo.files import read_json, require_file, writing
from torchelmo.formats.official import load_official
from torchelmo.runtime import give_back_freed_memory
from torchelmo.text.vocabulary import Vocabulary

FORMAT = 1
PRETRAINED = Path(__file__).parent.parent / "pretrained"
DEFAULT_MODEL = "english-small"
_FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


def load(model: str | Path | None = None) -> BiLM:
    """A biLM by folder (ours, or official: one *options.json + one *.hdf5), or by the name of one in the package."""
    if model is None or not Path(model).exists():
        return load_folder(_pretrained_folder(model or DEFAULT_MODEL))
    folder = Path(model)
    if folder.is_file():
        raise MissingFileError(f"{folder}: expected a model folder, found a file. Give the folder it stands in.")
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
    """Read what `save_folder` wrote; float16 files become float32 in memory."""
    with torch.device("meta"):
        bilm = build_folder(folder)
    tensors = _read_safetensors(Path(folder) / "model.safetensors", bilm)
    fill(bilm, tensors)
    give_back_freed_memory()
    return bilm


def build_folder(folder: str | Path) -> BiLM:
    """The model of a folder before its weights are read: its shape, its words, and where it came from."""
    folder = Path(folder)
    card = _read_card(folder / "config.json")
    config = build_config(BiLMConfig, card["model"], where=str(folder / "config.json"))
    bilm = BiLM(config, Vocabulary.read(folder / "vocab.txt") if (folder / "vocab.txt").exists() else None)
    bilm.origin = str(card.get("origin") or folder)
    bilm.official_options = card.get("official_options")
    return bilm


def save_folder(bilm: BiLM, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """All files or none: what the folder held before is replaced only when everything has been written."""
    from safetensors.torch import save_file

    folder = Path(folder)
    if folder.is_file():
        raise OutputError(f"{folder}: expected a folder to write to, found a file. Choose another name.")
    if dtype is not None and dtype not in _FLOATS.values():
        known = ", ".join(map(str, _FLOATS.values()))
        raise ConfigError(f"{folder}: dtype: expected one of {known}, got {dtype}.")
    tensors = {
        name: tensor.detach().to("cpu", dtype or tensor.dtype).contiguous()
        for name, tensor in own_tensors(bilm).items()
    }
    card = {
        "format": FORMAT,
        "model": config_to_dict(bilm.config),
        "origin": bilm.origin,
        "official_options": bilm.official_options,
    }
    words = None if bilm.vocabulary is None else bilm.vocabulary.text(folder / "vocab.txt")
    with contextlib.ExitStack() as files:  # closed last to first: config.json, which makes it a model, at the end
        of_card = files.enter_context(writing(folder / "config.json"))
        if words is not None:
            files.enter_context(writing(folder / "vocab.txt")).write_text(words, encoding="utf-8")
        of_tensors = files.enter_context(writing(folder / "model.safetensors"))
        of_card.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
        save_file(tensors, of_tensors, metadata={"format": "pt"})
    if words is None:
        (folder / "vocab.txt").unlink(missing_ok=True)  # of a model that was here before


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
    inside = sorted(path.parent.name for path in PRETRAINED.glob("*/config.json"))
    raise MissingFileError(
        f"{name}: expected a model folder, or the name of a model inside the package "
        f"({', '.join(inside) or 'this version has none'}); found no such folder."
    )


def _read_card(path: Path) -> dict[str, Any]:
    card = read_json(path, "the config.json of a model folder")
    if not isinstance(card, dict) or not isinstance(card.get("model"), dict):
        raise ConfigError(f"{path}: expected an object with the key 'model', as torchelmo writes it.")
    if card.get("format") != FORMAT:
        raise ConfigError(
            f"{path}: expected format {FORMAT}, found {card.get('format')!r}. Update torchelmo to read it."
        )
    return card


def _read_safetensors(path: Path, bilm: BiLM) -> dict[str, Tensor]:
    """Names, shapes and dtypes are checked before anything is allocated."""
    from safetensors import SafetensorError, safe_open

    require_file(path, "the model.safetensors of a model folder")
    expected = {name: tuple(tensor.shape) for name, tensor in own_tensors(bilm).items()}
    try:
        with safe_open(path, framework="pt") as file:
            found = set(file.keys())
            for name in sorted(expected.keys() - found):
                raise WeightsError(f"{path}: expected the tensor {name!r}, which is missing.")
            for name in sorted(found - expected.keys()):
                raise WeightsError(f"{path}: found the tensor {name!r}, which config.json has no place for.")
            for name, shape in expected.items():
                piece = file.get_slice(name)
                if tuple(piece.get_shape()) != shape:
                    raise WeightsError(
                        f"{path}: {name}: expected shape {shape} from config.json, found {tuple(piece.get_shape())}."
                    )
                if piece.get_dtype() not in _FLOATS:
                    raise WeightsError(
                        f"{path}: {name}: expected one of {', '.join(_FLOATS)}, found {piece.get_dtype()}."
                    )
            tensors = {name: file.get_tensor(name).to(torch.float32) for name in expected}
    except SafetensorError as error:
        raise WeightsError(
            f"{path}: expected a safetensors file, but it is damaged or cut short ({error}). Copy it again."
        ) from error
    for name, tensor in tensors.items():
        check_finite(tensor, f"{path}: {name}")
    return tensors
