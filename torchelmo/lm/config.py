"""The settings of a pre-training run, as `torchelmo pretrain` reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from torchelmo.bilm.config import BiLMConfig
from torchelmo.config import (
    Config,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    build_config,
    config_to_dict,
)
from torchelmo.errors import ConfigError
from torchelmo.runs.config import Every, OptimConfig, flatten

# Settings that change what is logged and kept, or how long and how fast a run continues, but no step already taken.
CHANGEABLE_ON_RESUME = frozenset(
    "data out init init_accumulators steps epochs hours checkpoint_every keep log_every evaluate_every patience "
    "tensorboard threads device optim.lr optim.warmup optim.decay optim.hold optim.final".split()
)
_PLACEHOLDER_VOCAB_SIZE = 10**8  # to check [model] before the data, and with it the number of words, is known


@dataclass(frozen=True)
class PretrainConfig(Config):
    """The top level of the file. Exactly one of steps, epochs and hours gives the length of the run."""

    data: Path  # a folder that `torchelmo prepare` wrote
    out: Path  # becomes a model folder, with the checkpoints and metrics of the run inside
    init: Path | None = None  # a model folder to start from, instead of [model] and random weights
    init_accumulators: bool = False  # start Adagrad from its state in the TensorFlow checkpoint that `init` names
    trained: Literal["all", "softmax"] = "all"  # "softmax": all other weights stay as in `init`
    steps: PositiveInt | None = None
    epochs: PositiveFloat | None = None
    hours: PositiveFloat | None = None  # training time, summed over all parts of a resumed run
    checkpoint_every: int | str = "15m"  # steps, or a time such as "90s", "15m", "2h"
    keep: PositiveInt = 2  # how many checkpoints to keep; the best model is kept beside them
    seed: NonNegativeInt = 1
    batch_size: PositiveInt = 128  # rows of the stream, over all ranks
    unroll: PositiveInt = 20  # tokens per window: gradients end there, the LSTM state is carried on
    reset_state: bool = False  # rows whose window starts with a new sentence start from zero state, as in `embed`
    dropout: Fraction = 0.1
    objective: Literal["bilm", "masked"] = "bilm"  # predict the next word in each direction, or hidden words
    mask_share: Annotated[float, Range(above=0, max=1)] = 0.15  # of the words that are predicted in a masked sentence
    masks_per_window: PositiveInt = 2  # copies of every sentence; each hides other words
    loss: Literal["sampled", "full"] = "sampled"
    negatives: PositiveInt = 8192  # words per window that the sampled loss compares with the targets
    loss_scale: PositiveFloat = 1.0  # the published program trained on loss × unroll
    unigram_bias: bool = False  # start the softmax bias from the log frequency of each word
    clip: NonNegativeFloat = 10.0  # largest norm of the gradient; 0: no limit
    log_every: PositiveInt = 100
    evaluate_first: bool = False  # measure held-out perplexity before the first step, too
    evaluate_every: int | str = 0  # steps or a time; 0: only at the end
    evaluate_tokens: PositiveInt = 50_000  # of the held-out part, the same ones each time
    patience: NonNegativeInt = 0  # stop after this many evaluations without a new best; 0: never
    tensorboard: bool = True  # write events to out/tensorboard if the package is installed
    threads: NonNegativeInt = 0  # of each process; 0: PyTorch's default
    device: str = "auto"  # cpu, cuda, cuda:1, …
    precision: Literal["float32", "bfloat16"] = "float32"  # of matrix products; bfloat16: GPUs, AMX, AMD's AVX512_BF16
    model: dict[str, Any] = field(default_factory=dict)  # BiLMConfig, without the number of words
    optim: OptimConfig = field(default_factory=OptimConfig)

    # Keys of the file that --set of another key removes: `--set hours=8` overrides epochs.
    REPLACES: ClassVar[Mapping[str, Sequence[str]]] = {
        "steps": ("epochs", "hours"),
        "epochs": ("steps", "hours"),
        "hours": ("steps", "epochs"),
        "init": ("model",),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = [name for name in ("steps", "epochs", "hours") if getattr(self, name) is not None]
        if len(lengths) != 1:
            raise ConfigError(
                "expected exactly one of steps, epochs and hours, the length of the run; "
                f"got {' and '.join(lengths) or 'none'}."
            )
        if not Every.parse("checkpoint_every", self.checkpoint_every):
            raise ConfigError("checkpoint_every must be positive; a run without checkpoints cannot be resumed.")
        Every.parse("evaluate_every", self.evaluate_every)
        if self.init is not None and self.model:
            raise ConfigError("leave out [model] if init is given: the model that init names has its own shape.")
        if self.init_accumulators and (self.init is None or self.optim.name != "adagrad"):
            raise ConfigError(
                "init_accumulators needs init, a TensorFlow checkpoint of bilm-tf, and optim.name = 'adagrad'; "
                f"got init = {str(self.init)!r} and {self.optim.name!r}."
            )
        if self.mask_share * self.masks_per_window > 1:
            raise ConfigError(
                "mask_share × masks_per_window must be at most 1, because every copy of a sentence hides other words; "
                f"got {self.mask_share} × {self.masks_per_window}."
            )
        self.model_config(_PLACEHOLDER_VOCAB_SIZE)  # report a wrong key in [model] before the data is read

    def model_config(self, n_words: int) -> BiLMConfig:
        """Return [model] with the number of words in the vocabulary of the data."""
        model = dict(self.model)
        for key in ("softmax_words", "n_words"):
            if key in model:
                raise ConfigError(f"model: leave out {key}: it is the number of words in the vocabulary of the data.")
        if model.setdefault("objective", self.objective) != self.objective:
            raise ConfigError(f"model: leave out objective, and set it above [model]; it is {self.objective!r} there.")
        if model.get("input") == "words":
            model["n_words"] = n_words
        return build_config(BiLMConfig, {**model, "softmax_words": n_words}, where="model")

    def flat(self) -> dict[str, Any]:
        """Return every setting by its name on the command line, [model] with its defaults."""
        model = config_to_dict(self.model_config(_PLACEHOLDER_VOCAB_SIZE))
        return flatten({**config_to_dict(self), "model": model})
