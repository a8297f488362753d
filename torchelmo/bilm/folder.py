"""Model folders as plain data: config.json + model.safetensors (+ vocab.txt). This module imports no model."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchelmo.bilm.config import BiLMConfig
from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import ConfigError, OutputError
from torchelmo.files import atomic_write, read_json
from torchelmo.tensors import read_tensors, save_tensors
from torchelmo.text.vocabulary import Vocabulary

FORMAT = 1
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class ModelCard(NamedTuple):
    """Everything in a model folder except the weights."""

    config: BiLMConfig
    vocabulary: Vocabulary | None
    origin: str  # where the weights came from
    official_options: dict[str, Any] | None  # options.json as it was read, to be written back
    lang: str | None = None  # language of the training text, whose rules split it into tokens; None if not known
    pretokenized: bool = False  # the training text was already split into tokens


def read_card(folder: str | Path) -> ModelCard:
    """Read and check config.json and vocab.txt."""
    folder = Path(folder)
    path = folder / "config.json"
    card = read_json(path, "the config.json of a model folder")
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
    model = dict(card["model"])
    if not model.get("softmax_cutoffs"):
        model.pop("softmax_cutoffs", None)  # older folders name this setting, which no longer exists
    config = build_config(BiLMConfig, model, where=str(path))
    words = Vocabulary.read(folder / "vocab.txt") if (folder / "vocab.txt").exists() else None
    return ModelCard(config, words, str(card.get("origin") or folder), options, lang, pretokenized)


def read_weights(folder: str | Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read model.safetensors, which must hold tensors of exactly these shapes; float16 becomes float32."""
    return read_tensors(Path(folder) / "model.safetensors", shapes, what="the weights that config.json describes")


def write_folder(
    folder: str | Path, card: ModelCard, tensors: Mapping[str, Tensor], *, dtype: torch.dtype | None = None
) -> None:
    """Write a model folder: all files or none. An older model is replaced only when everything has been written."""
    folder = Path(folder)
    if folder.is_file():
        raise OutputError(f"{folder}: expected a folder to write to, found a file. Choose another name.")
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
    }
    # The files are renamed in reverse order: config.json, which marks a model folder, comes last.
    with contextlib.ExitStack() as files:
        config_file = files.enter_context(atomic_write(folder / "config.json"))
        if words is not None:
            files.enter_context(atomic_write(folder / "vocab.txt")).write_text(words, encoding="utf-8")
        weights_file = files.enter_context(atomic_write(folder / "model.safetensors"))
        config_file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        save_tensors(weights_file, tensors, dtype=dtype)
    if words is None:
        (folder / "vocab.txt").unlink(missing_ok=True)  # of the older model
