"""Named entities: a biLSTM-CRF tagger, scored by the F1 of conlleval."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.ner import data, score
from torchelmo.tasks.ner.data import NerData
from torchelmo.tasks.ner.model import NerConfig, NerModel
from torchelmo.tasks.spans import spans_of
from torchelmo.tasks.tagging import Tagged, TaggingTask, Tags, gold_tags
from torchelmo.tasks.task import Scores, Vocabularies


class Ner(TaggingTask):
    name = "ner"
    metric = "f1"
    data_config = NerData
    model_config = NerConfig

    def read(self, path: Path, options: NerData) -> list[Tagged]:
        return data.read(path, options)

    def vocabularies(self, examples: Sequence[Tagged], options: NerData) -> dict[str, list[str]]:
        return {"types": sorted({span.label for example in examples for span in spans_of(gold_tags(example))})}

    def build(self, config: NerConfig, inputs: TokenInput, vocabularies: Vocabularies) -> NerModel:
        return NerModel(config, inputs, vocabularies["types"])

    def score(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
        return score.score(examples, predictions)

    def report(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
        return score.report(examples, predictions)

    def show(self, example: Tagged, prediction: Tags) -> str:
        """The sentence with its entities in brackets: [New York]LOC."""
        words = list(example.tokens)
        for label, start, end in spans_of(prediction):
            words[start] = f"[{words[start]}"
            words[end - 1] = f"{words[end - 1]}]{label}"
        return " ".join(words)

    def record(self, example: Tagged, prediction: Tags) -> dict[str, Any]:
        spans = [
            {**span._asdict(), "text": " ".join(example.tokens[span.start : span.end])} for span in spans_of(prediction)
        ]
        return {"tokens": example.tokens, "tags": prediction, "spans": spans}
