"""What tasks with one label for each example share: the prediction, the loss, accuracy, and a table by label."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from torchelmo.tasks.scores import Counts, count, table
from torchelmo.tasks.task import Scores, Task, TaskModel


class Labelled(Protocol):
    """An example; its label is None where it is not known."""

    @property
    def label(self) -> str | None: ...


class Prediction(NamedTuple):
    label: str  # the likeliest
    probabilities: dict[str, float]  # of every label; they sum to 1


Example = TypeVar("Example", bound=Labelled)


class Classifier(TaskModel[Example, Prediction]):
    """A model is its `forward`; the cross entropy of its scores is the loss."""

    labels: Sequence[str]

    @abstractmethod
    def forward(self, examples: Sequence[Example]) -> Tensor:
        """(batch, n_labels): a score for every label, before the softmax."""

    def loss(self, examples: Sequence[Example]) -> Tensor:
        scores = self(examples)
        gold = [self.labels.index(example.label or "") for example in examples]
        return nn.functional.cross_entropy(scores, torch.tensor(gold, device=scores.device))

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        rows: list[list[float]] = torch.softmax(self(examples).double(), dim=-1).tolist()
        best = [max(range(len(row)), key=row.__getitem__) for row in rows]
        return [Prediction(self.labels[i], dict(zip(self.labels, row))) for i, row in zip(best, rows)]


class ClassificationTask(Task[Example, Prediction]):
    """Scored by accuracy."""

    metric: ClassVar[str] = "accuracy"

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Scores:
        n_correct = sum(example.label == prediction.label for example, prediction in zip(examples, predictions))
        return {"accuracy": 100.0 * n_correct / max(len(examples), 1)}

    def report(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> str:
        """Precision, recall, F1 and counts of every label, those that are nowhere among them."""
        counts = count(({(example.label or "",)}, {(found.label,)}) for example, found in zip(examples, predictions))
        known = dict.fromkeys(label for prediction in predictions for label in prediction.probabilities)
        return table("label", {**dict.fromkeys(known, Counts(0, 0, 0)), **counts})
