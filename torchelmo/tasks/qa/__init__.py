"""Question answering: the span of a passage that answers a question (SQuAD 1.1)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.qa.data import Question, QuestionData, read_questions, read_squad, trainable
from torchelmo.tasks.qa.model import Found, QuestionAnswering, QuestionConfig
from torchelmo.tasks.qa.score import em_and_f1
from torchelmo.tasks.task import Scores, Source, Task, Tokens, Vocabularies


class Qa(Task[Question, Found]):
    name = "qa"
    metric = "f1"
    data_config = QuestionData
    model_config = QuestionConfig
    answers_questions = True

    def read(self, path: Path, options: QuestionData) -> list[Question]:
        return read_squad(path, options)

    def training(self, examples: list[Question], options: QuestionData) -> list[Question]:
        return trainable(examples, options)

    def sentences(self, example: Question) -> Sequence[Tokens]:
        return [example.tokens, *(sentence for window in example.passage.windows for sentence in window.sentences)]

    def vocabularies(self, examples: Sequence[Question], options: QuestionData) -> dict[str, list[str]]:
        return {}

    def build(self, config: QuestionConfig, inputs: TokenInput, vocabularies: Vocabularies) -> QuestionAnswering:
        return QuestionAnswering(config, inputs)

    def score(self, examples: Sequence[Question], predictions: Sequence[Found]) -> Scores:
        references = [[answer.text for answer in example.answers or []] for example in examples]
        return em_and_f1(references, [prediction.text for prediction in predictions])

    def read_input(self, source: Source, options: QuestionData, vocabularies: Vocabularies) -> Iterator[Question]:
        return iter(read_questions(source, options))

    def show(self, example: Question, prediction: Found) -> str:
        answer = " ".join(prediction.text.split())
        marked = example.passage.marked(prediction.start, prediction.end)
        return f"{example.text.strip()}\n  {answer}  ({prediction.score:.2f})\n  {marked}\n"

    def record(self, example: Question, prediction: Found) -> dict[str, Any]:
        return {
            "id": example.id,
            "question": example.text,
            "answer": prediction.text,
            "start": prediction.start,
            "score": prediction.score,
        }
