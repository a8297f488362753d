"""Named-entity recognition: a biLSTM-CRF tagger (Peters et al. 2017, 2018), scored by the F1 of conlleval.

Files have a token first and its tag last on each line, and a blank line between sentences (CoNLL-2003, W-NUT 2017).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchelmo.config import Config, Fraction, Width
from torchelmo.errors import InputError, short_repr
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import BiRNN, VariationalDropout, pad_ids
from torchelmo.tasks.layers.crf import CRF
from torchelmo.tasks.tagging import (
    Scheme,
    Tagged,
    TaggingTask,
    Tags,
    allowed_transitions,
    from_bio,
    gold_tags,
    pair_tags,
    require_sentences,
    spans_of,
    spans_record,
    tag_ids,
    tags_record,
    to_bio,
)
from torchelmo.tasks.task import (
    Counts,
    Scores,
    TaskModel,
    Vocabularies,
    count_items,
    format_table,
    percentage,
    sum_counts,
)
from torchelmo.text.places import TextData
from torchelmo.text.reading import Block, format_columns, malformed, read_columns, write_columns

_DOCUMENT = "-DOCSTART-"  # the first column of a line before every document of CoNLL-2003
_FORMAT = "a token first and its BIO, IOB1 or BIOES tag last on each line, such as 'Paris B-LOC'."


@dataclass(frozen=True)
class NerData(TextData):
    """[data]: the scheme of the tags in files, and the tokenization of text to predict."""

    scheme: Literal["auto", "bio", "iob1", "bioes"] = "auto"  # "auto" reads all; the others are checked


@dataclass(frozen=True)
class NerConfig(Config):
    """[model]: the defaults are those of Peters et al. 2018; Peters et al. 2017 have `elmo_output = "between"`."""

    hidden_dims: tuple[Width, Width] = (200, 100)  # width of each direction of the two biLSTMs
    dropout: Fraction = 0.5  # variational, at the input of both
    scheme: Literal["bio", "bioes"] = "bioes"  # of the tags inside the model; examples and predictions are BIO
    elmo_output: Literal["end", "between"] = "end"  # where ELMo at the output is concatenated


class Ner(TaggingTask):
    """Named-entity recognition."""

    name = "ner"
    metric = "f1"
    data_config = NerData
    model_config = NerConfig

    def read(self, path: Path, options: NerData) -> list[Tagged]:
        return read(path, options)

    def vocabularies(self, examples: Sequence[Tagged], options: NerData) -> dict[str, list[str]]:
        return {"types": sorted({span.label for example in examples for span in spans_of(gold_tags(example))})}

    def build(self, config: NerConfig, inputs: TokenInput, vocabularies: Vocabularies) -> "NerModel":
        return NerModel(config, inputs, vocabularies["types"])

    def score(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
        """Return F1, precision and recall of all entities, and the accuracy of the tags."""
        entities = sum_counts(count_entities(examples, predictions))
        correct = [a == b for pair in pair_tags(examples, predictions) for a, b in zip(pair.gold, pair.predicted)]
        return {
            "f1": entities.f1,
            "precision": entities.precision,
            "recall": entities.recall,
            "accuracy": percentage(correct),
        }

    def count_labels(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> dict[str, Counts]:
        return count_entities(examples, predictions)

    def report(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
        return format_table("label", count_entities(examples, predictions))

    def show(self, example: Tagged, prediction: Tags) -> str:
        """Return the sentence with its entities in brackets: [LOC New York]."""
        words = list(example.tokens)
        for label, start, end in spans_of(prediction):
            words[start] = f"[{label} {words[start]}"
            words[end - 1] += "]"
        return " ".join(words)

    def record(self, example: Tagged, prediction: Tags) -> dict[str, Any]:
        return {**tags_record(example, prediction), "spans": spans_record(example, prediction)}

    def conll(self, predicted: Iterable[tuple[Tagged, Tags]], options: NerData) -> Iterator[str]:
        """Yield two columns: token and BIO tag."""
        for example, tags in predicted:
            yield format_columns(zip(example.tokens, tags), where="CoNLL output")


def read(path: str | Path, options: NerData) -> list[Tagged]:
    """Read sentences with their tags.

    Args:
        path: The file, plain or compressed.
        options: The scheme of its tags.

    Returns:
        The sentences, with BIO tags.

    Raises:
        InputError: A line is malformed, or the file has no sentences.
    """
    sentences: list[Tagged] = []
    n_columns = 0
    for block in read_columns(path, comment=None):  # "#" is a token like any other
        rows, lines = _without_documents(block)
        for row, line in zip(rows, lines):
            n_columns = n_columns or len(row)
            if len(row) < 2:
                raise malformed(path, line, "a token and its tag", f"one column, {short_repr(row[0])}", _FORMAT)
            if len(row) != n_columns:
                raise malformed(path, line, f"{n_columns} columns, as on the lines before", str(len(row)), _FORMAT)
        if rows:
            try:
                tags = to_bio([row[-1] for row in rows], options.scheme, str(path), lines=lines)
            except InputError as error:
                raise InputError(f"{error} Expected format: {_FORMAT}") from error
            sentences.append(Tagged([row[0] for row in rows], tags))
    return require_sentences(path, sentences, _FORMAT)


def write(path: str | Path, sentences: Iterable[Tagged], scheme: Scheme = "bio") -> None:
    """Write two columns, token and tag, as in W-NUT 2017. `read` reads them back.

    Args:
        path: The file to write.
        sentences: Sentences with BIO tags.
        scheme: The scheme of the tags in the file.
    """
    write_columns(path, (zip(sentence.tokens, from_bio(gold_tags(sentence), scheme)) for sentence in sentences))


def _without_documents(block: Block) -> tuple[list[list[str]], list[int]]:
    kept = [i for i, row in enumerate(block.rows) if row[0] != _DOCUMENT]
    return [block.rows[i] for i in kept], [block.lines[i] for i in kept]


def count_entities(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> dict[str, Counts]:
    """Count the gold, predicted and correct entities of every label, in alphabetical order."""
    return count_items(
        (set(spans_of(gold)), set(spans_of(predicted))) for gold, predicted in pair_tags(examples, predictions)
    )


class NerModel(TaskModel[Tagged, Tags]):
    """Two biLSTMs and a CRF. `types` are the labels of entities, from which the tags are made."""

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
        """Return the mean negative log-likelihood of the gold tags of a sentence."""
        emissions, mask = self._emissions(examples)
        rows = [tag_ids(from_bio(gold_tags(example), self.config.scheme), self._ids) for example in examples]
        log_likelihood: Tensor = self.crf.log_likelihood(emissions, pad_ids(rows, device=mask.device), mask)
        return -log_likelihood.mean()

    def predict(self, examples: Sequence[Tagged]) -> list[Tags]:
        emissions, mask = self._emissions(examples)
        paths = self.crf.viterbi(emissions, mask)
        return [to_bio([self.labels[i] for i in path], "auto", "prediction") for path in paths]

    def _emissions(self, examples: Sequence[Tagged]) -> tuple[Tensor, Tensor]:
        """Return the emission scores (batch, tokens, n_labels) and the mask of real tokens."""
        vectors, mask, output = self.inputs([example.tokens for example in examples])
        hidden = self.first(self.dropout(vectors), mask)
        if output is not None and self.config.elmo_output == "between":
            hidden = torch.cat([hidden, output], dim=-1)
        hidden = self.second(self.dropout(hidden), mask)
        if output is not None and self.config.elmo_output == "end":
            hidden = torch.cat([hidden, output], dim=-1)
        return self.scores(hidden), mask
