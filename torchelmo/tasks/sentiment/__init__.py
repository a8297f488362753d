"""Sentiment of sentences: the Stanford Sentiment Treebank with five classes or two."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchelmo.tasks.classification import ClassificationTask, Prediction
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.sentiment.data import CLASSES, SentimentData, SentimentExample, read_sentiment, with_phrases
from torchelmo.tasks.sentiment.model import BCN, BCNConfig
from torchelmo.tasks.task import Source, Tokens, Vocabularies
from torchelmo.text.reading import read_paragraphs


class Sentiment(ClassificationTask[SentimentExample]):
    name = "sentiment"
    data_config = SentimentData
    model_config = BCNConfig

    def read(self, path: Path, options: SentimentData) -> list[SentimentExample]:
        return read_sentiment(path, options)

    def training(self, examples: list[SentimentExample], options: SentimentData) -> list[SentimentExample]:
        return with_phrases(examples, options)

    def sentences(self, example: SentimentExample) -> Sequence[Tokens]:
        return [example.tokens]

    def vocabularies(self, examples: Sequence[SentimentExample], options: SentimentData) -> dict[str, list[str]]:
        return {"labels": CLASSES[options.classes]}

    def build(self, config: BCNConfig, inputs: TokenInput, vocabularies: Vocabularies) -> BCN:
        return BCN(config, inputs, labels=vocabularies["labels"])

    def read_input(
        self, source: Source, options: SentimentData, vocabularies: Vocabularies
    ) -> Iterator[SentimentExample]:
        """A line is an example, of however many sentences; blank lines are skipped."""
        for sentences in read_paragraphs(source.path, source.lang):
            if tokens := tuple(token for sentence in sentences for token in sentence):
                yield SentimentExample(tokens, None)

    def show(self, example: SentimentExample, prediction: Prediction) -> str:
        return f"{prediction.label} {prediction.probabilities[prediction.label]:.2f}  {' '.join(example.tokens)}"

    def record(self, example: SentimentExample, prediction: Prediction) -> dict[str, Any]:
        return {"tokens": list(example.tokens), **prediction._asdict()}
