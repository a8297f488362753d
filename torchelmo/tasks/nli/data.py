"""Pairs of premise and hypothesis: JSON lines as SNLI and MultiNLI write them, or `premise TAB hypothesis`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torchelmo.errors import InputError
from torchelmo.files import read_lines
from torchelmo.tasks.columns import malformed
from torchelmo.tasks.json_lines import parse_object
from torchelmo.tasks.task import Source
from torchelmo.tasks.treebank import unescape
from torchelmo.text.tokenize import Tokenizer

LABELS = ["entailment", "neutral", "contradiction"]
_NO_LABEL = "-"  # the annotators did not agree


@dataclass(frozen=True)
class NliData:
    """[data] Where the tokens come from.

    "auto" takes them from sentence1_binary_parse and sentence2_binary_parse where those are there, as in the files
    of SNLI and MultiNLI, and else splits at spaces; "raw" splits the sentences by spaCy's rules for `lang`.
    """

    text: Literal["auto", "tokenised", "raw"] = "auto"
    lang: str = "en"


class NliExample(NamedTuple):
    premise: tuple[str, ...]
    hypothesis: tuple[str, ...]
    label: str | None  # one of LABELS


def read_nli(path: Path, options: NliData) -> list[NliExample]:
    """Labelled pairs; those without an agreed label ("-") are left out."""
    tokens_of = _splitter(options)
    examples = []
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            pair = parse_object(line, path, number)
            label = _text(pair, "gold_label", path, number)
            if label == _NO_LABEL:
                continue
            if label not in LABELS:
                raise malformed(path, number, f"gold_label {', '.join(LABELS)} or {_NO_LABEL}", repr(label))
            examples.append(_example(pair, label, tokens_of, path, number))
    if not examples:
        raise InputError(
            f"{path}: expected a JSON object with gold_label, sentence1 and sentence2 on each line, found no labelled "
            "pair. Check that it is the right file."
        )
    return examples


def read_pairs(source: Source) -> Iterator[NliExample]:
    """Pairs without labels, each line in the form that it begins with; blank lines are skipped."""
    tokens_of = _splitter(NliData("tokenised") if source.lang is None else NliData("raw", source.lang))
    for number, line in enumerate(read_lines(source.path), 1):
        if not line.strip():
            continue
        if line.lstrip().startswith("{"):
            pair = parse_object(line, source.path, number)
        else:
            fields = line.split("\t")
            if len(fields) != 2:
                expected = "premise TAB hypothesis, or a JSON object"
                raise malformed(source.path, number, expected, f"{len(fields) - 1} tabs in {line[:40]!r}")
            pair = dict(zip(("sentence1", "sentence2"), fields))
        yield _example(pair, None, tokens_of, source.path, number)


_Splitter = Callable[[str, str | None], list[str]]


def _splitter(options: NliData) -> _Splitter:
    """(text, binary parse) -> tokens."""
    if options.text == "raw":
        tokenizer = Tokenizer(options.lang)
        return lambda text, parse: tokenizer.tokens(text)
    if options.text == "tokenised":
        return lambda text, parse: text.split()
    return lambda text, parse: text.split() if parse is None else _leaves(parse)


def _leaves(parse: str) -> list[str]:
    """
    >>> _leaves("( ( A dog ) ( -LRB- runs ) )")
    ['A', 'dog', '(', 'runs']
    """
    return [unescape(part) for part in parse.split() if part not in ("(", ")")]


def _text(pair: dict[str, Any], key: str, path: Path | str, number: int) -> str:
    if key not in pair:
        raise malformed(path, number, f"the key {key!r}", f"only {', '.join(map(repr, pair)) or 'no keys'}")
    if not isinstance(pair[key], str):
        raise malformed(path, number, f"text for {key!r}", repr(pair[key]))
    return str(pair[key])


def _example(
    pair: dict[str, Any], label: str | None, tokens_of: _Splitter, path: Path | str, number: int
) -> NliExample:
    sentences = []
    for key in ("sentence1", "sentence2"):
        text, parse_key = _text(pair, key, path, number), f"{key}_binary_parse"
        parse = _text(pair, parse_key, path, number) if parse_key in pair else None
        tokens = tuple(tokens_of(text, parse))
        if not tokens:
            raise malformed(path, number, f"words in {key!r}", "none")
        sentences.append(tokens)
    return NliExample(sentences[0], sentences[1], label)
