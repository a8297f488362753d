"""Model folders as plain data: config.json + model.safetensors (+ vocab.txt).

This module imports no model, so that everything about a folder can be checked before a model is built.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchelmo.bilm.config import BiLMConfig
from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import ConfigError, InputError, OutputError, OutputExistsError
from torchelmo.files import atomic_write, read_json
from torchelmo.tensors import read_tensors, save_tensors
from torchelmo.text.characters import Symbols
from torchelmo.text.vocabulary import Vocabulary

FORMAT = 1
MAX_CONFIG_BYTES = 2**17  # a hundred times the usual size; bounds the time that checking a file takes
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8)


class ModelCard(NamedTuple):
    """Everything in a model folder except the weights."""

    config: BiLMConfig
    vocabulary: Vocabulary | None
    origin: str  # how the weights were made
    official_options: dict[str, Any] | None  # options.json as it was read, to be written back
    lang: str | None = None  # language of the training text, whose rules split it into tokens; None if not known
    pretokenized: bool = False  # the training text was already split into tokens
    symbols: Symbols | None = None  # of a model that reads characters and words
    int8: bool = False  # the LSTM weights are int8, with a scale for each output channel


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
    return ModelCard(config, words, str(card.get("origin") or folder), options, lang, pretokenized, symbols, int8)


def read_weights(folder: str | Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read model.safetensors, which must contain tensors of exactly these shapes, int8 where `expected` is int8.

    All other tensors are returned as float32.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    int8 = [name for name, tensor in expected.items() if tensor.dtype == torch.int8]
    file = Path(folder) / "model.safetensors"
    return read_tensors(file, shapes, what="the weights that config.json describes", int8=int8)


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
    if words is None:
        (folder / "vocab.txt").unlink(missing_ok=True)  # of the older model
    if card.symbols is None:
        (folder / "symbols.json").unlink(missing_ok=True)


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
