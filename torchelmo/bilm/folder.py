"""Model folders as plain data: config.json + model.safetensors (+ vocab.txt).

This module imports no model, so that everything about a folder can be checked before a model is built.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from torchelmo.bilm.config import BiLMConfig
from torchelmo.config import Config, Range, build_config, config_to_dict, convert
from torchelmo.errors import ConfigError, InputError, OutputError, OutputExistsError
from torchelmo.files import atomic_write, flush_to_disk, read_json
from torchelmo.tensors import read_tensors, save_tensors
from torchelmo.text.characters import Symbols
from torchelmo.text.vocabulary import Vocabulary

FORMAT = 1
MAX_CONFIG_BYTES = 2**17  # a hundred times the usual size; bounds the time that checking a file takes
_Weight = Annotated[float, Range(min=-1e9, max=1e9)]
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8)


@dataclass(frozen=True)
class MixWeights(Config):
    """The weights of a mix that was published with a model. The names are those of the arguments of `ScalarMix`.

    Args:
        initial: One number for each layer, before the softmax.
        gamma: The scale.
        layer_norm: Whether each layer is normalized before mixing.
        norm_over: What mean and variance of the layer norm are computed over; as published, the batch.
    """

    initial: tuple[_Weight, ...]
    gamma: _Weight = 1.0
    layer_norm: bool = False
    norm_over: Literal["sentence", "batch"] = "batch"


class ModelCard(NamedTuple):
    """Everything in a model folder except the weights."""

    config: BiLMConfig
    vocabulary: Vocabulary | None
    origin: str  # how the weights were made
    official_options: dict[str, Any] | None  # options.json as it was read, to be written back
    lang: str | None = None  # language of the training text, whose rules split it into tokens; None if not known
    pretokenized: bool = False  # the training text was already split into tokens
    symbols: Symbols | None = None  # of a model that reads characters and words
    int8: bool = False  # the LSTM weights are int8, with a scale for each output channel; the encoder's are float16
    mixes: Sequence[MixWeights] = ()


class HubMethods:
    """The methods of a model for the Hugging Face hub, which `torchelmo.formats` implements."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Load a model by its id on the Hugging Face hub, or from a folder, as `torchelmo.load` does.

        Args:
            pretrained_model_name_or_path: "owner/name", or anything else that `torchelmo.load` accepts.
            options: revision, token, cache_dir, local_files_only and force_download, as for snapshot_download of
                huggingface_hub.
        """
        bilm: Self = _formats("load").from_pretrained(pretrained_model_name_or_path, **options)
        return bilm

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Write a model folder with a model card; see `torchelmo.formats.save_pretrained`."""
        url: str | None = _formats("hub").save_pretrained(self, save_directory, **options)
        return url

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model to the Hugging Face hub; see `torchelmo.formats.push_to_hub`."""
        url: str = _formats("hub").push_to_hub(self, repo_id, **options)
        return url


def read_card(folder: str | Path) -> ModelCard:
    """Read and check config.json and vocab.txt.

    Args:
        folder: The model folder.

    Returns:
        Everything in the folder except the weights.

    Raises:
        ConfigError: config.json is not that of a model, or a value is wrong.
        MissingFileError: There is no config.json.
    """
    folder = Path(folder)
    path = folder / "config.json"
    card = read_json(path, "the config.json of a model folder", max_bytes=MAX_CONFIG_BYTES)
    if not isinstance(card, dict) or not isinstance(card.get("model"), dict):
        raise ConfigError(f"{path}: expected an object with the key 'model', as torchelmo writes it.")
    if card.get("format") != FORMAT:
        raise ConfigError(
            f"{path}: expected format {FORMAT}, found {card.get('format')!r:.60}. Update torchelmo to read it."
        )
    options = card.get("official_options")
    if options is not None and not isinstance(options, dict):
        raise ConfigError(f"{path}: official_options: expected an object, found {options!r:.60}.")
    lang, pretokenized = card.get("lang"), card.get("pretokenized", False)
    if not (lang is None or isinstance(lang, str)) or not isinstance(pretokenized, bool):
        raise ConfigError(
            f"{path}: expected lang, a language code or null, and pretokenized, true or false; "
            f"found {lang!r:.60} and {pretokenized!r:.60}."
        )
    int8 = card.get("int8", False)
    if not isinstance(int8, bool):
        raise ConfigError(f"{path}: int8: expected true or false, found {int8!r:.60}.")
    model = dict(card["model"])
    if not model.get("softmax_cutoffs"):
        model.pop("softmax_cutoffs", None)  # older folders name this setting, which no longer exists
    config = build_config(BiLMConfig, model, where=str(path))
    words = Vocabulary.read(folder / "vocab.txt") if (folder / "vocab.txt").exists() else None
    symbols = _read_symbols(folder / "symbols.json") if config.input == "characters+words" else None
    mixes = _parse_mixes(card.get("mixes", []), config.n_layers + 1, f"{path}: mixes")
    origin = str(card.get("origin") or folder)
    return ModelCard(config, words, origin, options, lang, pretokenized, symbols, int8, mixes)


def read_weights(folder: str | Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read model.safetensors, which must contain tensors of exactly these shapes, int8 where `expected` is int8.

    All other tensors are returned as float32, or as float16 where `expected` is float16.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    int8, float16 = (
        [name for name, tensor in expected.items() if tensor.dtype == dtype] for dtype in (torch.int8, torch.float16)
    )
    file = Path(folder) / "model.safetensors"
    return read_tensors(file, shapes, what="the weights that config.json describes", int8=int8, float16=float16)


def write_folder(
    folder: str | Path, card: ModelCard, tensors: Mapping[str, Tensor], *, dtype: torch.dtype | None = None
) -> None:
    """Write a model folder: all files or none. A model in the folder is replaced when everything has been written.

    Args:
        folder: The folder; it is created if necessary.
        card: Configuration, vocabulary and origin.
        tensors: The parameters.
        dtype: The type of the floating-point numbers in the file; default: that of the tensors.

    Raises:
        OutputExistsError: The folder contains files, but no model.
        OutputError: `folder` is a file, or it cannot be written.
    """
    folder = Path(folder)
    if folder.is_file():
        raise OutputError(f"{folder}: expected a folder to write to, found a file. Choose another name.")
    if folder.is_dir() and not _is_model_or_empty(folder):
        raise OutputExistsError(
            f"{folder}: expected a new folder, an empty folder or a model folder, found other files. "
            "Choose another folder."
        )
    if dtype is not None and dtype not in _DTYPES:
        raise ConfigError(f"{folder}: dtype: expected one of {', '.join(map(str, _DTYPES))}, got {dtype}.")
    words = None if card.vocabulary is None else card.vocabulary.text(folder / "vocab.txt")
    content = {
        "format": FORMAT,
        "model": config_to_dict(card.config),
        "origin": card.origin,
        "official_options": card.official_options,
        "lang": card.lang,
        "pretokenized": card.pretokenized,
        **({"int8": True} if card.int8 else {}),
        **({"mixes": [config_to_dict(mix) for mix in card.mixes]} if card.mixes else {}),
    }
    # The files are renamed in reverse order: config.json, which marks a model folder, comes last.
    with contextlib.ExitStack() as files:
        config_file = files.enter_context(atomic_write(folder / "config.json"))
        if words is not None:
            files.enter_context(atomic_write(folder / "vocab.txt")).write_text(words, encoding="utf-8")
        if card.symbols is not None:
            text = json.dumps(card.symbols._asdict())
            files.enter_context(atomic_write(folder / "symbols.json")).write_text(text, encoding="utf-8")
        weights_file = files.enter_context(atomic_write(folder / "model.safetensors"))
        config_file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        save_tensors(weights_file, tensors, dtype=dtype)
        flush_to_disk(weights_file)
        # Everything is written. Remove the mark of the older model before its files are replaced one by one: a process
        # that is killed in between leaves no mixture of two models that can be loaded.
        for name, is_old in (("config.json", True), ("vocab.txt", words is None), ("symbols.json", not card.symbols)):
            if is_old:
                (folder / name).unlink(missing_ok=True)


def _formats(module: str) -> Any:
    """Import a module of `torchelmo.formats` by its name at the call: the formats are built on this package."""
    return import_module(f"torchelmo.formats.{module}")


def _parse_mixes(content: Any, n_layers: int, where: str) -> tuple[MixWeights, ...]:
    """Return the mixes in config.json."""
    mixes: tuple[MixWeights, ...] = convert(tuple[MixWeights, ...], content, where)
    for mix in mixes:
        if len(mix.initial) != n_layers:
            raise ConfigError(f"{where}: initial: expected {n_layers} numbers, found {len(mix.initial)}.")
    return mixes


def _read_symbols(path: Path) -> Symbols:
    content = read_json(path, "the symbols.json of a model that reads characters and words")
    lists = [content.get(name) for name in Symbols._fields] if isinstance(content, dict) else [None]
    for symbols in lists:
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise ConfigError(f"{path}: expected an object with lists of strings: {', '.join(Symbols._fields)}.")
    return Symbols(*lists)


def _is_model_or_empty(folder: Path) -> bool:
    if (folder / "config.json").exists():
        try:
            card = read_json(folder / "config.json", "the config.json of a model folder", max_bytes=MAX_CONFIG_BYTES)
        except (ConfigError, InputError):
            return False
        return isinstance(card, dict) and {"format", "model"} <= card.keys()
    # Without config.json, a call that was killed may have left the other files of a model.
    names = ("model.safetensors", "vocab.txt", "symbols.json")
    return all(path.name in names or path.name[0] == "." for path in folder.iterdir())
