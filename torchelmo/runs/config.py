"""Settings of optimizers."""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from torchelmo.errors import ConfigError

OptimName: TypeAlias = Literal["adagrad", "adam", "adamw", "adadelta"]
DEFAULT_RATES = {"adagrad": 0.2, "adam": 0.004, "adamw": 0.004, "adadelta": 1.0}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class OptimConfig:
    """[optim]: who moves the weights, and how fast over the run."""

    name: OptimName = "adagrad"
    lr: float | None = None  # the highest of the run; if left out, that of DEFAULT_RATES
    betas: tuple[float, float] = (0.9, 0.99)  # adam and adamw
    eps: float = 1e-8  # adam, adamw and adadelta
    rho: float = 0.95  # adadelta
    weight_decay: float = 0.0
    initial_accumulator: float = 1.0  # adagrad
    warmup: float = 0.0  # below 1 a share of the run, from 1 on a number of steps
    decay: Literal["none", "linear", "cosine"] = "none"  # after the warm-up, down to final · lr
    hold: float = 0.0  # the share of the run before the decay begins; a longer run can go on from there
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.lr is not None and self.lr <= 0:
            raise ConfigError(f"lr must be positive, got {self.lr}.")
        for name in ("warmup", "final", "weight_decay", "initial_accumulator", "eps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}.")
        if not 0 <= self.hold < 1:
            raise ConfigError(f"hold is a share of the run and must be at least 0 and below 1, got {self.hold}.")
        if self.final > 1:
            raise ConfigError(f"final is a share of lr and must be at most 1, got {self.final}.")
        if not 0 <= self.rho < 1:
            raise ConfigError(f"rho must be at least 0 and below 1, got {self.rho}.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas must be at least 0 and below 1, got {list(self.betas)}.")

    @property
    def peak(self) -> float:
        return DEFAULT_RATES[self.name] if self.lr is None else self.lr


class Every(NamedTuple):
    """How often something is done: by steps or by seconds; 0 is never.

    >>> Every.parse("checkpoint_every", "15m")
    Every(steps=0, seconds=900.0)
    """

    steps: int
    seconds: float

    @classmethod
    def parse(cls, name: str, value: int | str) -> "Every":
        if isinstance(value, int):
            if value < 0:
                raise ConfigError(f"{name} must not be negative, got {value}.")
            return cls(value, 0.0)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", value)
        if not found:
            raise ConfigError(
                f'{name}: expected a number of steps, or a time such as "90s", "15m" or "2h"; got {value!r}.'
            )
        return cls(0, float(found[1]) * _SECONDS[found[2]])

    def __bool__(self) -> bool:
        return bool(self.steps or self.seconds)

    def due(self, step: int, seconds: float, last: float) -> bool:
        """After `step`, at `seconds` of the run, when it was last done at `last` seconds."""
        if self.steps:
            return step % self.steps == 0
        return self.seconds > 0 and seconds - last >= self.seconds


TASK_RATES = {**DEFAULT_RATES, "adam": 1e-3, "adamw": 1e-3}  # where optim.lr is left out


@dataclass(frozen=True)
class TaskOptimConfig(OptimConfig):
    """[optim]: as in pre-training, with the defaults and the rates of task models."""

    name: OptimName = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    halve_after: int = 0  # halve the rate after so many epochs without a new best; 0 for never

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.halve_after < 0:
            raise ConfigError(f"halve_after must not be negative, got {self.halve_after}.")

    @property
    def peak(self) -> float:
        return TASK_RATES[self.name] if self.lr is None else self.lr
