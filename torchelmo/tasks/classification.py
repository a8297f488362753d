"""Base of the tasks with one label for each example: prediction, loss, accuracy, and a table by label."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from torchelmo.errors import InputError
from torchelmo.tasks.task import Counts, Scores, Task, TaskModel, count_items, format_table, percentage


class HasLabel(Protocol):
    """An example; its label is None if it is to be predicted."""

    @property
    def label(self) -> str | None: ...


class Prediction(NamedTuple):
    """The predicted label of an example."""

    label: str  # the most probable one
    probabilities: dict[str, float]  # of every label; they sum to 1


Example = TypeVar("Example", bound=HasLabel)


class ClassificationTask(Task[Example, Prediction]):
    """A task with one label for each example, scored by accuracy."""

    metric: ClassVar[str] = "accuracy"

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Scores:
        correct = [example.label == prediction.label for example, prediction in zip(examples, predictions)]
        return {"accuracy": percentage(correct)}

    def count_labels(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, Counts]:
        """Return the counts of every label of the model and of the examples."""
        counts = count_items(
            ({(example.label or "",)}, {(found.label,)}) for example, found in zip(examples, predictions)
        )
        labels = dict.fromkeys(label for prediction in predictions for label in prediction.probabilities)
        return {**dict.fromkeys(labels, Counts(0, 0, 0)), **counts}

    def report(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> str:
        return format_table("label", self.count_labels(examples, predictions))


class Classifier(TaskModel[Example, Prediction]):
    """A model whose `forward` returns a score for every label. The loss is the cross-entropy of the scores."""

    labels: Sequence[str]

    @abstractmethod
    def forward(self, examples: Sequence[Example]) -> Tensor:
        """Return the scores of every label before the softmax: (batch, n_labels)."""

    def loss(self, examples: Sequence[Example]) -> Tensor:
        gold = [self._label_id(example.label) for example in examples]
        scores = self(examples)
        return nn.functional.cross_entropy(scores, torch.tensor(gold, device=scores.device))

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        rows: list[list[float]] = torch.softmax(self(examples).double(), dim=-1).tolist()
        best = [max(range(len(row)), key=row.__getitem__) for row in rows]
        return [Prediction(self.labels[i], dict(zip(self.labels, row))) for i, row in zip(best, rows)]

    def _label_id(self, label: str | None) -> int:
        if label not in self.labels:
            raise InputError(f"Expected one of the labels {', '.join(self.labels)}, found {label!r:.60}.")
        return self.labels.index(label)
