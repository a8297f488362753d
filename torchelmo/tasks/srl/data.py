"""Data of semantic role labeling: files with columns of arguments, and sentences without labels.

An example is one predicate of a sentence (a `Proposition`) with the BIO tags of its arguments.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from torchelmo.errors import InputError, short_repr, shorten
from torchelmo.files import read_lines
from torchelmo.tasks.tagging import Span, Tags, first_words, gold_tags, spans_of, tags_of
from torchelmo.text.places import Place, TextData
from torchelmo.text.reading import Block, malformed, parse_object, read_columns, write_columns

Format: TypeAlias = Literal["conll2012", "propbank", "conll2005"]
_CELL = re.compile(r"(?:\((?P<label>[^()*]+))?\*(?P<end>\)?)")
_NO_PREDICATE = "-"
_FORMAT = (
    "one token per line, a column of predicates, and a column such as (A0*, *, *) for the arguments of each predicate "
    "(CoNLL-2005, CoNLL-2012 or PropBank)."
)
_JSON_FORMAT = 'JSON lines such as {"tokens": ["She", "came"], "predicates": [1]}.'


@dataclass(frozen=True)
class SrlData(TextData):
    """[data]: the columns of the files, and the tokenization of text to predict."""

    format: Literal["auto", "conll2012", "propbank", "conll2005"] = "auto"  # "auto" detects it by the first sentence


class Proposition(NamedTuple):
    """One predicate of a sentence. A sentence with three predicates gives three examples."""

    tokens: tuple[str, ...]
    predicate: int | None  # index of its token; None for a sentence in which no predicate was found
    tags: Tags | None = None  # BIO tags of the roles and of the predicate (V); None if they are to be predicted
    predicates: tuple[int, ...] = ()  # all predicates of the sentence, in the order of their propositions
    place: Place | None = None  # of the tokens in a text to predict


def read(path: str | Path, options: SrlData) -> list[Proposition]:
    """Read all propositions of a file. Sentences without predicates have none.

    Args:
        path: The file, plain or compressed.
        options: The format of its columns.

    Raises:
        InputError: A line is malformed, or the file has no propositions.
    """
    blocks = (block for block in map(_without_documents, read_columns(path, comment=None)) if block.rows)
    first = next(blocks, None)
    if first is None:
        raise InputError(f"{path}: expected sentences in columns, found none. Expected format: {_FORMAT}")
    layout = _LAYOUTS[options.format if options.format != "auto" else _detect(first)]
    result = [one for block in chain([first], blocks) for one in _propositions(path, block, layout)]
    if not result:
        raise InputError(
            f"{path}: expected predicates with their arguments, found none in any sentence. Expected format: {_FORMAT} "
            "Check data.format."
        )
    return result


def write(path: str | Path, propositions: Iterable[Proposition]) -> None:
    """Write the columns of CoNLL-2005: word, predicate, arguments. `read` reads them back.

    The official script srl-eval.pl reads all columns but the first.

    Args:
        path: The file to write.
        propositions: Propositions with tags, those of a sentence together and in order, as `read` returns them.
    """
    write_columns(path, (columns_of(sentence) for sentence in by_sentence(propositions)))


def argument_cells(tags: Sequence[str]) -> list[str]:
    """Convert BIO tags to a column of brackets.

    >>> argument_cells(["B-A0", "I-A0", "B-V", "O"])
    ['(A0*', '*)', '(V*)', '*']
    """
    cells = ["*"] * len(tags)
    for label, start, end in spans_of(tags):
        cells[start] = f"({label}*"
        cells[end - 1] += ")"
    return cells


class _Layout(NamedTuple):
    """The columns of a format."""

    word: int
    predicate: int | None  # the column that marks predicates; None: found by the arguments
    arguments: int | None  # the first column of arguments; None: the one after the predicates
    after: int  # number of columns after the arguments
    n_columns: str  # for messages


_LAYOUTS: dict[Format, _Layout] = {
    # Nouns with a sense are marked too, so the predicate is the (V*) of its column of arguments.
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
    """Move the lines "#begin document" and "#end document" to the comments; any other "#" may be a word."""
    is_mark = [row[:2] in (["#begin", "document"], ["#end", "document"]) for row in block.rows]
    kept = [i for i, mark in enumerate(is_mark) if not mark]
    comments = [" ".join(row) for row, mark in zip(block.rows, is_mark) if mark]
    return Block([block.rows[i] for i in kept], [block.lines[i] for i in kept], comments)


def _propositions(path: str | Path, block: Block, layout: _Layout) -> Iterator[Proposition]:
    rows, lines = block.rows, block.lines
    width = len(rows[0])
    for row, line in zip(rows, lines):
        if len(row) != width:
            raise malformed(
                path, line, f"{width} columns, as on the first line of the sentence", str(len(row)), _FORMAT
            )
    predicate = layout.predicate if layout.arguments is not None else _predicate_column(rows)
    first = layout.arguments if layout.arguments is not None else None if predicate is None else predicate + 1
    if first is None or width < first + layout.after:
        raise malformed(path, lines[0], layout.n_columns, f"{width} columns", _FORMAT)
    columns = [_arguments(path, [row[column] for row in rows], lines) for column in range(first, width - layout.after)]
    if predicate is None:
        predicates = [_first_verb(path, spans, lines[0]) for spans in columns]
    else:
        predicates = [token for token, row in enumerate(rows) if row[predicate] != _NO_PREDICATE]
    if len(predicates) != len(columns):
        found = f"{len(predicates)} predicates and {len(columns)} columns of arguments"
        raise malformed(path, lines[0], layout.n_columns, found, _FORMAT)
    tokens = tuple(row[layout.word] for row in rows)
    for token, spans in zip(predicates, columns):
        yield Proposition(tokens, token, tags_of(spans, len(tokens)), tuple(predicates))


def _predicate_column(rows: list[list[str]]) -> int | None:
    """Return the last column with as many entries other than "-" as there are columns after it.

    It cannot be a column of arguments: there are at most as many of those as tokens.
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
    raise malformed(path, line, "a (V*) in every column of arguments", "a column without one", _FORMAT)


def _arguments(path: str | Path, cells: Sequence[str], lines: Sequence[int]) -> list[Span]:
    """Return the spans of one column of brackets."""
    spans: list[Span] = []
    label: str | None = None  # of the open span
    start = 0
    for token, (cell, line) in enumerate(zip(cells, lines)):
        match = _CELL.fullmatch(cell)
        if match is None:
            nested = "(" in cell[1:]
            expected = "arguments that are not nested" if nested else "an argument such as (A0*, *, *) or (A0*)"
            raise malformed(path, line, expected, short_repr(cell), _FORMAT)
        if match["label"]:
            if label is not None:
                raise malformed(path, line, f"{label} to end before another argument starts", short_repr(cell))
            label, start = match["label"], token
        if match["end"]:
            if label is None:
                raise malformed(path, line, "a bracket to open before it closes", short_repr(cell))
            spans.append(Span(label, start, token + 1))
            label = None
    if label is not None:
        raise malformed(path, lines[start], f"{label} to end within its sentence", f"only {short_repr(cells[start])}")
    return spans


def by_sentence(propositions: Iterable[Proposition]) -> Iterator[list[Proposition]]:
    """Yield the propositions of every sentence together.

    Raises:
        InputError: The proposition of a predicate is missing.
    """
    sentence: list[Proposition] = []
    for proposition in propositions:
        sentence.append(proposition)
        if len(sentence) == max(1, len(proposition.predicates)):  # without a predicate: one record with no tags
            yield sentence
            sentence = []
    if sentence:
        raise InputError(
            f"Expected the propositions of all {len(sentence[0].predicates)} predicates of a sentence, got "
            f"{len(sentence)} for {first_words(sentence[0])}."
        )


def columns_of(sentence: Sequence[Proposition]) -> Iterator[tuple[str, ...]]:
    """Return a row for every word of a sentence, given its propositions: word, predicate, arguments.

    Raises:
        InputError: The propositions belong to different sentences, or are not in order.
    """
    tokens, predicates = sentence[0].tokens, sentence[0].predicates
    for one, predicate in zip(sentence, predicates):
        if one.tokens != tokens or one.predicate != predicate:
            raise InputError(
                f"Expected the propositions of {first_words(sentence[0])} together and in order, got that of predicate "
                f"{one.predicate} of {first_words(one)}."
            )
    marks = [token if i in predicates else _NO_PREDICATE for i, token in enumerate(tokens)]
    return zip(tokens, marks, *(argument_cells(gold_tags(one)) for one in sentence if predicates))


class UnlabeledSentence(NamedTuple):
    """A sentence whose roles are to be predicted."""

    tokens: list[str]
    predicates: list[int] | None  # indices of tokens; None if predicates are to be found


def propositions_of(
    tokens: Sequence[str], words: Collection[str], given: Sequence[int] | None = None, place: Place | None = None
) -> Iterator[Proposition]:
    """Yield one unlabeled proposition for each predicate of a sentence; if it has none, one without a predicate.

    Args:
        tokens: The sentence.
        words: Words in lower case that are predicates, if `given` is None.
        given: The indices of the predicates.
        place: The position of the tokens in their text.
    """
    found = (i for i, token in enumerate(tokens) if token.lower() in words)
    predicates = tuple(given if given is not None else found)
    for predicate in predicates or (None,):
        yield Proposition(tuple(tokens), predicate, predicates=predicates, place=place)


def read_json_lines(path: str | Path) -> Iterator[UnlabeledSentence]:
    """Read lines {"tokens": ["She", "came"], "predicates": [1]}. Blank lines are skipped, other keys ignored."""
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield _sentence(path, number, line)


def _sentence(path: str | Path, number: int, line: str) -> UnlabeledSentence:
    content = parse_object(line, path, number, _JSON_FORMAT)
    tokens = content.get("tokens")
    if not _is_list_of(str, tokens) or not tokens:
        raise malformed(path, number, 'an object with "tokens", a list of strings', short_repr(line), _JSON_FORMAT)
    predicates = content.get("predicates")
    if predicates is None:
        return UnlabeledSentence(tokens, None)
    if not _is_list_of(int, predicates) or not all(0 <= i < len(tokens) for i in predicates):
        expected = f'"predicates" to be a list of token indices from 0 to {len(tokens) - 1}'
        raise malformed(path, number, expected, shorten(json.dumps(predicates)), _JSON_FORMAT)
    return UnlabeledSentence(tokens, predicates)


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)
