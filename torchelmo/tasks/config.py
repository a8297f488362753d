"""Settings of a task run: the tables of the TOML file that `torchelmo task train` reads."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from torchelmo.config import Config, Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt, Range, Width
from torchelmo.errors import ConfigError
from torchelmo.runs.config import Every, TaskOptimConfig

LAYERS = ("all", "top", "average")


@dataclass(frozen=True)
class ElmoConfig(Config):
    """[elmo]: the places at which the biLM enters the task model, and the layers that are used."""

    place: Literal["none", "input", "output", "both"] = "none"
    model: str = ""  # what torchelmo.load accepts; empty for the model in the package
    layers: str = "all"  # "all" learns a mix of the layers; fixed: "top", "average", or an index such as "1"
    l2: NonNegativeFloat = 0.001  # λ of the penalty λ‖w‖² on the mix weights
    gamma: Literal["learned", "fixed"] = "learned"  # the scale γ of a mix; "fixed" keeps it at 1
    layer_norm: bool = False
    dropout: Fraction = 0.5
    unfreeze: bool = False  # train the biLM with the task; its layers are not cached then
    memory_mb: NonNegativeFloat = 1000.0  # memory for cached layers
    disk_mb: NonNegativeFloat = 20_000.0  # a temporary file for more of them; the rest is computed in every epoch
    cache: Path | None = None  # a folder for layers that many runs share; each sentence is computed by one run only
    cache_mb: NonNegativeFloat = 20_000.0  # size limit of that folder

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers not in LAYERS and not re.fullmatch("[0-9]{1,9}", self.layers):
            raise ConfigError(f"layers: expected {', '.join(LAYERS)} or the index of a layer, got {self.layers!r:.60}.")

    @property
    def places(self) -> tuple[str, ...]:
        """The places where ELMo enters: one mix is learned for each."""
        return {"none": (), "both": ("input", "output")}.get(self.place, (self.place,))


@dataclass(frozen=True)
class WordsConfig(Config):
    """[words]: word vectors from a file, or learned vectors of width `dim` for the words of the training data."""

    vectors: Path | None = None  # a GloVe or word2vec text file
    dim: Annotated[int, Range(min=0, max=2**20)] = 0  # the width of learned vectors; 0 for none
    trainable: bool = False  # train the vectors of the file, for the words that the training data contains
    min_count: NonNegativeInt = 2  # rarer words share <UNK>, unless the file has a vector for them


@dataclass(frozen=True)
class CharactersConfig(Config):
    """[characters]: a small CNN over the characters of each word, trained with the task."""

    n_filters: Annotated[int, Range(min=0, max=2**20)] = 0  # 0 for no character CNN
    char_dim: Width = 16
    width: Annotated[int, Range(min=1, max=1000)] = 3


@dataclass(frozen=True)
class TaskConfig(Config):
    """The settings of a task run.

    The tables [data] and [model] depend on the task: see `Task.data_config` and `Task.model_config`.
    """

    task: str  # a name in torchelmo.tasks.TASKS
    train: Path  # labeled data to train on
    dev: Path  # labeled data that decides which epoch is the best
    out: Path  # the folder of the run
    seed: NonNegativeInt = 1
    share: Annotated[float, Range(above=0, max=1)] = 1.0  # the share of the training data to use, drawn by `seed`
    epochs: PositiveInt = 20
    patience: NonNegativeInt = 5  # stop after this many epochs without a better dev score; 0 for never
    batch_size: PositiveInt = 32  # examples
    clip: NonNegativeFloat = 5.0  # largest gradient norm; 0 for no limit
    ema: Fraction = 0.0  # decay of a moving average of the weights, which is scored and saved in their place; 0: none
    checkpoint_every: int | str = "5m"  # steps, or a time; there is always one at the end of an epoch
    threads: NonNegativeInt = 0  # 0 for PyTorch's default
    device: str = "auto"  # "auto" is CUDA if available, else the CPU
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    words: WordsConfig = field(default_factory=WordsConfig)
    characters: CharactersConfig = field(default_factory=CharactersConfig)
    elmo: ElmoConfig = field(default_factory=ElmoConfig)
    optim: TaskOptimConfig = field(default_factory=TaskOptimConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("train", "dev", "out"):  # for Python callers that give text
            object.__setattr__(self, name, Path(getattr(self, name)))
        Every.parse("checkpoint_every", self.checkpoint_every)
