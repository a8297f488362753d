"""Part-of-speech tagging: a biLSTM tagger, or a linear probe of one layer of the biLM. Files are CoNLL-U."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchelmo.config import Config, Fraction, LayerCount, Width
from torchelmo.errors import ConfigError, InputError, short_repr
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import BiRNN, VariationalDropout
from torchelmo.tasks.tagging import (
    Tagged,
    TaggingTask,
    Tags,
    gold_tags,
    pair_tags,
    require_sentences,
    tag_ids,
    tags_record,
)
from torchelmo.tasks.task import Counts, Scores, TaskModel, Vocabularies, count_items, format_table, percentage
from torchelmo.text.places import TextData
from torchelmo.text.reading import format_columns, malformed, read_columns, write_columns

_COLUMNS = {"upos": 3, "xpos": 4}
_N_COLUMNS = 10
_FORMAT = "CoNLL-U, 10 columns separated by tabs: number, word, lemma, UPOS, XPOS and five more."
_NOT_A_WORD = re.compile(r"\d+-\d+|\d+\.\d+")  # multiword tokens (1-2) and empty nodes (1.1)
_N_CONFUSIONS = 10  # listed in the report
_LINE_WIDTH = 100


@dataclass(frozen=True)
class PosData(TextData):
    """[data]: the universal tags or those of the language's own treebank, and the tokenization of text to predict."""

    column: Literal["upos", "xpos"] = "upos"


@dataclass(frozen=True)
class PosConfig(Config):
    """[model]: "linear" is the probe of Peters et al. 2018, Table 6; they publish no sizes of a biLSTM tagger."""

    head: Literal["bilstm", "linear"] = "bilstm"  # the other settings are those of the biLSTM
    hidden_dim: Width = 200  # width of each direction
    n_layers: LayerCount = 2
    dropout: Fraction = 0.33  # variational, at the input of every layer and of the output layer


class Pos(TaggingTask):
    """Part-of-speech tagging."""

    name = "pos"
    metric = "accuracy"
    data_config = PosData
    model_config = PosConfig

    def read(self, path: Path, options: PosData) -> list[Tagged]:
        return read(path, options)

    def vocabularies(self, examples: Sequence[Tagged], options: PosData) -> dict[str, list[str]]:
        return {"tags": sorted({tag for example in examples for tag in gold_tags(example)})}

    def build(self, config: PosConfig, inputs: TokenInput, vocabularies: Vocabularies) -> "PosModel":
        return PosModel(config, inputs, vocabularies["tags"])

    def score(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
        """Return the percentages of correct words, and of sentences without an error."""
        pairs = list(pair_tags(examples, predictions))
        words = [a == b for pair in pairs for a, b in zip(pair.gold, pair.predicted)]
        return {"accuracy": percentage(words), "sentences": percentage([pair.gold == pair.predicted for pair in pairs])}

    def count_labels(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> dict[str, Counts]:
        return count_items(({(gold,)}, {(found,)}) for gold, found in _words(examples, predictions))

    def report(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
        """Return precision, recall and F1 of every tag, and the most frequent confusions."""
        lines = [format_table("tag", self.count_labels(examples, predictions))]
        errors = Counter(word for word in _words(examples, predictions) if word[0] != word[1])
        for (tag, predicted), n_words in errors.most_common(_N_CONFUSIONS):
            lines.append(f"gold {tag}, predicted {predicted}: {n_words}")
        return "\n".join(lines)

    def show(self, example: Tagged, prediction: Tags) -> str:
        """Return every word above its tag, wrapped to the width of a screen, and a blank line at the end."""
        lines: list[tuple[str, str]] = [("", "")]
        for word, tag in zip(example.tokens, prediction):
            width = max(_width(word), len(tag)) + 2
            if len(lines[-1][1]) + width > _LINE_WIDTH and lines[-1][1]:
                lines.append(("", ""))
            words, tags = lines[-1]
            lines[-1] = (words + word + " " * (width - _width(word)), tags + tag.ljust(width))
        return "".join(f"{words.rstrip()}\n{tags.rstrip()}\n" for words, tags in lines)

    def record(self, example: Tagged, prediction: Tags) -> dict[str, Any]:
        return tags_record(example, prediction)

    def conll(self, predicted: Iterable[tuple[Tagged, Tags]], options: PosData) -> Iterator[str]:
        """Yield CoNLL-U with the tags in their column."""
        for example, tags in predicted:
            rows = _rows(example._replace(tags=tags), _COLUMNS[options.column])
            yield format_columns(rows, separator="\t", where="CoNLL output")


def read(path: str | Path, options: PosData) -> list[Tagged]:
    """Read the words of every sentence and their tags; multiword tokens (1-2) and empty nodes (1.1) are skipped.

    Args:
        path: The file, plain or compressed.
        options: The column of the tags.

    Raises:
        InputError: A line is malformed, or the file has no sentences.
    """
    sentences: list[Tagged] = []
    for block in read_columns(path, separator="\t"):
        words: list[str] = []
        tags: list[str] = []
        for row, line in zip(block.rows, block.lines):
            if len(row) != _N_COLUMNS:
                raise malformed(path, line, f"the {_N_COLUMNS} columns of CoNLL-U", str(len(row)), _FORMAT)
            if not _NOT_A_WORD.fullmatch(row[0]):
                _check_word(path, line, row, len(words) + 1, options)
                words.append(row[1])
                tags.append(row[_COLUMNS[options.column]])
        if not words:
            raise malformed(path, block.lines[-1], "at least one word in every sentence", "none", _FORMAT)
        sentences.append(Tagged(words, tags))
    return require_sentences(path, sentences, _FORMAT)


def write(path: str | Path, sentences: Iterable[Tagged], options: PosData) -> None:
    """Write CoNLL-U with the words and their tags, and "_" in all other columns. `read` reads it back.

    Args:
        path: The file to write.
        sentences: Sentences with tags.
        options: The column of the tags.
    """
    write_columns(path, (_rows(sentence, _COLUMNS[options.column]) for sentence in sentences), separator="\t")


def _check_word(path: str | Path, line: int, row: list[str], number: int, options: PosData) -> None:
    tag = row[_COLUMNS[options.column]]
    if row[0] != str(number):
        raise malformed(path, line, f"word number {number} of the sentence", short_repr(row[0]), _FORMAT)
    if not row[1]:
        raise malformed(path, line, "a word in the second column", "an empty one", _FORMAT)
    if tag in ("", "_"):
        other = "upos" if options.column == "xpos" else "xpos"
        raise InputError(
            f"{path}: line {line}: expected a tag in the column {options.column}, found {short_repr(tag)}. "
            f'Correct that line, or set column = "{other}" under [data].'
        )


def _rows(sentence: Tagged, column: int) -> Iterator[list[str]]:
    for number, (word, tag) in enumerate(zip(sentence.tokens, gold_tags(sentence)), 1):
        row = [str(number), word, *["_"] * (_N_COLUMNS - 2)]
        row[column] = tag
        yield row


def _words(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> list[tuple[str, str]]:
    """Return the gold and the predicted tag of every word."""
    return [word for pair in pair_tags(examples, predictions) for word in zip(pair.gold, pair.predicted)]


def _width(word: str) -> int:
    """Return the columns of a terminal that a word takes: two for wide characters, none for combining marks."""
    n_wide = sum(unicodedata.east_asian_width(character) in "WF" for character in word)
    return len(word) + n_wide - sum(bool(unicodedata.combining(character)) for character in word)


class PosModel(TaskModel[Tagged, Tags]):
    """A biLSTM or nothing, and a linear layer. ELMo at the output is concatenated after the biLSTM."""

    def __init__(self, config: PosConfig, inputs: TokenInput, tags: Sequence[str]) -> None:
        super().__init__()
        self.inputs = inputs
        self.tags = list(tags)
        self._ids = {tag: index for index, tag in enumerate(self.tags)}
        self.encoder: BiRNN | None = None
        if config.head == "linear":
            if inputs.output_dim:
                raise ConfigError(
                    'head = "linear" has no encoder, so ELMo cannot be added to its output: set elmo.place = "input".'
                )
            self.scores = nn.Linear(inputs.dim, len(self.tags))
        else:
            rnn = BiRNN(inputs.dim, config.hidden_dim, n_layers=config.n_layers, dropout=config.dropout)
            self.encoder, self.dropout = rnn, VariationalDropout(config.dropout)
            self.scores = nn.Linear(rnn.dim + inputs.output_dim, len(self.tags))

    def loss(self, examples: Sequence[Tagged]) -> Tensor:
        """Return the mean cross-entropy of a token's tag."""
        scores, mask = self._scores(examples)
        gold = [index for example in examples for index in tag_ids(gold_tags(example), self._ids)]
        return nn.functional.cross_entropy(scores[mask], torch.tensor(gold, device=mask.device))

    def predict(self, examples: Sequence[Tagged]) -> list[Tags]:
        scores, _ = self._scores(examples)
        best = scores.argmax(dim=-1).tolist()
        return [[self.tags[i] for i in row[: len(example.tokens)]] for row, example in zip(best, examples)]

    def _scores(self, examples: Sequence[Tagged]) -> tuple[Tensor, Tensor]:
        """Return the scores (batch, tokens, n_tags) and the mask of real tokens."""
        vectors, mask, output = self.inputs([example.tokens for example in examples])
        if self.encoder is not None:
            vectors = self.dropout(self.encoder(self.dropout(vectors), mask))
        if output is not None:
            vectors = torch.cat([vectors, output], dim=-1)
        return self.scores(vectors), mask
