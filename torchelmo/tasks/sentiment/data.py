"""Sentences with a sentiment: labelled trees (the Stanford Sentiment Treebank), or lines of `label TAB text`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from torchelmo.errors import ConfigError, InputError
from torchelmo.files import read_lines
from torchelmo.tasks.columns import malformed
from torchelmo.tasks.sentiment.tree import Tree, parse_tree
from torchelmo.text.tokenize import Tokenizer

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
