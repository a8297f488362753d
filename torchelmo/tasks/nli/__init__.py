"""Natural language inference: does a premise entail a hypothesis, contradict it, or neither?"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchelmo.tasks.classification import ClassificationTask, Prediction
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.nli.data import LABELS, NliData, NliExample, read_nli, read_pairs
from torchelmo.tasks.nli.model import Esim, EsimConfig
from torchelmo.tasks.task import Source, Tokens, Vocabularies


class Nli(ClassificationTask[NliExample]):
    name = "nli"
    data_config = NliData
    model_config = EsimConfig

    def read(self, path: Path, options: NliData) -> list[NliExample]:
        return read_nli(path, options)

    def sentences(self, example: NliExample) -> Sequence[Tokens]:
        return [example.premise, example.hypothesis]

    def vocabularies(self, examples: Sequence[NliExample], options: NliData) -> dict[str, list[str]]:
        return {"labels": LABELS}

    def build(self, config: EsimConfig, inputs: TokenInput, vocabularies: Vocabularies) -> Esim:
        return Esim(config, inputs, labels=vocabularies["labels"])

    def read_input(self, source: Source, options: NliData, vocabularies: Vocabularies) -> Iterator[NliExample]:
        return read_pairs(source)

    def show(self, example: NliExample, prediction: Prediction) -> str:
        probability = prediction.probabilities[prediction.label]
        return f"{prediction.label} {probability:.2f}  {' '.join(example.premise)} → {' '.join(example.hypothesis)}"

    def record(self, example: NliExample, prediction: Prediction) -> dict[str, Any]:
        return {
            "premise": list(example.premise),
            "hypothesis": list(example.hypothesis),
            **prediction._asdict(),
        }
