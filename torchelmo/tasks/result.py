"""What a run of a task gives: metrics.json, and its reading."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.errors import InputError
from torchelmo.files import read_json, write_json
from torchelmo.tasks.task import Scores


class MixResult(NamedTuple):
    place: str  # "input" or "output"
    weights: list[float]  # softmaxed, one per layer
    gamma: float


class Result(NamedTuple):
    task: str
    metric: str  # the score that decided
    seed: int
    scores: Scores  # on dev, of the best epoch
    best_epoch: int  # from 1
    epochs: int  # that were run
    steps: int
    seconds: float  # of training and scoring, without the biLM
    bilm_seconds: float  # of running the biLM once over all sentences
    parameters: int  # that were trained
    mixes: list[MixResult]  # of the best epoch
    finished: bool  # no epoch is left, or none is wanted any more

    @property
    def score(self) -> float:
        return self.scores[self.metric]

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**self._asdict(), "mixes": [mix._asdict() for mix in self.mixes]}

    def line(self) -> str:
        """One line for people."""
        scores = ", ".join(f"{name} {value:.2f}" for name, value in self.scores.items())
        minutes = (self.seconds + self.bilm_seconds) / 60
        return f"{self.task}, seed {self.seed}: {scores} (epoch {self.best_epoch} of {self.epochs}, {minutes:.1f} min)"


def write_result(folder: Path, result: Result) -> None:
    write_json(folder / "metrics.json", result.plain())


def read_result(folder: Path) -> Result:
    path = folder / "metrics.json"
    plain = read_json(path, "the result of a task run")
    try:
        return Result(**{**plain, "mixes": [MixResult(**mix) for mix in plain["mixes"]]})
    except (TypeError, KeyError) as error:
        raise InputError(f"{path}: expected the result of one task run, found something else ({error}).") from error


class Summary(NamedTuple):
    """Several seeds of one configuration."""

    results: list[Result]
    mean: Scores
    sd: Scores  # of a sample; 0 for one seed

    def line(self) -> str:
        metric = self.results[0].metric
        return f"{metric} {self.mean[metric]:.2f} ± {self.sd[metric]:.2f} over {len(self.results)} seeds"


def summarise(results: Sequence[Result]) -> Summary:
    mean, sd = {}, {}
    for name in results[0].scores:
        values = [result.scores[name] for result in results]
        mean[name] = statistics.fmean(values)
        sd[name] = statistics.stdev(values) if len(values) > 1 else 0.0
    return Summary(list(results), mean, sd)


def write_summary(folder: Path, summary: Summary) -> None:
    seeds = {str(result.seed): result.scores for result in summary.results}
    write_json(folder / "metrics.json", {"mean": summary.mean, "sd": summary.sd, "seeds": seeds})
