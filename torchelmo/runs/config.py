"""Settings that all runs share: the optimizer, intervals, and which settings differ between two runs."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from torchelmo.config import (
    Config,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    Range,
)
from torchelmo.errors import ConfigError

OptimizerName = Literal["adagrad", "adam", "adamw", "adadelta", "muon"]
TaskOptimizerName = Literal["adagrad", "adam", "adamw", "adadelta"]
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class BaseOptimConfig(Config):
    """The optimizer and the learning-rate schedule: what pre-training and tasks share."""

    name: OptimizerName = "adagrad"
    lr: PositiveFloat | None = None  # the highest rate of the run; default: see DEFAULT_RATES
    betas: tuple[Fraction, Fraction] = (0.9, 0.99)  # adam and adamw
    eps: NonNegativeFloat = 1e-8  # adam, adamw and adadelta
    rho: Fraction = 0.95  # adadelta
    weight_decay: NonNegativeFloat = 0.0
    initial_accumulator: NonNegativeFloat = 1.0  # adagrad
    warmup: NonNegativeFloat = 0.0  # below 1: a share of the run; otherwise a number of steps
    decay: Literal["none", "linear", "cosine"] = "none"  # from lr to final · lr, after the warm-up
    hold: Fraction = 0.0  # the share of the run before the decay starts; up to there, a run can still be made longer
    final: Annotated[float, Range(min=0, max=1)] = 0.0  # the last rate, as a share of lr

    DEFAULT_RATES: ClassVar[Mapping[str, float]] = {}

    @property
    def peak(self) -> float:
        """The highest learning rate of the run."""
        return self.DEFAULT_RATES[self.name] if self.lr is None else self.lr


@dataclass(frozen=True)
class OptimConfig(BaseOptimConfig):
    """[optim] of pre-training and fine-tuning: optimizer and learning-rate schedule."""

    name: OptimizerName = "adagrad"  # muon trains the LSTM matrices; all other parameters as adamw does
    muon_momentum: Fraction = 0.95  # muon: the decay rate of the momentum of the LSTM matrices
    muon_scale: NonNegativeFloat = 0.2  # muon: the size of their updates; at 0.2 about as large as those of adamw

    DEFAULT_RATES: ClassVar[Mapping[str, float]] = {
        "adagrad": 0.2,
        "adam": 4e-3,
        "adamw": 4e-3,
        "adadelta": 1.0,
        "muon": 8e-3,
    }


@dataclass(frozen=True)
class TaskOptimConfig(BaseOptimConfig):
    """[optim] of a task: other defaults than in pre-training, and halving."""

    name: TaskOptimizerName = "adam"
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    halve_after: NonNegativeInt = 0  # halve the rate after this many epochs without a new best; 0: never

    DEFAULT_RATES: ClassVar[Mapping[str, float]] = {"adagrad": 0.2, "adam": 1e-3, "adamw": 1e-3, "adadelta": 1.0}


class Every(NamedTuple):
    """An interval in steps or in seconds; 0 means never.

    >>> Every.parse("checkpoint_every", "15m")
    Every(steps=0, seconds=900.0)
    """

    steps: int
    seconds: float

    @classmethod
    def parse(cls, name: str, value: int | str) -> "Every":
        """Read the setting `name`: a number of steps, or a time such as "15m"."""
        if isinstance(value, int):
            if value < 0:
                raise ConfigError(f"{name} must not be negative, got {value}.")
            return cls(value, 0.0)
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh])", value)
        if not match:
            raise ConfigError(
                f'{name}: expected a number of steps, or a time such as "90s", "15m" or "2h"; got {value!r:.60}.'
            )
        return cls(0, float(match[1]) * _SECONDS[match[2]])

    def __bool__(self) -> bool:
        return bool(self.steps or self.seconds)

    def due(self, step: int, seconds: float, last: float) -> bool:
        """Return whether it is time after `step`, at `seconds` of the run; `last`: the seconds at the last time."""
        if self.steps:
            return step % self.steps == 0
        return self.seconds > 0 and seconds - last >= self.seconds


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings by their names on the command line.

    >>> flatten({"seed": 1, "optim": {"lr": 0.1}})
    {'seed': 1, 'optim.lr': 0.1}
    """
    return dict(_leaves(settings, ""))


def changed_setting(before: Mapping[str, Any], now: Mapping[str, Any], changeable: Collection[str]) -> str | None:
    """Describe the first setting that differs, except for those that a resumed run may change.

    Args:
        before: The settings of the run, flat.
        now: The settings of the call that resumes it, flat.
        changeable: Names of settings that may differ.

    Returns:
        A clause such as "seed was 1 and is now 2", or None if nothing differs.
    """
    for name in sorted((before.keys() | now.keys()) - set(changeable)):
        if before.get(name) != now.get(name):
            return f"{name} was {before.get(name)!r:.80} and is now {now.get(name)!r:.80}"
    return None


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
