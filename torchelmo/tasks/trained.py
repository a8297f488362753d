"""A task model at work: it scores labelled files and predicts for new text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchelmo.config import build_config
from torchelmo.errors import InputError
from torchelmo.tasks.batches import scoring_batches
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.task import Scores, Source, Task, TaskModel
from torchelmo.text.batching import windows

_WINDOW = 256  # unlabelled examples that are sorted by length together


class Scored(NamedTuple):
    scores: Scores
    report: str  # a table for people, or nothing
    n_examples: int


class TrainedTask:
    """A task model with all it needs to score and predict."""

    def __init__(
        self,
        task: Task[Any, Any],
        config: TaskConfig,
        model: TaskModel[Any, Any],
        vocabularies: Mapping[str, list[str]],
    ) -> None:
        self.task, self.config, self.model, self.vocabularies = task, config, model, vocabularies
        self.data_options = build_config(task.data_config, config.data, where="data")

    def evaluate(self, path: str | Path) -> Scored:
        """Score the predictions for a labelled file."""
        examples = require_examples(self.task.read(Path(path), self.data_options), path, self.task)
        predictions = self.predict(examples)
        return Scored(self.task.score(examples, predictions), self.task.report(examples, predictions), len(examples))

    def predict(self, examples: Sequence[Any]) -> list[Any]:
        """One prediction per example, in order."""
        lengths = [example_length(self.task, example) for example in examples]
        found: dict[int, Any] = {}
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            for batch in scoring_batches(lengths, self.config.batch_size):
                found.update(zip(batch, self.model.predict([examples[i] for i in batch]), strict=True))
        self.model.train(was_training)
        return [found[i] for i in range(len(examples))]

    def predict_source(self, source: Source) -> Iterator[tuple[Any, Any]]:
        """(example, prediction) for everything in an unlabelled input, of any length, in order."""
        for examples in windows(self.task.read_input(source, self.data_options, self.vocabularies), _WINDOW):
            yield from zip(examples, self.predict(examples))


def require_examples(examples: list[Any], path: str | Path, task: Task[Any, Any]) -> list[Any]:
    """`examples`, if the file had any."""
    if not examples:
        raise InputError(f"{path}: expected labelled examples for {task.name}, found none. Check that file.")
    return examples


def example_length(task: Task[Any, Any], example: Any) -> int:
    return max(map(len, task.sentences(example)), default=0)


def all_sentences(task: Task[Any, Any], examples: Iterable[Any]) -> Iterator[Sequence[str]]:
    for example in examples:
        yield from task.sentences(example)
