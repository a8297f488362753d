"""Read text files: sentences and paragraphs, columns in the style of CoNLL, JSON lines, treebank escapes."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.errors import ConfigError, InputError, short_repr, shorten
from torchelmo.files import atomic_write, parse_json, read_lines
from torchelmo.text.tokenize import Tokenizer


def read_sentences(path: str, lang: str | None) -> Iterator[list[str]]:
    """Yield the sentences of a text; blank lines are skipped. See `read_paragraphs`."""
    for sentences in read_paragraphs(path, lang):
        yield from sentences


def read_paragraphs(path: str, lang: str | None) -> Iterator[list[list[str]]]:
    """Yield the sentences of every line; a blank line gives an empty list.

    Args:
        path: A plain, .gz, .bz2 or .xz file, or "-" for standard input.
        lang: The language whose rules split a line into sentences and tokens. None: a line is a sentence, with spaces
            between its tokens.
    """
    tokenizer = None if lang is None else Tokenizer(lang)
    for line in read_lines(path):
        if tokenizer is None:
            yield [tokens] if (tokens := line.split()) else []
        else:
            yield tokenizer.sentences(line)


# Unlike str.split(), keep no-break spaces and ideographic spaces, which may be part of a token.
_WHITE_SPACE = re.compile(r"[ \t]+")


class Block(NamedTuple):
    """The rows between two blank lines, at least one."""

    rows: list[list[str]]  # the columns of every row
    lines: list[int]  # the line number of every row, from 1
    comments: list[str]  # the comment lines since the previous block


def read_columns(path: str | Path, *, separator: str | None = None, comment: str | None = "#") -> Iterator[Block]:
    """Read a file of columns with blank lines between blocks.

    Args:
        path: The file, plain or compressed.
        separator: The separator of columns; None for any number of spaces and tabs.
        comment: How comment lines start; None for a file without comments, in which a token may start with "#".

    Yields:
        The blocks of rows.
    """
    block = Block([], [], [])
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip(" \t"):  # some files have separators on blank lines
            if block.rows:
                yield block
                block = Block([], [], [])
        elif comment is not None and line.startswith(comment):
            block.comments.append(line)
        else:
            block.rows.append(line.split(separator) if separator else _WHITE_SPACE.split(line.strip(" \t")))
            block.lines.append(number)
    if block.rows:
        yield block


def write_columns(path: str | Path, blocks: Iterable[Iterable[Sequence[str]]], *, separator: str | None = None) -> None:
    """Write a file of columns atomically, with a blank line after every block.

    Args:
        path: The file to write.
        blocks: The blocks of rows.
        separator: The separator of columns; None writes tabs.

    Raises:
        InputError: A column is empty or contains white space, so that `read_columns` with the same `separator` would
            not read it back.
    """
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        for block in blocks:
            stream.write(format_columns(block, separator=separator, where=str(path)) + "\n")


def format_columns(block: Iterable[Sequence[str]], *, separator: str | None = None, where: str) -> str:
    """Return the lines of a block as `write_columns` writes them, without the blank line after it."""
    separators = set("\n \t" if separator is None else "\n" + separator)
    lines = []
    for row in block:
        for column in row:
            if not column or separators & set(column) or column.endswith("\r"):
                raise InputError(
                    f"{where}: expected columns that are not empty and contain no separator, "
                    f"got {short_repr(column)}. Replace or remove it."
                )
        lines.append((separator or "\t").join(row) + "\n")
    return "".join(lines)


def malformed(path: str | Path, line: int, expected: str, found: str, file_format: str = "") -> InputError:
    """Return the error for a line that cannot be read.

    Args:
        path: The file.
        line: The line number, from 1.
        expected: The expected content of the line.
        found: The content of the line.
        file_format: A description of the expected format, in case that the file has another one.

    >>> print(malformed("train.conll", 7, "a token and its tag", "1 column"))
    train.conll: line 7: expected a token and its tag, found 1 column. Correct that line.
    """
    advice = f"Correct that line if this is the right file. Expected format: {file_format}" if file_format else ""
    return InputError(f"{path}: line {line}: expected {expected}, found {found}. {advice or 'Correct that line.'}")


def parse_object(line: str, path: str | Path, number: int, file_format: str = "") -> dict[str, Any]:
    """Parse the JSON object on line `number` of a file.

    Raises:
        InputError: The line is not a JSON object. The message names the file and the line.
    """
    try:
        content = parse_json(line, "JSON")
    except ConfigError as error:
        found = f"{short_repr(line)} ({shorten(str(error))})"
        raise malformed(path, number, "a JSON object", found, file_format) from error
    if not isinstance(content, dict):
        raise malformed(path, number, "a JSON object", short_repr(line), file_format)
    return content


_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


def unescape(token: str) -> str:
    r"""Return a token without the escapes of treebanks for brackets, slashes and asterisks.

    >>> [unescape(token) for token in ["-LRB-", "co-writer\\/director", "film"]]
    ['(', 'co-writer/director', 'film']
    """
    return _BRACKETS.get(token.upper(), token.replace(r"\/", "/").replace(r"\*", "*"))
