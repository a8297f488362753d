"""The settings of a training run, as `torchelmo pretrain` reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from torchelmo.bilm.config import BiLMConfig
from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import ConfigError
from torchelmo.runs.config import Every, OptimConfig

_MANY = 10**9  # words, where their number is not known yet
# These change what is shown and kept, or how far and how fast a run goes on, never a step that was already taken.
MAY_CHANGE = frozenset(
    "data out init steps epochs hours checkpoint_every keep log_every evaluate_every patience curve tensorboard "
    "threads device optim.lr optim.warmup optim.decay optim.hold optim.final".split()
)


@dataclass(frozen=True)
class PretrainConfig:
    """The top level of the file; exactly one of steps, epochs and hours says how long the run is."""

    data: Path  # a folder that `torchelmo prepare` wrote
    out: Path  # becomes a model folder, with the run's checkpoints and metrics inside
    init: Path | None = None  # a model folder to start from, instead of [model] and random weights
    trained: Literal["all", "softmax"] = "all"  # "softmax": the rest stays as `init` has it
    steps: int | None = None
    epochs: float | None = None
    hours: float | None = None  # training time over all pieces of the run
    checkpoint_every: int | str = "15m"  # steps, or a time such as "90s", "15m", "2h"
    keep: int = 2  # the last checkpoints; the best model by held-out perplexity is kept beside them
    seed: int = 1
    batch_size: int = 128  # rows of the stream, over all ranks
    unroll: int = 20  # tokens per window: gradients end there, the LSTM state goes on
    reset_state: bool = False  # rows whose window begins with a sentence begin it from zero, as `embed` does
    dropout: float = 0.1
    loss: Literal["sampled", "full"] = "sampled"
    negatives: int = 8192  # per window, shared by all its tokens
    loss_scale: float = 1.0  # the published program trained on loss × unroll
    unigram_bias: bool = False  # start the softmax bias from the log frequency of each word
    clip: float = 10.0  # largest norm of the whole gradient; 0 for no limit
    log_every: int = 100
    evaluate_every: int | str = 0  # steps or a time; 0 for the end only
    evaluate_tokens: int = 50_000  # of the held-out part, always the same ones
    patience: int = 0  # stop after so many evaluations without a new best; 0 for never
    curve: bool = True  # curve.png at the end, where matplotlib is installed
    tensorboard: bool = True  # events in out/tensorboard, where the package is installed
    threads: int = 0  # of each process; 0 for PyTorch's own choice
    device: str = "auto"  # cpu, cuda, cuda:1, …
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16 is autocast, on CUDA
    model: dict[str, Any] = field(default_factory=dict)  # BiLMConfig; the data tells the number of words
    optim: OptimConfig = field(default_factory=OptimConfig)

    # Keys of a file that give way where --set names another: epochs to hours=8.
    REPLACES: ClassVar[Mapping[str, Sequence[str]]] = {
        "steps": ("epochs", "hours"),
        "epochs": ("steps", "hours"),
        "hours": ("steps", "epochs"),
        "init": ("model",),
    }

    def __post_init__(self) -> None:
        lengths = [name for name in ("steps", "epochs", "hours") if getattr(self, name) is not None]
        if len(lengths) != 1:
            raise ConfigError(
                "expected exactly one of steps, epochs and hours, which says how long the run is; "
                f"got {' and '.join(lengths) or 'none'}."
            )
        if getattr(self, lengths[0]) <= 0:
            raise ConfigError(f"{lengths[0]} must be positive, got {getattr(self, lengths[0])}.")
        for name in (
            "keep",
            "batch_size",
            "unroll",
            "negatives",
            "log_every",
            "evaluate_tokens",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("clip", "patience", "seed", "threads"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}.")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and below 1, got {self.dropout}.")
        if self.loss_scale <= 0:
            raise ConfigError(f"loss_scale must be positive, got {self.loss_scale}.")
        if not Every.parse("checkpoint_every", self.checkpoint_every):
            raise ConfigError("checkpoint_every must be positive; a run without checkpoints cannot be resumed.")
        Every.parse("evaluate_every", self.evaluate_every)
        if self.init is not None and self.model:
            raise ConfigError("leave out [model] where init is given: the shape is that of the model it names.")
        self.model_config(_MANY)  # a wrong key in [model] is an error now, not after the data was read

    def model_config(self, n_words: int) -> BiLMConfig:
        """[model], with the number of words that the data's vocabulary has."""
        model = dict(self.model)
        for key in ("softmax_words", "n_words"):
            if key in model:
                raise ConfigError(f"model: leave out {key}: it is the number of words in the data's vocabulary.")
        if model.get("input") == "words":
            model["n_words"] = n_words
        return build_config(BiLMConfig, {**model, "softmax_words": n_words}, where="model")


def first_difference(before: PretrainConfig, now: PretrainConfig) -> str | None:
    """Say which setting differs, if one does that a resumed run may not change."""
    old, new = _flat(before), _flat(now)
    return next((f"{name} was {old[name]!r}, now it is {new[name]!r}" for name in new if old[name] != new[name]), None)


def _flat(config: PretrainConfig) -> dict[str, Any]:
    """Every setting that matters to resuming, by its name on the command line; [model] with its defaults."""
    plain = config_to_dict(config)
    flat = {item.name: plain[item.name] for item in fields(config)}
    for table, values in (("model", config_to_dict(config.model_config(_MANY))), ("optim", flat["optim"])):
        del flat[table]
        flat |= {f"{table}.{name}": value for name, value in values.items()}
    return {name: value for name, value in flat.items() if name not in MAY_CHANGE}
