"""Parts of speech: a biLSTM tagger, or the linear probe of one layer of the biLM."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.pos import data, score
from torchelmo.tasks.pos.data import PosData
from torchelmo.tasks.pos.model import PosConfig, PosModel
from torchelmo.tasks.tagging import Tagged, TaggingTask, Tags, gold_tags
from torchelmo.tasks.task import Scores, Vocabularies

_LINE_WIDTH = 100


class Pos(TaggingTask):
    name = "pos"
    metric = "accuracy"
    data_config = PosData
    model_config = PosConfig

    def read(self, path: Path, options: PosData) -> list[Tagged]:
        return data.read(path, options)

    def vocabularies(self, examples: Sequence[Tagged], options: PosData) -> dict[str, list[str]]:
        return {"tags": sorted({tag for example in examples for tag in gold_tags(example)})}

    def build(self, config: PosConfig, inputs: TokenInput, vocabularies: Vocabularies) -> PosModel:
        return PosModel(config, inputs, vocabularies["tags"])

    def score(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
        return score.score(examples, predictions)

    def report(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
        return score.report(examples, predictions)

    def show(self, example: Tagged, prediction: Tags) -> str:
        """Every word above its tag, in lines of about a screen's width."""
        lines: list[tuple[str, str]] = [("", "")]
        for word, tag in zip(example.tokens, prediction):
            width = max(_width(word), len(tag)) + 2
            if len(lines[-1][1]) + width > _LINE_WIDTH and lines[-1][1]:
                lines.append(("", ""))
            words, tags = lines[-1]
            lines[-1] = (words + word + " " * (width - _width(word)), tags + tag.ljust(width))
        return "\n\n".join(f"{words.rstrip()}\n{tags.rstrip()}" for words, tags in lines)

    def record(self, example: Tagged, prediction: Tags) -> dict[str, Any]:
        return {"tokens": example.tokens, "tags": prediction}


def _width(word: str) -> int:
    """The columns of a terminal that a word takes: Chinese and Japanese signs take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in word)
    return len(word) + wide - sum(bool(unicodedata.combining(sign)) for sign in word)
