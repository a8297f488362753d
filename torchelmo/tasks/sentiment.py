"""Classify texts: sentiment with the classes of the Stanford Sentiment Treebank, or any labels.

The model is the biattentive classification network (BCN) of McCann et al. 2017. Files hold on each line a tree with a
label for every phrase, `(3 (2 It) (4 works))`, or `label TAB text`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchelmo.config import Config, Fraction, NonNegativeInt, Width
from torchelmo.errors import InputError, short_repr
from torchelmo.files import read_lines
from torchelmo.tasks.classification import ClassificationTask, Classifier, Prediction
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import (
    BiRNN,
    FeedForward,
    SelfAttentivePool,
    VariationalDropout,
    max_pool,
    mean_pool,
    min_pool,
    self_attend,
)
from torchelmo.tasks.task import Source, Tokens, Vocabularies
from torchelmo.text.places import Place, TextData, join_sentences, place_record, read_paragraphs
from torchelmo.text.reading import malformed, unescape

FINE = ["very negative", "negative", "neutral", "positive", "very positive"]
BINARY = ["negative", "positive"]
_SST_CLASSES = {"fine": FINE, "binary": BINARY}
_AS_BINARY = {"very negative": "negative", "negative": "negative", "positive": "positive", "very positive": "positive"}
_FORMAT = "on each line a tree such as (3 (2 It) (4 works)), or a label, a tab and a text."


@dataclass(frozen=True)
class SentimentData(TextData):
    """[data]: the classes, and the phrases to train on.

    The published models are trained on all phrases of at least 4 tokens and scored on whole sentences.
    """

    # "fine" and "binary" are the classes of SST: five, or two without neutral phrases and sentences. "auto" uses the
    # five classes if the training data has trees, otherwise the labels of the training data, whatever they are.
    classes: Literal["auto", "fine", "binary"] = "auto"
    min_phrase: NonNegativeInt = 4  # tokens of the shortest phrase of a tree to train on; 0 for whole sentences only


@dataclass(frozen=True)
class BCNConfig(Config):
    """[model]: the defaults are the widths of Peters et al. 2018, with their two ReLU layers in place of maxout."""

    feed_forward_dim: Width = 300  # of the ReLU layer below the encoder
    encoder_dim: Width = 300  # width of each direction
    integrator_dim: Width = 300  # width of each direction
    classifier_dim: Width = 300  # of the two ReLU layers above the pooled vectors
    input_dropout: Fraction = 0.5  # on the token vectors
    dropout: Fraction = 0.25  # after the ReLU layers and on the integrated tokens


class SentimentExample(NamedTuple):
    """A text with its label."""

    tokens: tuple[str, ...]
    label: str | None  # None if it is to be predicted
    tree: "Tree | None" = None  # if the file has one
    place: Place | None = None  # of the tokens in a text to predict


class Sentiment(ClassificationTask[SentimentExample]):
    """Text classification."""

    name = "sentiment"
    data_config = SentimentData
    model_config = BCNConfig

    def read(self, path: Path, options: SentimentData) -> list[SentimentExample]:
        return read(path, options)

    def training(self, examples: list[SentimentExample], options: SentimentData) -> list[SentimentExample]:
        return add_phrases(examples, options)

    def sentences(self, example: SentimentExample) -> Sequence[Tokens]:
        return [example.tokens]

    def vocabularies(self, examples: Sequence[SentimentExample], options: SentimentData) -> dict[str, list[str]]:
        if options.classes != "auto":
            return {"labels": _SST_CLASSES[options.classes]}
        labels = {example.label for example in examples if example.label is not None}
        if any(example.tree is not None for example in examples):
            return {"labels": [*FINE, *sorted(labels - set(FINE))]}
        return {"labels": sorted(labels)}

    def build(self, config: BCNConfig, inputs: TokenInput, vocabularies: Vocabularies) -> "BCN":
        return BCN(config, inputs, labels=vocabularies["labels"])

    def read_input(
        self, source: Source, options: SentimentData, vocabularies: Vocabularies
    ) -> Iterator[SentimentExample]:
        """Yield one example for every line of any number of sentences; blank lines are skipped."""
        for sentences in read_paragraphs(source, options):
            if sentences:
                tokens, place = join_sentences(sentences)
                yield SentimentExample(tuple(tokens), None, place=place)

    def show(self, example: SentimentExample, prediction: Prediction) -> str:
        return f"{prediction.label} {prediction.probabilities[prediction.label]:.2f}  {' '.join(example.tokens)}"

    def record(self, example: SentimentExample, prediction: Prediction) -> dict[str, Any]:
        return {"tokens": list(example.tokens), **place_record(example.place), **prediction._asdict()}


def read(path: Path, options: SentimentData) -> list[SentimentExample]:
    """Read the whole sentences of a file; blank lines are skipped.

    Raises:
        InputError: A line is malformed, or the file has no example of the classes.
    """
    examples = list(_read_lines(path, options))
    if not examples:
        kind = "" if options.classes == "auto" else f"{options.classes} "
        raise InputError(f"{path}: expected {kind}examples, found none. Expected format: {_FORMAT}")
    return examples


def add_phrases(examples: Sequence[SentimentExample], options: SentimentData) -> list[SentimentExample]:
    """Add the phrases of trees that are long enough. Equal sentences and phrases of trees are used once."""
    result: list[SentimentExample] = []
    seen: set[SentimentExample] = set()
    for example in examples:
        if example.tree is None:
            result.append(example)
            continue
        whole = example._replace(tree=None)
        phrases = (
            SentimentExample(tokens, _class_of(FINE[label], options)) for tokens, label in example.tree.phrases()
        )
        long_enough = [
            phrase
            for phrase in (phrases if options.min_phrase else ())
            if phrase.label is not None and len(phrase.tokens) >= options.min_phrase
        ]
        for phrase in (whole, *long_enough):
            if phrase not in seen:
                seen.add(phrase)
                result.append(phrase)
    return result


def _read_lines(path: Path, options: SentimentData) -> Iterator[SentimentExample]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        tree = None
        name, tab, text = line.partition("\t")
        if line.lstrip().startswith("("):
            tree = parse_tree(line, path, number)
            tokens, name = tree.tokens(), FINE[tree.label]
        else:
            tokens, name = tuple(options.tokens(text)), _read_label(name.strip(), path, number, options)
            if not tab or not tokens or not name:
                raise malformed(path, number, "a tree, or label TAB text", short_repr(line), _FORMAT)
        label = _class_of(name, options)
        if label is not None:
            yield SentimentExample(tokens, label, tree)


def _class_of(name: str, options: SentimentData) -> str | None:
    """Return the class of a label; None if examples with this label are left out."""
    return _AS_BINARY.get(name) if options.classes == "binary" else name


def _read_label(label: str, path: Path, line: int, options: SentimentData) -> str:
    """Return the name of a label, which for the classes of SST may also be a number from 0."""
    if options.classes == "auto":
        return label
    labels = _SST_CLASSES[options.classes]
    if label in FINE:
        return label
    if label in map(str, range(len(labels))):
        return labels[int(label)]
    expected = f"a label from 0 to {len(labels) - 1} or one of {', '.join(labels)}"
    raise malformed(path, line, expected, short_repr(label), f'{_FORMAT} For other labels, set data.classes = "auto".')


# Not \s: "2 1/2" with a no-break space is one word of the Stanford Sentiment Treebank.
_TREE_PARTS = re.compile(r"[()]|[^ \t()]+")


class Tree(NamedTuple):
    """A word (without children) or a phrase of other trees. `str` writes it as it was read."""

    label: int  # 0 very negative … 4 very positive
    word: str | None
    children: tuple["Tree", ...] = ()

    def subtrees(self) -> Iterator["Tree"]:
        """Yield the tree itself, then those below it, from left to right."""
        waiting = [self]
        while waiting:
            tree = waiting.pop()
            yield tree
            waiting.extend(reversed(tree.children))

    def phrases(self) -> Iterator["Phrase"]:
        """Yield the phrase of every subtree, in their order: the whole sentence first."""
        trees, tokens = list(self.subtrees()), self.tokens()
        sizes: list[int] = []  # in reverse order, children come before their parents
        finished: list[int] = []
        for tree in reversed(trees):
            sizes.append(sum(finished.pop() for _ in tree.children) if tree.children else 1)
            finished.append(sizes[-1])
        start = 0
        for tree, size in zip(trees, reversed(sizes)):
            yield Phrase(tokens[start : start + size], tree.label)
            start += tree.word is not None

    def tokens(self) -> tuple[str, ...]:
        """Return the words, without the treebank's escapes for brackets and slashes."""
        return tuple(unescape(tree.word) for tree in self.subtrees() if tree.word is not None)

    def __str__(self) -> str:
        inside = self.word if self.word is not None else " ".join(map(str, self.children))
        return f"({self.label} {inside})"


class Phrase(NamedTuple):
    """The words of a subtree, and its label."""

    tokens: tuple[str, ...]
    label: int


def parse_tree(text: str, path: str | Path, line: int) -> Tree:
    """Parse the tree of a line. A stack instead of recursion allows trees of any depth.

    Args:
        text: The line.
        path: The file, for error messages.
        line: The line number, for error messages.

    >>> parse_tree("(3 (2 It) (4 works))", "train.txt", 1).tokens()
    ('It', 'works')
    """
    opened: list[tuple[int, list[str], list[Tree]]] = []  # label, word and children of every open bracket
    tree: Tree | None = None
    expects_label = False
    for column, part in [*((match.start() + 1, match[0]) for match in _TREE_PARTS.finditer(text)), (len(text) + 1, "")]:
        label, word, children = opened[-1] if opened else (0, [], [])
        if expects_label and part in ("0", "1", "2", "3", "4"):
            opened.append((int(part), [], []))
            expects_label = False
        elif part == "(" and tree is None and not word and not expects_label:
            expects_label = True
        elif part == ")" and (word or children) and not expects_label:
            opened.pop()
            closed = Tree(label, word[0] if word else None, tuple(children))
            if opened:
                opened[-1][2].append(closed)
            else:
                tree = closed
        elif part not in ("(", ")", "") and opened and not word and not children and not expects_label:
            word.append(part)
        elif tree is not None and not part:
            return tree
        else:
            found = short_repr(part) if part else "the end of the line"
            raise InputError(
                f"{path}: line {line}: column {column}: expected a tree such as (3 (2 It) (4 works)), with a label "
                f"from 0 to 4 after each '(', found {found}."
            )
    raise AssertionError("the last part is the end of the line")


class BCN(Classifier[SentimentExample]):
    """The biattentive classification network for one sequence: encode, attend, integrate, pool, classify.

    ELMo at the output is concatenated to the states of the integrator: [y; ELMo]. It is not added before the attention:
    the product of an ELMo vector with itself is much larger than with any other, so every word would attend mostly to
    itself.
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
        """Return the scores of every label: (batch, n_labels)."""
        vectors, mask, elmo = self.inputs([example.tokens for example in examples])
        x = self.encoder(self.feed_forward(self.input_dropout(vectors)), mask)
        attended = self_attend(x, mask)
        y = self.integrator(torch.cat([x, x - attended, x * attended], dim=-1), mask)
        if elmo is not None:
            y = torch.cat([y, elmo], dim=-1)
        y = self.integrated_dropout(y)
        pools = (max_pool, mean_pool, min_pool, self.attentive_pool)
        scores: Tensor = self.classifier(torch.cat([pool(y, mask) for pool in pools], dim=-1))
        return scores
