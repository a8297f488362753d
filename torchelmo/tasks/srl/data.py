"""Propositions to be labelled: their predicates are given, or looked for by their words."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from torchelmo.errors import InputError
from torchelmo.files import read_lines
from torchelmo.tasks.tagging import Span, Tags, gold_tags, opening, spans_of, tags_of
from torchelmo.text.reading import Block, malformed, parse_object, read_columns, write_columns

Format: TypeAlias = Literal["conll2012", "propbank", "conll2005"]
_CELL = re.compile(r"(?:\((?P<label>[^()*]+))?\*(?P<end>\)?)")
_NO_PREDICATE = "-"


@dataclass(frozen=True)
class SrlData:
    """[data]: the columns of the files; "auto" tells them apart by their first sentence."""

    format: Literal["auto", "conll2012", "propbank", "conll2005"] = "auto"


class Proposition(NamedTuple):
    """One predicate of a sentence. A sentence with three predicates is three examples."""

    tokens: tuple[str, ...]
    predicate: int | None  # its token; None stands for a sentence in which no predicate was found
    tags: Tags | None = None  # BIO; the roles with the predicate's own, V. None where they are to be predicted
    predicates: tuple[int, ...] = ()  # of the whole sentence, in the order of their propositions


def read(path: str | Path, options: SrlData) -> list[Proposition]:
    """All propositions of a file. Sentences without predicates give none."""
    blocks = (block for block in map(_without_documents, read_columns(path, comment=None)) if block.rows)
    first = next(blocks, None)
    if first is None:
        raise InputError(f"{path}: expected sentences in columns, found none. Check that it is the right file.")
    layout = _LAYOUTS[options.format if options.format != "auto" else _detect(first)]
    result = [one for block in chain([first], blocks) for one in _propositions(path, block, layout)]
    if not result:
        raise InputError(
            f"{path}: expected predicates with their arguments, found none in any sentence. Check that it is the right "
            "file, and that data.format names its columns."
        )
    return result


def write(path: str | Path, propositions: Iterable[Proposition]) -> None:
    """CoNLL-2005 columns: word, predicate, arguments. `read` reads them back; srl-eval.pl wants all but the first.

    The propositions of a sentence stand together and in order, as `read` gives them.
    """
    write_columns(path, (_rows(sentence) for sentence in _by_sentence(propositions)))


def argument_cells(tags: Sequence[str]) -> list[str]:
    """BIO tags as brackets.

    >>> argument_cells(["B-A0", "I-A0", "B-V", "O"])
    ['(A0*', '*)', '(V*)', '*']
    """
    cells = ["*"] * len(tags)
    for label, start, end in spans_of(tags):
        cells[start] = f"({label}*"
        cells[end - 1] += ")"
    return cells


class _Layout(NamedTuple):
    """Where things stand; None for the arguments: after the predicates, None for those: to be found."""

    word: int
    predicate: int | None  # the column that marks them
    arguments: int | None  # the first of their columns
    after: int  # columns after the arguments
    n_columns: str  # for messages


_LAYOUTS: dict[Format, _Layout] = {
    # Nouns with a sense are marked too, so the arguments themselves tell where the predicate is.
    "conll2012": _Layout(3, None, 11, 1, "12 columns and one more for each predicate (conll2012)"),
    "propbank": _Layout(3, 7, 8, 0, "8 columns and one more for each predicate (propbank)"),
    "conll2005": _Layout(0, None, None, 0, "a column of predicates and after it one more for each of them (conll2005)"),
}


def _detect(block: Block) -> Format:
    rows = block.rows
    numbered = all(len(row) >= 8 and row[2] == str(number) for number, row in enumerate(rows))
    if not numbered:
        return "conll2005"
    marked = sum(row[7] != _NO_PREDICATE for row in rows)
    return "conll2012" if block.comments or len(rows[0]) == 12 + marked else "propbank"


def _without_documents(block: Block) -> Block:
    """The lines "#begin document" and "#end document" as comments; any other "#" may be a word."""
    is_mark = [row[:2] in (["#begin", "document"], ["#end", "document"]) for row in block.rows]
    kept = [i for i, mark in enumerate(is_mark) if not mark]
    comments = [" ".join(row) for row, mark in zip(block.rows, is_mark) if mark]
    return Block([block.rows[i] for i in kept], [block.lines[i] for i in kept], comments)


def _propositions(path: str | Path, block: Block, layout: _Layout) -> Iterator[Proposition]:
    rows, lines = block.rows, block.lines
    width = len(rows[0])
    for row, line in zip(rows, lines):
        if len(row) != width:
            raise malformed(path, line, f"{width} columns, as in the first line of the sentence", str(len(row)))
    predicate = layout.predicate if layout.arguments is not None else _predicate_column(rows)
    first = layout.arguments if layout.arguments is not None else None if predicate is None else predicate + 1
    if first is None or width < first + layout.after:
        raise malformed(path, lines[0], layout.n_columns, f"{width} columns")
    columns = [_arguments(path, [row[column] for row in rows], lines) for column in range(first, width - layout.after)]
    if predicate is None:
        predicates = [_first_verb(path, spans, lines[0]) for spans in columns]
    else:
        predicates = [token for token, row in enumerate(rows) if row[predicate] != _NO_PREDICATE]
    if len(predicates) != len(columns):
        found = f"{len(predicates)} predicates and {len(columns)} columns of arguments"
        raise malformed(path, lines[0], layout.n_columns, found)
    tokens = tuple(row[layout.word] for row in rows)
    for token, spans in zip(predicates, columns):
        yield Proposition(tokens, token, tags_of(spans, len(tokens)), tuple(predicates))


def _predicate_column(rows: list[list[str]]) -> int | None:
    """The last column that has as many entries other than "-" as there are columns after it.

    A column of arguments cannot be meant: there are at most as many of them as tokens.
    """
    width = len(rows[0])
    fitting = (
        column
        for column in reversed(range(1, width))
        if sum(row[column] != _NO_PREDICATE for row in rows) == width - 1 - column
    )
    return next(fitting, None)


def _first_verb(path: str | Path, spans: Sequence[Span], line: int) -> int:
    for span in spans:
        if span.label == "V":
            return span.start
    raise malformed(path, line, "a (V*) in every column of arguments of the sentence", "a column without one")


def _arguments(path: str | Path, cells: Sequence[str], lines: Sequence[int]) -> list[Span]:
    """The spans of one column of brackets."""
    spans: list[Span] = []
    label: str | None = None  # of the span that is open
    start = 0
    for token, (cell, line) in enumerate(zip(cells, lines)):
        match = _CELL.fullmatch(cell)
        if match is None:
            nested = "(" in cell[1:]
            expected = "arguments that are not nested" if nested else "an argument such as (A0*, *, *) or (A0*)"
            raise malformed(path, line, expected, repr(cell))
        if match["label"]:
            if label is not None:
                raise malformed(path, line, f"{label} to end before another argument begins", repr(cell))
            label, start = match["label"], token
        if match["end"]:
            if label is None:
                raise malformed(path, line, "a bracket to open before it closes", repr(cell))
            spans.append(Span(label, start, token + 1))
            label = None
    if label is not None:
        raise malformed(path, lines[start], f"{label} to end within its sentence", f"only {cells[start]!r}")
    return spans


def _by_sentence(propositions: Iterable[Proposition]) -> Iterator[list[Proposition]]:
    sentence: list[Proposition] = []
    for proposition in propositions:
        sentence.append(proposition)
        if len(sentence) == len(proposition.predicates):
            yield sentence
            sentence = []
    if sentence:
        raise InputError(
            f"Expected the propositions of all {len(sentence[0].predicates)} predicates of a sentence, got "
            f"{len(sentence)} for {opening(sentence[0])}."
        )


def _rows(sentence: Sequence[Proposition]) -> Iterator[tuple[str, ...]]:
    tokens, predicates = sentence[0].tokens, sentence[0].predicates
    for one, predicate in zip(sentence, predicates):
        if one.tokens != tokens or one.predicate != predicate:
            raise InputError(
                f"Expected the propositions of {opening(sentence[0])} together and in order, got that of predicate "
                f"{one.predicate} of {opening(one)}."
            )
    marks = [token if i in predicates else _NO_PREDICATE for i, token in enumerate(tokens)]
    return zip(tokens, marks, *(argument_cells(gold_tags(one)) for one in sentence))


class Sentence(NamedTuple):
    tokens: list[str]
    predicates: list[int] | None  # None where they are to be found


def propositions_of(
    tokens: Sequence[str], words: Collection[str], given: Sequence[int] | None = None
) -> Iterator[Proposition]:
    """One for each predicate: those that are given, else the tokens that are among `words` in lower case.

    Where there is none, one that says so.
    """
    found = (i for i, token in enumerate(tokens) if token.lower() in words)
    predicates = tuple(given if given is not None else found)
    for predicate in predicates or (None,):
        yield Proposition(tuple(tokens), predicate, predicates=predicates)


def read_json_lines(path: str | Path) -> Iterator[Sentence]:
    """Lines {"tokens": ["She", "came"], "predicates": [1]}; blank ones are skipped, other keys are not looked at."""
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield _sentence(path, number, line)


def _sentence(path: str | Path, number: int, line: str) -> Sentence:
    content = parse_object(line, path, number)
    tokens = content.get("tokens")
    if not _is_list_of(str, tokens) or not tokens:
        raise malformed(path, number, 'an object with "tokens", a list of at least one string', f"{line[:60]!r}")
    predicates = content.get("predicates")
    if predicates is None:
        return Sentence(tokens, None)
    if not _is_list_of(int, predicates) or not all(0 <= i < len(tokens) for i in predicates):
        expected = f'"predicates" to be a list of token numbers from 0 to {len(tokens) - 1}'
        raise malformed(path, number, expected, f"{json.dumps(predicates)[:60]}")
    return Sentence(tokens, predicates)


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)
