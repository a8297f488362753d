"""The progress and the results of task runs, as they are stored and shown."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.config import Config, NonNegativeInt, build_config
from torchelmo.errors import ConfigError
from torchelmo.files import read_json, write_json
from torchelmo.runs.metrics import duration
from torchelmo.runs.resume import out_of_patience
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.task import Scores, find_task

_MAX_SCORES_IN_LINE = 5


@dataclass(frozen=True)
class MixResult:
    """The learned mix at one place."""

    place: str  # "input" or "output"
    weights: list[float]  # after the softmax, one per layer
    gamma: float


@dataclass(frozen=True)
class Progress(Config):
    """How far a run has come, as its checkpoints store it."""

    step: NonNegativeInt = 0
    epoch: NonNegativeInt = 0  # finished epochs
    batch: NonNegativeInt = 0  # finished batches of the current epoch
    loss: float = 0.0  # sum over these batches
    best: dict[str, float] | None = None  # scores of the best epoch
    best_epoch: NonNegativeInt = 0
    mixes: tuple[MixResult, ...] = ()  # of the best epoch
    rate: float = 1.0  # factor of the learning rate, after halving
    halved_epoch: NonNegativeInt = 0  # the last epoch after which the rate was halved
    seconds: float = 0.0
    bilm_seconds: float = 0.0
    parameters: NonNegativeInt = 0  # number of trained values

    def is_finished(self, config: TaskConfig) -> bool:
        """Whether the run has all its epochs, or none of the last `patience` epochs was better than the best."""
        return self.epoch >= config.epochs or out_of_patience(self.epoch - self.best_epoch, config.patience)


@dataclass(frozen=True)
class Result:
    """The result of a task run."""

    task: str
    metric: str  # the score that decided which epoch is the best
    seed: int
    scores: dict[str, float]  # on the dev data, of the best epoch
    best_epoch: int  # counted from 1
    epochs: int  # finished so far
    steps: int
    seconds: float  # of training and scoring, without the biLM
    bilm_seconds: float  # of running the frozen biLM once over all sentences
    parameters: int  # number of trained values
    mixes: list[MixResult]  # of the best epoch
    finished: bool  # whether the last epoch was reached, or patience ended the run

    @classmethod
    def of(cls, config: TaskConfig, progress: Progress) -> "Result":
        """Return the result of a run that has finished at least one epoch."""
        assert progress.best is not None
        return cls(
            task=config.task,
            metric=find_task(config.task).metric,
            seed=config.seed,
            scores=progress.best,
            best_epoch=progress.best_epoch,
            epochs=progress.epoch,
            steps=progress.step,
            seconds=progress.seconds,
            bilm_seconds=progress.bilm_seconds,
            parameters=progress.parameters,
            mixes=list(progress.mixes),
            finished=progress.is_finished(config),
        )

    @property
    def score(self) -> float:
        """The dev score that decided which epoch is the best."""
        return self.scores[self.metric]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    def line(self) -> str:
        """Return the result as one line of text, with at most five scores."""
        names = [self.metric, *(name for name in self.scores if name != self.metric)][:_MAX_SCORES_IN_LINE]
        scores = ", ".join(f"{name} {self.scores[name]:.2f}" for name in names)
        epochs = f"best epoch {self.best_epoch} of {self.epochs}"
        return f"{self.task}, seed {self.seed}: {scores} ({epochs}, {duration(self.seconds + self.bilm_seconds)})"


class Outcome(NamedTuple):
    """What `train` returns."""

    result: Result | None  # of the best epoch so far; None before the end of the first epoch
    stopped: bool  # whether `stop` ended the run before its last epoch
    saved: bool  # whether there is a checkpoint to resume from


class Summary(NamedTuple):
    """The results of several seeds of one configuration."""

    results: list[Result]
    mean: Scores
    sd: Scores  # sample standard deviation; 0 for one seed

    def line(self) -> str:
        """Return the mean and the standard deviation of the metric as one line of text."""
        metric, n = self.results[0].metric, len(self.results)
        return f"{metric} {self.mean[metric]:.2f} ± {self.sd[metric]:.2f} over {n} seed{'' if n == 1 else 's'}"


class SeedsOutcome(NamedTuple):
    """What `train_seeds` returns."""

    summary: Summary | None  # None if it was stopped
    stopped: bool
    saved: bool  # whether one of the runs has a checkpoint to resume from


def summarize(results: Sequence[Result]) -> Summary:
    """Return the mean and the standard deviation of every score."""
    mean, sd = {}, {}
    for name in results[0].scores:
        values = [result.scores[name] for result in results]
        mean[name] = statistics.fmean(values)
        sd[name] = statistics.stdev(values) if len(values) > 1 else 0.0
    return Summary(list(results), mean, sd)


def write_result(folder: Path, result: Result) -> None:
    """Write metrics.json."""
    write_json(folder / "metrics.json", result.to_dict())


def read_result(folder: Path) -> Result:
    """Read metrics.json.

    Raises:
        ConfigError: The file is damaged, or is not the result of one run.
    """
    path = folder / "metrics.json"
    result = build_config(Result, read_json(path, "the result of a task run"), where=str(path))
    for name in (result.metric, *result.scores):
        if not isinstance(result.scores.get(name), (int, float)):
            raise ConfigError(f"{path}: scores: expected a number for {name!r:.60}.")
    return result


def write_summary(folder: Path, summary: Summary) -> None:
    """Write metrics.json of several seeds."""
    seeds = {str(result.seed): result.scores for result in summary.results}
    write_json(folder / "metrics.json", {"mean": summary.mean, "sd": summary.sd, "seeds": seeds})
