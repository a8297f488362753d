"""The tasks by name. Their modules are imported when one is asked for."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from torch import Tensor, nn

from torchelmo.config import suggest
from torchelmo.errors import ConfigError
from torchelmo.tasks.inputs import TokenInput

Tokens: TypeAlias = Sequence[str]
Scores: TypeAlias = dict[str, float]  # by name; shares are percentages, 0 to 100
Vocabularies: TypeAlias = Mapping[str, list[str]]
Example = TypeVar("Example")
Prediction = TypeVar("Prediction")


class Source(NamedTuple):
    """What `predict` was asked to read."""

    path: str  # "-" is standard input
    lang: str | None = "en"  # of raw text; without one a line is a sentence, with spaces between its tokens
    questions: Sequence[str] = ()  # for tasks that answer some


class TaskModel(nn.Module, ABC, Generic[Example, Prediction]):
    """A module that knows its task's examples; batches come as lists of them."""

    inputs: TokenInput

    @abstractmethod
    def loss(self, examples: Sequence[Example]) -> Tensor:
        """The mean loss of one batch, a scalar."""

    @abstractmethod
    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """One prediction per example. Called in evaluation mode and without gradients."""


class Task(ABC, Generic[Example, Prediction]):
    """One per task, without state: what the runner, the command line and `torchelmo.tasks.load` call."""

    name: ClassVar[str]
    metric: ClassVar[str]  # the score that decides which epoch is best: higher is better
    data_config: ClassVar[type[Any]]  # frozen dataclass: [data] of a configuration
    model_config: ClassVar[type[Any]]  # frozen dataclass: [model]
    answers_questions: ClassVar[bool] = False  # those of a `Source`
    # Settings of a run that is started without a configuration file.
    defaults: ClassVar[Mapping[str, Any]] = {"words": {"dim": 100}, "characters": {"n_filters": 64}}

    @abstractmethod
    def read(self, path: Path, options: Any) -> list[Example]:
        """Labelled examples; `options` is a `data_config`. Errors name the file and the line."""

    def training(self, examples: list[Example], options: Any) -> list[Example]:
        """What is trained on, where that is more or less than what is scored (phrases, shorter documents)."""
        return examples

    @abstractmethod
    def sentences(self, example: Example) -> Sequence[Tokens]:
        """All sentences that the model will look at: each goes through the biLM by itself."""

    @abstractmethod
    def vocabularies(self, examples: Sequence[Example], options: Any) -> dict[str, list[str]]:
        """The named lists (labels, genres, …) that the model is built from: of the training examples and `options`."""

    @abstractmethod
    def build(self, config: Any, inputs: TokenInput, vocabularies: Vocabularies) -> TaskModel[Example, Prediction]:
        """A new model; `config` is a `model_config`."""

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Scores:
        """As the task's official script counts; holds `metric`."""

    def report(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> str:
        """A table for people beside the scores (by label, by role, …), or nothing."""
        return ""

    @abstractmethod
    def read_input(self, source: Source, options: Any, vocabularies: Vocabularies) -> Iterator[Example]:
        """Examples without labels, for `predict`; `options` are those of the data that was trained on."""

    @abstractmethod
    def show(self, example: Example, prediction: Prediction) -> str:
        """A prediction as a person reads it."""

    @abstractmethod
    def record(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """A prediction as one JSON object."""


TASKS = {
    "ner": "Ner",
    "pos": "Pos",
    "srl": "Srl",
    "sentiment": "Sentiment",
    "nli": "Nli",
    "qa": "Qa",
    "coref": "Coref",
}


def find_task(name: str) -> Task[Any, Any]:
    if name not in TASKS:
        raise ConfigError(f"There is no task {name!r}.{suggest(name, TASKS)}")
    found: Task[Any, Any] = getattr(import_module(f"torchelmo.tasks.{name}"), TASKS[name])()
    return found
