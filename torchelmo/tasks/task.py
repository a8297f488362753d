"""What a task is: its data, its model, its score. The tasks by name.

A task is one class that derives from `Task`, and one model class that derives from `TaskModel`. The runner and
`TrainedTask` use nothing else of it.
"""

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
Scores: TypeAlias = dict[str, float]  # by name, in percent
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
            line, with spaces between the tokens. "auto": as `[data]` of the trained task says.
        questions: For tasks that answer questions about a text.
        texts: Strings or token lists to use instead of the file.
    """

    path: str = "-"
    lang: str | None = "auto"
    questions: Sequence[str] = ()
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
