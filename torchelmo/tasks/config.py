"""The settings of a task run, as `torchelmo task train` reads them."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torchelmo.errors import ConfigError
from torchelmo.runs.config import Every, TaskOptimConfig

LAYERS = ("all", "top", "average")


@dataclass(frozen=True)
class ElmoConfig:
    """[elmo]: where the biLM enters the task model, and which of its layers."""

    place: Literal["none", "input", "output", "both"] = "none"
    model: str = ""  # anything torchelmo.load takes; empty for the model inside the package
    layers: str = "all"  # learns their weights; "top", "average" or the index of one, such as "1"
    l2: float = 0.001  # λ of the penalty λ‖w‖² on the learned weights
    layer_norm: bool = False
    dropout: float = 0.5
    unfreeze: bool = False  # train the biLM with the task; there is no cache then
    memory_mb: float = 1000.0  # keep layers in so much memory,
    disk_mb: float = 20_000.0  # more of them in a temporary file, and run the biLM again for the rest

    def __post_init__(self) -> None:
        if self.layers not in LAYERS and not re.fullmatch("[0-9]+", self.layers):
            raise ConfigError(f"layers: expected {', '.join(LAYERS)} or the index of a layer, got {self.layers!r}.")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and below 1, got {self.dropout}.")
        for name in ("l2", "memory_mb", "disk_mb"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}.")


@dataclass(frozen=True)
class WordsConfig:
    """[words]: static vectors from a file, or learned ones of width `dim` for the words of the training data."""

    vectors: Path | None = None  # GloVe or word2vec text format
    dim: int = 0  # without a file: their width, 0 for no word vectors
    trainable: bool = False  # the vectors of words in the training data; those without a file always are
    limit: int = 0  # read the first so many of the file; 0 for all
    min_count: int = 2  # rarer words share <UNK>: of all without a file, of those outside it where vectors are trained

    def __post_init__(self) -> None:
        for name in ("dim", "limit", "min_count"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}.")


@dataclass(frozen=True)
class CharactersConfig:
    """[characters]: a small CNN over the characters of each word, trained with the task."""

    n_filters: int = 0  # 0 for no character CNN
    char_dim: int = 16
    width: int = 3

    def __post_init__(self) -> None:
        if self.n_filters < 0:
            raise ConfigError(f"n_filters must not be negative, got {self.n_filters}.")
        for name in ("char_dim", "width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")


@dataclass(frozen=True)
class TaskConfig:
    """The top level of the file; [data] and [model] are the task's own."""

    task: str
    train: Path
    dev: Path
    out: Path
    seed: int = 1
    epochs: int = 20
    patience: int = 5  # stop after so many epochs without a new best on dev; 0 for never
    batch_size: int = 32  # examples
    clip: float = 5.0  # largest norm of the gradient; 0 for no limit
    ema: float = 0.0  # decay of a moving average of the weights, which is then what is scored and kept
    checkpoint_every: int | str = "5m"  # steps or a time; at the end of every epoch anyway
    threads: int = 0  # 0 for PyTorch's own choice
    device: str = "cpu"
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    words: WordsConfig = field(default_factory=WordsConfig)
    characters: CharactersConfig = field(default_factory=CharactersConfig)
    elmo: ElmoConfig = field(default_factory=ElmoConfig)
    optim: TaskOptimConfig = field(default_factory=TaskOptimConfig)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("seed", "patience", "clip", "threads"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}.")
        if not 0 <= self.ema < 1:
            raise ConfigError(f"ema must be at least 0 and below 1, got {self.ema}.")
        Every.parse("checkpoint_every", self.checkpoint_every)
