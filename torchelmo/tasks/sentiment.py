"""Sentiment of sentences: the Stanford Sentiment Treebank with five classes or two."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchelmo.config import require_positive, require_share
from torchelmo.errors import ConfigError, InputError
from torchelmo.files import read_lines
from torchelmo.tasks.classification import ClassificationTask, Classifier, Prediction
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import (
    FeedForward,
    SelfAttentivePool,
    VariationalDropout,
    max_pool,
    mean_pool,
    min_pool,
    self_attend,
)
from torchelmo.tasks.layers.rnn import BiRNN
from torchelmo.tasks.task import Source, Tokens, Vocabularies
from torchelmo.text.reading import malformed, read_paragraphs, unescape
from torchelmo.text.tokenize import Tokenizer

N_LABELS = 5
_LABELS = {str(label): label for label in range(N_LABELS)}
# Not \s: "2 1/2" with a no-break space is one word of the Stanford Sentiment Treebank.
_PARTS = re.compile(r"[()]|[^ \t()]+")


class Tree(NamedTuple):
    """A word (then there are no children) or a phrase of others. `str` writes it as it was read."""

    label: int  # 0 very negative … 4 very positive
    word: str | None
    children: tuple["Tree", ...] = ()

    def subtrees(self) -> Iterator["Tree"]:
        """The tree itself, then those under it, from left to right."""
        waiting = [self]
        while waiting:
            tree = waiting.pop()
            yield tree
            waiting.extend(reversed(tree.children))

    def phrases(self) -> Iterator["Phrase"]:
        """What the subtrees stand for, in their order: the whole sentence first."""
        trees, tokens = list(self.subtrees()), self.tokens()
        sizes: list[int] = []  # from the right, children stand before their parents
        finished: list[int] = []
        for tree in reversed(trees):
            sizes.append(sum(finished.pop() for _ in tree.children) if tree.children else 1)
            finished.append(sizes[-1])
        start = 0
        for tree, size in zip(trees, reversed(sizes)):
            yield Phrase(tokens[start : start + size], tree.label)
            start += tree.word is not None

    def tokens(self) -> tuple[str, ...]:
        """Its words, with brackets and slashes as people write them."""
        return tuple(unescape(tree.word) for tree in self.subtrees() if tree.word is not None)

    def __str__(self) -> str:
        inside = self.word if self.word is not None else " ".join(map(str, self.children))
        return f"({self.label} {inside})"


class Phrase(NamedTuple):
    tokens: tuple[str, ...]
    label: int


class _Open(NamedTuple):
    """A bracket that is not closed yet."""

    column: int
    label: int
    words: list[str]
    children: list[Tree]


def parse_tree(text: str, path: str | Path, line: int) -> Tree:
    """The one tree of a line; `path` and `line` are for the error.

    >>> parse_tree("(3 (2 It) (4 works))", "train.txt", 1).tokens()
    ('It', 'works')
    """

    def wrong(column: int, expected: str, found: str) -> InputError:
        what = repr(found) if found else "the end of the line"
        return InputError(
            f"{path}: line {line}: column {column}: expected {expected}, found {what}. "
            "A tree looks like (3 (2 It) (4 works)), one on a line."
        )

    opened: list[_Open] = []
    parts = [(match.start() + 1, match[0]) for match in _PARTS.finditer(text)]
    end = (len(text) + 1, "")
    place = 0
    while place < len(parts):
        column, part = parts[place]
        place += 1
        if part == "(":
            if opened and opened[-1].words:
                raise wrong(column, f"')' after the word {opened[-1].words[0]!r}", part)
            label_column, label = parts[place] if place < len(parts) else end
            if label not in _LABELS:
                raise wrong(label_column, f"a label from 0 to {N_LABELS - 1} after '('", label)
            opened.append(_Open(column, _LABELS[label], [], []))
            place += 1
        elif not opened:
            raise wrong(column, "a tree that begins with '('", part)
        elif part != ")":
            if opened[-1].words or opened[-1].children:
                raise wrong(column, f"one word, or phrases in brackets, after the label {opened[-1].label}", part)
            opened[-1].words.append(part)
        else:
            _, number, words, children = opened.pop()
            if not words and not children:
                raise wrong(column, "a word or phrases after the label", part)
            tree = Tree(number, words[0] if words else None, tuple(children))
            if opened:
                opened[-1].children.append(tree)
            elif place < len(parts):
                raise wrong(parts[place][0], "the end of the line after the tree", parts[place][1])
            else:
                return tree
    if opened:
        raise wrong(end[0], f"')' for the '(' in column {opened[-1].column}", end[1])
    raise wrong(1, "a tree that begins with '('", "")


FINE = ["very negative", "negative", "neutral", "positive", "very positive"]
BINARY = ["negative", "positive"]
CLASSES = {"fine": FINE, "binary": BINARY}
_AS_BINARY = {"very negative": "negative", "negative": "negative", "positive": "positive", "very positive": "positive"}


@dataclass(frozen=True)
class SentimentData:
    """[data] The published models train on all phrases of at least 4 tokens and are scored on whole sentences."""

    classes: Literal["fine", "binary"] = "fine"  # binary has no neutral: such sentences and phrases are left out
    min_phrase: int = 4  # tokens of the shortest phrase that is trained on; 0 for whole sentences only
    text: Literal["tokenised", "raw"] = "tokenised"  # of lines without a tree; raw text is split by spaCy's rules
    lang: str = "en"  # of raw text

    def __post_init__(self) -> None:
        if self.min_phrase < 0:
            raise ConfigError(f"min_phrase must not be negative, got {self.min_phrase}.")


class SentimentExample(NamedTuple):
    tokens: tuple[str, ...]
    label: str | None  # one of FINE or of BINARY
    tree: Tree | None = None  # where the sentence came as one


def read_sentiment(path: Path, options: SentimentData) -> list[SentimentExample]:
    """The whole sentences of a file; blank lines are skipped."""
    examples = list(_read(path, options))
    if not examples:
        raise InputError(
            f"{path}: expected a tree or label TAB text on each line, found no {options.classes} example. "
            "Check that it is the right file."
        )
    return examples


def with_phrases(examples: Sequence[SentimentExample], options: SentimentData) -> list[SentimentExample]:
    """Every sentence, and the phrases of its tree that are long enough; the same phrase is not taken twice."""
    found: dict[SentimentExample, None] = {}
    for example in examples:
        found[example._replace(tree=None)] = None
        if example.tree is None or not options.min_phrase:
            continue
        for tokens, number in example.tree.phrases():
            label = _class_of(FINE[number], options)
            if label is not None and len(tokens) >= options.min_phrase:
                found[SentimentExample(tokens, label)] = None
    return list(found)


def _read(path: Path, options: SentimentData) -> Iterator[SentimentExample]:
    tokenizer = Tokenizer(options.lang) if options.text == "raw" else None
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        if line.lstrip().startswith("("):
            tree = parse_tree(line, path, number)
            tokens, name = tree.tokens(), FINE[tree.label]
        else:
            tree = None
            first, tab, text = line.partition("\t")
            tokens = tuple(text.split() if tokenizer is None else tokenizer.tokens(text))
            if not tab or not tokens:
                raise malformed(path, number, "a tree in brackets, or label TAB text", repr(line[:40]))
            name = _named(first.strip(), path, number, options)
        label = _class_of(name, options)
        if label is not None:
            yield SentimentExample(tokens, label, tree)


def _class_of(name: str, options: SentimentData) -> str | None:
    """One of the five names as a class of `options`; None where it has no such class."""
    return name if options.classes == "fine" else _AS_BINARY.get(name)


def _named(label: str, path: Path, line: int, options: SentimentData) -> str:
    """A label is a name, or a number that counts the classes from 0."""
    labels = CLASSES[options.classes]
    if label in FINE:
        return label
    if label.isdecimal() and int(label) < len(labels):
        return labels[int(label)]
    raise malformed(path, line, f"a label from 0 to {len(labels) - 1} or one of {', '.join(labels)}", repr(label))


@dataclass(frozen=True)
class BCNConfig:
    """[model] The widths of Peters et al. 2018, with their two ReLU layers in place of maxout."""

    feed_forward_dim: int = 300  # of the ReLU layer below the encoder
    encoder_dim: int = 300  # of each direction
    integrator_dim: int = 300  # of each direction
    classifier_dim: int = 300  # of the two ReLU layers above the pooled vectors
    input_dropout: float = 0.5  # on the token vectors
    dropout: float = 0.25  # after the ReLU layers and on the integrated tokens

    def __post_init__(self) -> None:
        require_positive(self, "feed_forward_dim", "encoder_dim", "integrator_dim", "classifier_dim")
        require_share(self, "input_dropout", "dropout")


class BCN(Classifier[SentimentExample]):
    """ELMo at the output stands beside the integrator's: [y; ELMo].

    Not before the attention: an ELMo vector has by far the largest product with itself, so that every word would see
    little but itself.
    """

    def __init__(self, config: BCNConfig, inputs: TokenInput, *, labels: Sequence[str]) -> None:
        super().__init__()
        self.inputs, self.labels = inputs, list(labels)
        self.input_dropout = VariationalDropout(config.input_dropout)
        self.feed_forward = FeedForward([inputs.dim, config.feed_forward_dim], dropout=config.dropout)
        self.encoder = BiRNN(config.feed_forward_dim, config.encoder_dim)
        self.integrator = BiRNN(3 * self.encoder.dim, config.integrator_dim)
        self.integrated_dropout = VariationalDropout(config.dropout)
        integrated_dim = self.integrator.dim + inputs.output_dim
        self.attentive_pool = SelfAttentivePool(integrated_dim)
        hidden = config.classifier_dim
        self.classifier = FeedForward(
            [4 * integrated_dim, hidden, hidden, len(self.labels)], dropout=config.dropout, last_linear=True
        )

    def forward(self, examples: Sequence[SentimentExample]) -> Tensor:
        vectors, mask, elmo = self.inputs([example.tokens for example in examples])
        x = self.encoder(self.feed_forward(self.input_dropout(vectors)), mask)
        seen = self_attend(x, mask)
        y = self.integrator(torch.cat([x, x - seen, x * seen], dim=-1), mask)
        if elmo is not None:
            y = torch.cat([y, elmo], dim=-1)
        y = self.integrated_dropout(y)
        pools = (max_pool, mean_pool, min_pool, self.attentive_pool)
        scores: Tensor = self.classifier(torch.cat([pool(y, mask) for pool in pools], dim=-1))
        return scores


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
