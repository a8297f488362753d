"""Question answering: find the span of a passage that answers a question (SQuAD 1.1)."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.qa.data import Question, QuestionData, filter_trainable, read_questions, read_squad
from torchelmo.tasks.qa.model import PredictedAnswer, QuestionAnswering, QuestionConfig
from torchelmo.tasks.task import Scores, Source, Task, Tokens, Vocabularies

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Qa(Task[Question, PredictedAnswer]):
    """Question answering."""

    name = "qa"
    metric = "f1"
    data_config = QuestionData
    model_config = QuestionConfig
    answers_questions = True

    def read(self, path: Path, options: QuestionData) -> list[Question]:
        return read_squad(path, options)

    def training(self, examples: list[Question], options: QuestionData) -> list[Question]:
        return filter_trainable(examples, options)

    def sentences(self, example: Question) -> Sequence[Tokens]:
        return [example.tokens, *(window.tokens for window in example.passage.windows)]

    def vocabularies(self, examples: Sequence[Question], options: QuestionData) -> dict[str, list[str]]:
        return {}

    def build(self, config: QuestionConfig, inputs: TokenInput, vocabularies: Vocabularies) -> QuestionAnswering:
        return QuestionAnswering(config, inputs)

    def score(self, examples: Sequence[Question], predictions: Sequence[PredictedAnswer]) -> Scores:
        """Return exact match and F1 over words, each for the best of the reference answers."""
        references = [[answer.text for answer in example.answers or []] for example in examples]
        return em_and_f1(references, [prediction.text for prediction in predictions])

    def read_input(self, source: Source, options: QuestionData, vocabularies: Vocabularies) -> Iterator[Question]:
        return iter(read_questions(source, options))

    def show(self, example: Question, prediction: PredictedAnswer) -> str:
        answer = " ".join(prediction.text.split())
        marked = example.passage.marked(prediction.start_char, prediction.end_char)
        return f"{example.text.strip()}\n  {answer}  ({prediction.score:.2f})\n  {marked}\n"

    def record(self, example: Question, prediction: PredictedAnswer) -> dict[str, Any]:
        return {
            "id": example.id,
            "question": example.text,
            "answer": prediction.text,
            "start": prediction.start,
            "end": prediction.end,
            "start_char": prediction.start_char,
            "end_char": prediction.end_char,
            "score": prediction.score,
        }


def em_and_f1(references: Iterable[Sequence[str]], answers: Iterable[str]) -> Scores:
    """Return exact match and F1 in percent. Every answer is compared with the best of its references."""
    pairs = list(zip(references, answers, strict=True))
    exact = sum(max(float(normalize(answer) == normalize(gold)) for gold in golds) for golds, answer in pairs)
    overlap = sum(max(f1(answer, gold) for gold in golds) for golds, answer in pairs)
    n_questions = max(len(pairs), 1)
    return {"em": 100 * exact / n_questions, "f1": 100 * overlap / n_questions}


def normalize(answer: str) -> str:
    """Return an answer in lower case, without ASCII punctuation, articles and repeated spaces.

    >>> normalize("The  Dog's a-bone, an owl")
    'dogs abone owl'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def f1(answer: str, reference: str) -> float:
    """Return the F1 of the words of an answer, 0 to 1. A repeated word counts as often as both have it.

    >>> f1("the big red dog", "a red dog")
    0.8
    """
    found, expected = normalize(answer).split(), normalize(reference).split()
    n_shared = (Counter(found) & Counter(expected)).total()
    if not n_shared:
        return 0.0
    precision, recall = n_shared / len(found), n_shared / len(expected)
    return 2 * precision * recall / (precision + recall)
