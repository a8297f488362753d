"""What a task is (its data, its model, its score), the tasks by name, and the progress and results of their runs.

A task is one class that derives from `Task`, and one model class that derives from `TaskModel`. The runner and
`TrainedTask` use nothing else of it. The functions at the end count the correct items (entities, arguments, words) by
label, for precision, recall and F1.
"""

import statistics
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from torch import Tensor, nn

from torchelmo.config import Config, NonNegativeInt, build_config, suggest
from torchelmo.errors import ConfigError, InputError
from torchelmo.files import read_json, write_json
from torchelmo.runs.metrics import duration
from torchelmo.runs.resume import out_of_patience
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.inputs import TokenInput

Tokens: TypeAlias = Sequence[str]
Scores: TypeAlias = dict[str, float]  # by name, in percent
Item: TypeAlias = tuple[Any, ...]  # its label first; it is correct if every field matches
Vocabularies: TypeAlias = Mapping[str, list[str]]
Example = TypeVar("Example")
Prediction = TypeVar("Prediction")

TASKS = {
    "ner": "Ner",
    "pos": "Pos",
    "srl": "Srl",
    "sentiment": "Sentiment",
    "nli": "Nli",
    "qa": "Qa",
    "coref": "Coref",
}  # the name of each class by the name of its module
_MAX_SCORES_IN_LINE = 5


def find_task(name: str) -> "Task[Any, Any]":
    """Return the task with this name. Its module is imported now, not with the package.

    Raises:
        ConfigError: There is no such task.
    """
    if not isinstance(name, str) or name not in TASKS:
        raise ConfigError(f"There is no task {name!r:.60}.{suggest(str(name), TASKS)}")
    task: Task[Any, Any] = getattr(import_module(f"torchelmo.tasks.{name}"), TASKS[name])()
    return task


class Source(NamedTuple):
    """The input of a prediction: a file, or texts in memory.

    Attributes:
        path: The file; "-" is standard input.
        lang: The language of raw text, a code that spaCy knows. None: the text is already tokenized, one sentence per
            line, with spaces between the tokens. "auto": as set in `[data]` of the trained task.
        questions: For tasks that answer questions about a text.
        predicates: For "srl": the words, in any case, whose arguments to label. Empty: those known from training.
        texts: Strings or token lists to use instead of the file.
    """

    path: str = "-"
    lang: str | None = "auto"
    questions: Sequence[str] = ()
    predicates: Sequence[str] = ()
    texts: Sequence[Any] | None = None


class TaskModel(nn.Module, ABC, Generic[Example, Prediction]):
    """The model of a task. A batch is a list of the task's examples."""

    inputs: TokenInput

    @abstractmethod
    def loss(self, examples: Sequence[Example]) -> Tensor:
        """Return the mean loss of a batch, a scalar."""

    @abstractmethod
    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Return one prediction per example. Called in evaluation mode and without gradients."""


class Task(ABC, Generic[Example, Prediction]):
    """The definition of a task. It has no state."""

    name: ClassVar[str]
    metric: ClassVar[str]  # the score that decides which epoch is the best; higher is better
    data_config: ClassVar[type[Any]]  # frozen dataclass: [data] of a configuration
    model_config: ClassVar[type[Any]]  # frozen dataclass: [model]
    answers_questions: ClassVar[bool] = False  # whether it uses the questions of a `Source`
    labels_predicates: ClassVar[bool] = False  # whether it uses the predicates of a `Source`
    # Settings of a run that is started without a configuration file.
    defaults: ClassVar[Mapping[str, Any]] = {"words": {"dim": 100}, "characters": {"n_filters": 64}}

    @abstractmethod
    def read(self, path: Path, options: Any) -> list[Example]:
        """Return the labeled examples of a file. `options` is a `data_config`. Errors name the file and the line."""

    def training(self, examples: list[Example], options: Any) -> list[Example]:
        """Return the examples to train on, if they are not those of the file: phrases, shorter documents."""
        return examples

    @abstractmethod
    def sentences(self, example: Example) -> Sequence[Tokens]:
        """Return all sentences of an example. The biLM runs on each sentence separately."""

    @abstractmethod
    def vocabularies(self, examples: Sequence[Example], options: Any) -> dict[str, list[str]]:
        """Return the named lists (labels, genres) of the training examples that the model is built from."""

    @abstractmethod
    def build(self, config: Any, inputs: TokenInput, vocabularies: Vocabularies) -> TaskModel[Example, Prediction]:
        """Return a new model. `config` is a `model_config`."""

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Scores:
        """Return the scores as the task's official script computes them, `metric` among them."""

    def count_labels(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> "dict[str, Counts]":
        """Return the gold, predicted and correct items of every label; empty for a task without labels."""
        return {}

    def report(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> str:
        """Return a readable table with more detail than the scores (by label, by role), or an empty string."""
        return ""

    @abstractmethod
    def read_input(self, source: Source, options: Any, vocabularies: Vocabularies) -> Iterator[Example]:
        """Yield the examples of an unlabeled input. `options` is the `data_config` of the training data."""

    @abstractmethod
    def show(self, example: Example, prediction: Prediction) -> str:
        """Return a prediction as text for a terminal."""

    @abstractmethod
    def record(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """Return a prediction as plain data for JSON."""

    def conll(self, predicted: Iterable[tuple[Example, Prediction]], options: Any) -> Iterator[str]:
        """Yield predictions in columns that `read` can read: the lines of one sentence, or of one document.

        Args:
            predicted: Examples and their predictions, as `TrainedTask.predict_source` yields them.
            options: The `data_config` of the training data.

        Raises:
            InputError: The task has no such format, or a token does not fit into a column.
        """
        raise InputError(f"{self.name}: expected a task with a CoNLL format: ner, pos, srl or coref. Use text or JSON.")


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
    check_scores(result, str(path))
    return result


def check_scores(result: Result, where: str) -> None:
    """Raise a ConfigError if a score is not a number or that of the metric is missing; `where` names the source."""
    for name in (result.metric, *result.scores):
        if not isinstance(result.scores.get(name), (int, float)):
            raise ConfigError(f"{where}: scores: expected a number for {name!r:.60}.")


def write_summary(folder: Path, summary: Summary) -> None:
    """Write metrics.json of several seeds."""
    seeds = {str(result.seed): result.scores for result in summary.results}
    write_json(folder / "metrics.json", {"mean": summary.mean, "sd": summary.sd, "seeds": seeds})


class Counts(NamedTuple):
    """The numbers of gold, predicted and correct items."""

    n_gold: int
    n_predicted: int
    n_correct: int

    def to_dict(self) -> dict[str, float]:
        """Return the scores and the counts as plain data for JSON."""
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1, **self._asdict()}

    @property
    def precision(self) -> float:
        """Correct items among the predicted ones, in percent."""
        return 100.0 * self.n_correct / self.n_predicted if self.n_predicted else 0.0

    @property
    def recall(self) -> float:
        """Correct items among the gold ones, in percent."""
        return 100.0 * self.n_correct / self.n_gold if self.n_gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, in percent."""
        return 200.0 * self.n_correct / (self.n_gold + self.n_predicted) if self.n_correct else 0.0


def count_items(pairs: Iterable[tuple[Set[Item], Set[Item]]]) -> dict[str, Counts]:
    """Count the (gold, predicted) items of all examples.

    Returns:
        The counts of every label, in alphabetical order.
    """
    n_gold: Counter[str] = Counter()
    n_predicted: Counter[str] = Counter()
    n_correct: Counter[str] = Counter()
    for gold, predicted in pairs:
        n_gold.update(label for label, *_ in gold)
        n_predicted.update(label for label, *_ in predicted)
        n_correct.update(label for label, *_ in gold & predicted)
    labels = sorted(n_gold | n_predicted)
    return {label: Counts(n_gold[label], n_predicted[label], n_correct[label]) for label in labels}


def sum_counts(counts: Mapping[str, Counts]) -> Counts:
    """Add up the counts of all labels."""
    return Counts(*(sum(row[i] for row in counts.values()) for i in range(3)))


def percentage(correct: Sequence[bool]) -> float:
    """Return the percentage of true values, 0 for an empty list."""
    return 100.0 * sum(correct) / len(correct) if correct else 0.0


def format_table(heading: str, counts: Mapping[str, Counts]) -> str:
    """Return a text table with one line for every label and one for all of them."""
    width = max(len(heading), *map(len, counts)) if counts else len(heading)
    lines = [f"{heading:<{width}}  precision  recall      F1    gold   found"]
    for label, row in [*counts.items(), ("all", sum_counts(counts))]:
        scores = f"{row.precision:9.2f}  {row.recall:6.2f}  {row.f1:6.2f}"
        lines.append(f"{label:<{width}}  {scores}  {row.n_gold:6d}  {row.n_predicted:6d}")
    return "\n".join(lines)
