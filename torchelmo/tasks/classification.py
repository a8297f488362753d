"""What tasks with one label for each example share: the prediction, the loss, accuracy, and a table by label."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

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
        """Precision, recall, F1 and counts of every label."""
        labels = list(dict.fromkeys(label for prediction in predictions for label in prediction.probabilities))
        labels += sorted({example.label or "" for example in examples}.difference(labels))
        width = max(map(len, ["label", *labels]))
        lines = [f"{'label':<{width}}  precision  recall     F1   gold  predicted"]
        for label in labels:
            gold = sum(example.label == label for example in examples)
            found = sum(prediction.label == label for prediction in predictions)
            correct = sum(e.label == label == p.label for e, p in zip(examples, predictions))
            precision, recall = _percent(correct, found), _percent(correct, gold)
            f1 = _percent(2 * correct, gold + found)
            lines.append(f"{label:<{width}}  {precision:9.2f}  {recall:6.2f}  {f1:5.2f}  {gold:5d}  {found:9d}")
        return "\n".join(lines)


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0
