"""Named entities: a biLSTM-CRF tagger, scored by the F1 of conlleval."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchelmo.config import require_share
from torchelmo.errors import ConfigError
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import VariationalDropout, pad_ids
from torchelmo.tasks.layers.crf import CRF
from torchelmo.tasks.layers.rnn import BiRNN
from torchelmo.tasks.scores import Counts, count, table, total
from torchelmo.tasks.tagging import (
    Scheme,
    Tagged,
    TaggingTask,
    Tags,
    allowed_transitions,
    from_bio,
    gold_tags,
    pairs,
    require_sentences,
    spans_of,
    tag_ids,
    to_bio,
)
from torchelmo.tasks.task import Scores, TaskModel, Vocabularies
from torchelmo.text.reading import Block, malformed, read_columns, write_columns

_DOCUMENT = "-DOCSTART-"  # a line of its own before every document of CoNLL-2003


@dataclass(frozen=True)
class NerData:
    """[data]: "auto" reads BIO, IOB1 and BIOES; a scheme that is named is checked."""

    scheme: Literal["auto", "bio", "iob1", "bioes"] = "auto"


def read(path: str | Path, options: NerData) -> list[Tagged]:
    """Sentences with BIO tags, whatever the scheme of the file."""
    sentences: list[Tagged] = []
    n_columns = 0
    for block in read_columns(path, comment=None):  # "#" is a token like any other
        rows, lines = _without_documents(block)
        for row, line in zip(rows, lines):
            n_columns = n_columns or len(row)
            if len(row) < 2:
                raise malformed(path, line, "a token and its tag", f"one column, {row[0]!r}")
            if len(row) != n_columns:
                raise malformed(path, line, f"{n_columns} columns, as in the lines before it", str(len(row)))
        if rows:
            tags = to_bio([row[-1] for row in rows], options.scheme, str(path), lines=lines)
            sentences.append(Tagged([row[0] for row in rows], tags))
    return require_sentences(path, sentences, "a token and its tag on every line")


def write(path: str | Path, sentences: Iterable[Tagged], scheme: Scheme = "bio") -> None:
    """Two columns, token and tag, as in W-NUT 2017; `read` reads them back."""
    blocks = (zip(sentence.tokens, from_bio(gold_tags(sentence), scheme)) for sentence in sentences)
    write_columns(path, blocks)


def _without_documents(block: Block) -> tuple[list[list[str]], list[int]]:
    kept = [i for i, row in enumerate(block.rows) if row[0] != _DOCUMENT]
    return [block.rows[i] for i in kept], [block.lines[i] for i in kept]


def count_entities(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> dict[str, Counts]:
    """The counts of every label that is in the data or was predicted, in alphabetical order."""
    return count((set(spans_of(gold)), set(spans_of(predicted))) for gold, predicted in pairs(examples, predictions))


def score(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
    """Over all labels, and `accuracy`: the share of tokens with the right tag."""
    entities = total(count_entities(examples, predictions))
    same = [a == b for pair in pairs(examples, predictions) for a, b in zip(pair.gold, pair.predicted)]
    accuracy = 100.0 * sum(same) / len(same) if same else 0.0
    return {"f1": entities.f1, "precision": entities.precision, "recall": entities.recall, "accuracy": accuracy}


def report(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
    """One line for every label, and one for all."""
    return table("label", count_entities(examples, predictions))


@dataclass(frozen=True)
class NerConfig:
    """[model]: the sizes of Peters et al. 2018 (Peters et al. 2017 for the place "between")."""

    hidden_dims: tuple[int, int] = (200, 100)  # of each direction of the two biLSTMs
    dropout: float = 0.5  # at the input of both
    scheme: Literal["bio", "bioes"] = "bioes"  # of the tags inside the model; examples and predictions are BIO
    elmo_output: Literal["end", "between"] = "end"  # where ELMo at the output joins

    def __post_init__(self) -> None:
        if min(self.hidden_dims) < 1:
            raise ConfigError(f"hidden_dims must be at least 1, got {list(self.hidden_dims)}.")
        require_share(self, "dropout")


class NerModel(TaskModel[Tagged, Tags]):
    """`types` are the labels of entities; the tags are made of them."""

    def __init__(self, config: NerConfig, inputs: TokenInput, types: Sequence[str]) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        prefixes = "BIES" if config.scheme == "bioes" else "BI"
        self.labels = ["O", *(f"{prefix}-{name}" for name in types for prefix in prefixes)]
        self._ids = {label: index for index, label in enumerate(self.labels)}
        between = inputs.output_dim if config.elmo_output == "between" else 0
        first, second = config.hidden_dims
        self.dropout = VariationalDropout(config.dropout)
        self.first = BiRNN(inputs.dim, first)
        self.second = BiRNN(self.first.dim + between, second)
        self.scores = nn.Linear(self.second.dim + inputs.output_dim - between, len(self.labels))
        self.crf = CRF(len(self.labels), transitions=allowed_transitions(self.labels))

    def loss(self, examples: Sequence[Tagged]) -> Tensor:
        emissions, mask = self._emissions(examples)
        rows = [tag_ids(from_bio(gold_tags(example), self.config.scheme), self._ids) for example in examples]
        log_likelihood: Tensor = self.crf.log_likelihood(emissions, pad_ids(rows, device=mask.device), mask)
        return -log_likelihood.mean()

    def predict(self, examples: Sequence[Tagged]) -> list[Tags]:
        emissions, mask = self._emissions(examples)
        paths = self.crf.viterbi(emissions, mask)
        return [to_bio([self.labels[i] for i in path], "auto", "prediction") for path in paths]

    def _emissions(self, examples: Sequence[Tagged]) -> tuple[Tensor, Tensor]:
        """(batch, tokens, n_labels) and the mask of real tokens."""
        vectors, mask, output = self.inputs([example.tokens for example in examples])
        hidden = self.first(self.dropout(vectors), mask)
        if output is not None and self.config.elmo_output == "between":
            hidden = torch.cat([hidden, output], dim=-1)
        hidden = self.second(self.dropout(hidden), mask)
        if output is not None and self.config.elmo_output == "end":
            hidden = torch.cat([hidden, output], dim=-1)
        return self.scores(hidden), mask


class Ner(TaggingTask):
    name = "ner"
    metric = "f1"
    data_config = NerData
    model_config = NerConfig

    def read(self, path: Path, options: NerData) -> list[Tagged]:
        return read(path, options)

    def vocabularies(self, examples: Sequence[Tagged], options: NerData) -> dict[str, list[str]]:
        return {"types": sorted({span.label for example in examples for span in spans_of(gold_tags(example))})}

    def build(self, config: NerConfig, inputs: TokenInput, vocabularies: Vocabularies) -> NerModel:
        return NerModel(config, inputs, vocabularies["types"])

    def score(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
        return score(examples, predictions)

    def report(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
        return report(examples, predictions)

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
