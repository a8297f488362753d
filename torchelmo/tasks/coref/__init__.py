"""Coreference resolution: end-to-end span ranking, scored by the average F1 of MUC, B³ and CEAFφ4."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from torchelmo.tasks.coref import metrics
from torchelmo.tasks.coref.data import CorefData, Document, Mention, document_lines, read_documents, sentence_bounds
from torchelmo.tasks.coref.model import CorefConfig, CorefModel
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.task import Scores, Source, Task, Tokens, Vocabularies
from torchelmo.text.places import Sentence, read_paragraphs


class Coref(Task[Document, list[list[Mention]]]):
    """Coreference resolution. A prediction is a list of clusters of mentions."""

    name = "coref"
    metric = "average"
    data_config = CorefData
    model_config = CorefConfig
    defaults: ClassVar[Mapping[str, Any]] = {**Task.defaults, "batch_size": 1}  # a document is a batch of spans

    def read(self, path: Path, options: CorefData) -> list[Document]:
        metrics.require_scipy()
        return read_documents(path)

    def sentences(self, example: Document) -> Sequence[Tokens]:
        return example.sentences

    def vocabularies(self, examples: Sequence[Document], options: CorefData) -> dict[str, list[str]]:
        return {"genres": sorted({document.genre for document in examples} - {""})}

    def build(self, config: CorefConfig, inputs: TokenInput, vocabularies: Vocabularies) -> CorefModel:
        return CorefModel(config, inputs, vocabularies["genres"])

    def score(self, examples: Sequence[Document], predictions: Sequence[list[list[Mention]]]) -> Scores:
        return metrics.score_documents(examples, predictions)

    def report(self, examples: Sequence[Document], predictions: Sequence[list[list[Mention]]]) -> str:
        return metrics.report(metrics.score_documents(examples, predictions))

    def read_input(self, source: Source, options: CorefData, vocabularies: Vocabularies) -> Iterator[Document]:
        """Yield one document for the lines up to a blank line, or for each text in memory."""
        for number, sentences in enumerate(_split_documents(source, options)):
            tokens, places = [part.tokens for part in sentences], [part.place for part in sentences]
            yield Document(source.path, str(number), tokens, [], "", None, places)

    def show(self, example: Document, prediction: list[list[Mention]]) -> str:
        """Return the text with numbered mentions, [1 Anna] saw [2 [1 her] brother], and a list of the clusters."""
        words = [word for sentence in example.sentences for word in sentence]
        starts: list[list[str]] = [[] for _ in words]
        n_ends = [0] * len(words)
        numbered = [(mention, number) for number, cluster in enumerate(prediction, 1) for mention in cluster]
        for mention, number in sorted(numbered, key=lambda item: (item[0].start, -item[0].end)):  # outer ones first
            starts[mention.start].append(f"[{number} ")
            n_ends[mention.end - 1] += 1
        marked = iter("".join(opened) + word + "]" * closed for word, opened, closed in zip(words, starts, n_ends))
        lines = [" ".join(next(marked) for _ in sentence) for sentence in example.sentences]
        clusters = [
            f"{number}: {' | '.join(_text(words, mention) for mention in cluster)}"
            for number, cluster in enumerate(prediction, 1)
        ]
        return "\n".join([*lines, "", *(clusters or ["No mentions refer to the same entity."]), ""])

    def record(self, example: Document, prediction: list[list[Mention]]) -> dict[str, Any]:
        """Return sentences and clusters. Tokens of mentions are counted from the start of the document."""
        clusters = [[_mention_record(example, mention) for mention in cluster] for cluster in prediction]
        record = {"document": example.name, "part": example.part, "sentences": example.sentences}
        return {**record, "clusters": clusters}

    def conll(self, predicted: Iterable[tuple[Document, list[list[Mention]]]], options: CorefData) -> Iterator[str]:
        """Yield the lines of one document in the columns of CoNLL-2012, from #begin to #end."""
        for document, clusters in predicted:
            yield "".join(f"{line}\n" for line in document_lines(document._replace(clusters=clusters)))


def _split_documents(source: Source, options: CorefData) -> Iterator[list[Sentence]]:
    in_memory = source.texts is not None
    sentences: list[Sentence] = []
    for paragraph in chain(read_paragraphs(source, options), [[]]):
        sentences += paragraph
        if sentences and (in_memory or not paragraph):
            yield sentences
            sentences = []


def _mention_record(document: Document, mention: Mention) -> dict[str, Any]:
    words = [word for sentence in document.sentences for word in sentence]
    record: dict[str, Any] = {"start": mention.start, "end": mention.end}
    for place, first in zip(document.places or (), sentence_bounds(document.sentences)):
        if place is not None and first <= mention.start < first + len(place.offsets):
            characters = place.offsets[mention.start - first][0], place.offsets[mention.end - 1 - first][1]
            record |= {} if place.line is None else {"line": place.line}
            record |= dict(zip(("start_char", "end_char"), characters))
    return record | {"text": _text(words, mention)}


def _text(words: Sequence[str], mention: Mention) -> str:
    return " ".join(words[mention.start : mention.end])
