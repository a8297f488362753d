"""Coreference: end-to-end span ranking, scored by the average F1 of MUC, B³ and CEAFφ4."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torchelmo.tasks.coref import conll, score, show
from torchelmo.tasks.coref.data import CorefData, Document, Mention
from torchelmo.tasks.coref.model import CorefConfig, CorefModel
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.task import Scores, Source, Task, Tokens, Vocabularies
from torchelmo.text.reading import read_paragraphs


class Coref(Task[Document, list[list[Mention]]]):
    name = "coref"
    metric = "average"
    data_config = CorefData
    model_config = CorefConfig
    defaults: ClassVar[Mapping[str, Any]] = {**Task.defaults, "batch_size": 1}  # a document is a batch of spans

    def read(self, path: Path, options: CorefData) -> list[Document]:
        score.require_scipy()
        return conll.read_documents(path)

    def sentences(self, example: Document) -> Sequence[Tokens]:
        return example.sentences

    def vocabularies(self, examples: Sequence[Document], options: CorefData) -> dict[str, list[str]]:
        return {"genres": sorted({document.genre for document in examples} - {""})}

    def build(self, config: CorefConfig, inputs: TokenInput, vocabularies: Vocabularies) -> CorefModel:
        return CorefModel(config, inputs, vocabularies["genres"])

    def score(self, examples: Sequence[Document], predictions: Sequence[list[list[Mention]]]) -> Scores:
        return score.score_documents(examples, predictions)

    def report(self, examples: Sequence[Document], predictions: Sequence[list[list[Mention]]]) -> str:
        return score.report(score.score_documents(examples, predictions))

    def read_input(self, source: Source, options: CorefData, vocabularies: Vocabularies) -> Iterator[Document]:
        """A blank line ends a document: coreference goes across lines, and a paragraph is too little of a text."""
        sentences: list[list[str]] = []
        number = 0
        for paragraph in read_paragraphs(source.path, source.lang):
            sentences += paragraph
            if sentences and not paragraph:
                yield Document(source.path, str(number), sentences, [], "", None)
                sentences, number = [], number + 1
        if sentences:
            yield Document(source.path, str(number), sentences, [], "", None)

    def show(self, example: Document, prediction: list[list[Mention]]) -> str:
        return show.bracketed(example, prediction)

    def record(self, example: Document, prediction: list[list[Mention]]) -> dict[str, Any]:
        return show.record(example, prediction)
