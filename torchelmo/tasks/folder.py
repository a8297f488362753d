"""A trained task as a folder that needs nothing else: `torchelmo.tasks.load` reads it.

task.json            which task, its settings, its vocabularies
words.json           the words that have vectors
words.safetensors    the vectors of the last of them, which are fixed
model.safetensors    the weights of the best epoch
bilm/                a model folder, where ELMo enters: the biLM as it was before the run
metrics.json         the scores on dev
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchelmo import __version__
from torchelmo.bilm.weights import load_folder
from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import ConfigError, MissingFileError
from torchelmo.files import read_json, write_json
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.elmo_layers import ElmoLayers
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.characters import TokenCharCNN
from torchelmo.tasks.layers.word_vectors import WordEmbedding
from torchelmo.tasks.registry import find_task
from torchelmo.tasks.task import Task, TaskModel
from torchelmo.tasks.trained import TrainedTask
from torchelmo.tasks.weights import load_tensors, read_tensors, save_tensors

FORMAT = 1


def load(folder: str | Path) -> TrainedTask:
    """A task folder that `torchelmo task train` wrote."""
    folder = Path(folder)
    card = _read_card(folder)
    where = str(folder / "task.json")
    config = build_config(TaskConfig, card["config"], where=where)
    task = find_task(card["task"])
    elmo = None
    if config.elmo.place != "none":
        # What is predicted comes once: to keep its layers would only fill the memory.
        settings = dataclasses.replace(config.elmo, memory_mb=0.0, disk_mb=0.0)
        elmo = ElmoLayers(load_folder(folder / "bilm"), settings)
    inputs = TokenInput(_load_words(folder, card["word_dim"]), build_characters(config), elmo)
    options = build_config(task.model_config, config.model, where=f"{where}: model")
    model = task.build(options, inputs, card["vocabularies"])
    load_tensors(model, folder / "model.safetensors")
    model.eval()
    return TrainedTask(task, config, model, card["vocabularies"])


def save_task(
    folder: Path,
    task: Task[Any, Any],
    config: TaskConfig,
    model: TaskModel[Any, Any],
    vocabularies: Mapping[str, list[str]],
) -> None:
    """Everything but the weights, which are written at every new best epoch."""
    words, elmo = model.inputs.words, model.inputs.elmo
    card = {
        "format": FORMAT,
        "torchelmo": __version__,
        "task": task.name,
        "word_dim": words.dim if words is not None else 0,
        "config": config_to_dict(config),
        "vocabularies": dict(vocabularies),
    }
    write_json(folder / "task.json", card, indent=1)
    if words is not None:
        write_json(folder / "words.json", words.words, indent=0)
        if words.fixed is not None:
            save_tensors(folder / "words.safetensors", {"vectors": words.fixed})
    if elmo is not None:
        elmo.bilm.save(folder / "bilm")


def build_characters(config: TaskConfig) -> TokenCharCNN | None:
    settings = config.characters
    if not settings.n_filters:
        return None
    return TokenCharCNN(char_dim=settings.char_dim, n_filters=settings.n_filters, width=settings.width)


def _load_words(folder: Path, dim: int) -> WordEmbedding | None:
    if not dim:
        return None
    words = read_json(folder / "words.json", "the words of a trained task")
    path = folder / "words.safetensors"
    if not path.exists():
        return WordEmbedding(words, dim=dim)
    fixed = read_tensors(path, "the word vectors of a trained task")["vectors"]
    learned = torch.zeros(len(words) - len(fixed), dim)  # model.safetensors has them
    return WordEmbedding(words, torch.cat([learned, fixed]), n_fixed=len(fixed))


def _read_card(folder: Path) -> dict[str, Any]:
    path = folder / "task.json"
    if not path.exists():
        kind = "a folder without task.json" if folder.is_dir() else "no such folder"
        seeds = sorted(folder.glob("seed-*/task.json"))
        raise MissingFileError(
            f"{folder}: expected a folder that `torchelmo task train` wrote, found {kind}."
            + (f" It holds runs with several seeds: give one of them, such as {seeds[0].parent}." if seeds else "")
        )
    card = read_json(path, "the card of a trained task")
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        found = card.get("format") if isinstance(card, dict) else card
        raise ConfigError(f"{path}: expected a task of format {FORMAT}, found {found!r:.60}. Train it again.")
    missing = [key for key in ("task", "word_dim", "config", "vocabularies") if key not in card]
    if missing:
        raise ConfigError(f"{path}: expected the card of a trained task, but it has no {missing[0]!r}. Train it again.")
    return card
