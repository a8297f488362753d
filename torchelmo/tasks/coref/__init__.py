"""Coreference: end-to-end span ranking, scored by the average F1 of MUC, B³ and CEAFφ4."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torchelmo.tasks.coref import data as conll
from torchelmo.tasks.coref import metrics as score
from torchelmo.tasks.coref.data import CorefData, Document, Mention
from torchelmo.tasks.coref.model import CorefConfig, CorefModel
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.task import Scores, Source, Task, Tokens, Vocabularies
from torchelmo.text.reading import read_paragraphs


def bracketed(document: Document, clusters: Sequence[Sequence[Mention]]) -> str:
    """[1 Anna] saw [2 [1 her] brother] . and then every cluster in a line of its own."""
    words = [word for sentence in document.sentences for word in sentence]
    before: list[list[str]] = [[] for _ in words]
    after = [0] * len(words)
    numbered = [(mention, number) for number, cluster in enumerate(clusters, 1) for mention in cluster]
    for mention, number in sorted(numbered, key=lambda item: (item[0].start, -item[0].end)):  # the outer ones first
        before[mention.start].append(f"[{number} ")
        after[mention.end - 1] += 1
    marked = iter("".join(opened) + word + "]" * closed for word, opened, closed in zip(words, before, after))
    lines = [" ".join(next(marked) for _ in sentence) for sentence in document.sentences]
    lists = [f"{number}: {' | '.join(_text(words, m) for m in cluster)}" for number, cluster in enumerate(clusters, 1)]
    return "\n".join([*lines, "", *(lists or ["No mentions were found that refer to the same entity."])])


def record(document: Document, clusters: Sequence[Sequence[Mention]]) -> dict[str, Any]:
    """Mentions by the first token and the one after the last, counted from the beginning of the document."""
    words = [word for sentence in document.sentences for word in sentence]
    return {
        "document": document.name,
        "part": document.part,
        "sentences": document.sentences,
        "clusters": [
            [{"start": m.start, "end": m.end, "text": _text(words, m)} for m in cluster] for cluster in clusters
        ],
    }


def _text(words: Sequence[str], mention: Mention) -> str:
    return " ".join(words[mention.start : mention.end])


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
        return bracketed(example, prediction)

    def record(self, example: Document, prediction: list[list[Mention]]) -> dict[str, Any]:
        return record(example, prediction)
