"""Parts of speech: a biLSTM tagger, or the linear probe of one layer of the biLM."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchelmo.config import require_positive, require_share
from torchelmo.errors import ConfigError, InputError
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import VariationalDropout
from torchelmo.tasks.layers.rnn import BiRNN
from torchelmo.tasks.scores import count, table
from torchelmo.tasks.tagging import Tagged, TaggingTask, Tags, gold_tags, pairs, require_sentences, tag_ids
from torchelmo.tasks.task import Scores, TaskModel, Vocabularies
from torchelmo.text.reading import malformed, read_columns, write_columns

_COLUMNS = {"upos": 3, "xpos": 4}
_N_COLUMNS = 10
_NOT_A_WORD = re.compile(r"\d+-\d+|\d+\.\d+")  # one form for several words; a word that is only understood


@dataclass(frozen=True)
class PosData:
    """[data]: the universal tags, or those of the language's own treebank."""

    column: Literal["upos", "xpos"] = "upos"


def read(path: str | Path, options: PosData) -> list[Tagged]:
    """The words of every sentence; multiword tokens (1-2) and empty nodes (1.1) are skipped."""
    sentences: list[Tagged] = []
    for block in read_columns(path, separator="\t"):
        words: list[str] = []
        tags: list[str] = []
        for row, line in zip(block.rows, block.lines):
            if len(row) != _N_COLUMNS:
                raise malformed(path, line, f"the {_N_COLUMNS} columns of CoNLL-U, with tabs between", str(len(row)))
            if not _NOT_A_WORD.fullmatch(row[0]):
                _check_word(path, line, row, len(words) + 1, options)
                words.append(row[1])
                tags.append(row[_COLUMNS[options.column]])
        if not words:
            raise malformed(path, block.lines[-1], "at least one word in every sentence", "none")
        sentences.append(Tagged(words, tags))
    return require_sentences(path, sentences, "sentences in CoNLL-U")


def write(path: str | Path, sentences: Iterable[Tagged], options: PosData) -> None:
    """CoNLL-U with the words and their tags, and "_" in all other columns; `read` reads it back."""
    write_columns(path, (_rows(sentence, _COLUMNS[options.column]) for sentence in sentences), separator="\t")


def _check_word(path: str | Path, line: int, row: list[str], number: int, options: PosData) -> None:
    tag = row[_COLUMNS[options.column]]
    if row[0] != str(number):
        raise malformed(path, line, f"word number {number} of the sentence", repr(row[0]))
    if not row[1]:
        raise malformed(path, line, "a word in the second column", "an empty one")
    if tag in ("", "_"):
        other = "upos" if options.column == "xpos" else "xpos"
        raise InputError(
            f"{path}: line {line}: expected a tag in the column {options.column}, found {tag!r}. "
            f'Correct that line, or set column = "{other}" under [data].'
        )


def _rows(sentence: Tagged, column: int) -> Iterator[list[str]]:
    for number, (word, tag) in enumerate(zip(sentence.tokens, gold_tags(sentence)), 1):
        row = [str(number), word, *["_"] * (_N_COLUMNS - 2)]
        row[column] = tag
        yield row


_N_CONFUSIONS = 10


def score(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
    """`accuracy`: the share of words with the right tag; `sentences`: of sentences without an error."""
    counted = list(pairs(examples, predictions))
    words = [a == b for pair in counted for a, b in zip(pair.gold, pair.predicted)]
    return {"accuracy": _share(words), "sentences": _share([pair.gold == pair.predicted for pair in counted])}


def report(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
    """Precision, recall and F1 of every tag, and the confusions that cost most."""
    words = [word for pair in pairs(examples, predictions) for word in zip(pair.gold, pair.predicted)]
    lines = [table("tag", count(({(gold,)}, {(found,)}) for gold, found in words))]
    errors = Counter(word for word in words if word[0] != word[1])
    for (tag, predicted), n_words in errors.most_common(_N_CONFUSIONS):
        lines.append(f"{tag} taken for {predicted}: {n_words}")
    return "\n".join(lines)


def _share(right: list[bool]) -> float:
    return 100.0 * sum(right) / len(right) if right else 0.0


@dataclass(frozen=True)
class PosConfig:
    """[model]: "linear" is the probe of Peters et al. 2018, Table 6; they publish no sizes of a biLSTM tagger."""

    head: Literal["bilstm", "linear"] = "bilstm"  # the other settings are those of the biLSTM
    hidden_dim: int = 200  # of each direction
    n_layers: int = 2
    dropout: float = 0.33  # at the input of every layer, and of the scores

    def __post_init__(self) -> None:
        require_positive(self, "hidden_dim", "n_layers")
        require_share(self, "dropout")


class PosModel(TaskModel[Tagged, Tags]):
    """ELMo at the output joins after the biLSTM."""

    def __init__(self, config: PosConfig, inputs: TokenInput, tags: Sequence[str]) -> None:
        super().__init__()
        self.inputs = inputs
        self.tags = list(tags)
        self._ids = {tag: index for index, tag in enumerate(self.tags)}
        self.encoder: BiRNN | None = None
        if config.head == "linear":
            if inputs.output_dim:
                raise ConfigError(
                    'head = "linear" has no encoder whose output ELMo could join: set elmo.place = "input".'
                )
            self.scores = nn.Linear(inputs.dim, len(self.tags))
        else:
            rnn = BiRNN(inputs.dim, config.hidden_dim, n_layers=config.n_layers, dropout=config.dropout)
            self.encoder, self.dropout = rnn, VariationalDropout(config.dropout)
            self.scores = nn.Linear(rnn.dim + inputs.output_dim, len(self.tags))

    def loss(self, examples: Sequence[Tagged]) -> Tensor:
        scores, mask = self._scores(examples)
        gold = [index for example in examples for index in tag_ids(gold_tags(example), self._ids)]
        return nn.functional.cross_entropy(scores[mask], torch.tensor(gold, device=mask.device))

    def predict(self, examples: Sequence[Tagged]) -> list[Tags]:
        scores, _ = self._scores(examples)
        best = scores.argmax(dim=-1).tolist()
        return [[self.tags[i] for i in row[: len(example.tokens)]] for row, example in zip(best, examples)]

    def _scores(self, examples: Sequence[Tagged]) -> tuple[Tensor, Tensor]:
        """(batch, tokens, n_tags) and the mask of real tokens."""
        vectors, mask, output = self.inputs([example.tokens for example in examples])
        if self.encoder is not None:
            vectors = self.dropout(self.encoder(self.dropout(vectors), mask))
        if output is not None:
            vectors = torch.cat([vectors, output], dim=-1)
        return self.scores(vectors), mask


_LINE_WIDTH = 100


class Pos(TaggingTask):
    name = "pos"
    metric = "accuracy"
    data_config = PosData
    model_config = PosConfig

    def read(self, path: Path, options: PosData) -> list[Tagged]:
        return read(path, options)

    def vocabularies(self, examples: Sequence[Tagged], options: PosData) -> dict[str, list[str]]:
        return {"tags": sorted({tag for example in examples for tag in gold_tags(example)})}

    def build(self, config: PosConfig, inputs: TokenInput, vocabularies: Vocabularies) -> PosModel:
        return PosModel(config, inputs, vocabularies["tags"])

    def score(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
        return score(examples, predictions)

    def report(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
        return report(examples, predictions)

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
