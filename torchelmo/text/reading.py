"""Tokens as treebanks write them, and as people do."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.errors import InputError
from torchelmo.files import atomic_write, read_lines
from torchelmo.text.tokenize import Tokenizer


def read_sentences(path: str, lang: str | None) -> Iterator[list[str]]:
    """The sentences of a text, blank lines skipped."""
    for sentences in read_paragraphs(path, lang):
        yield from sentences


def read_paragraphs(path: str, lang: str | None) -> Iterator[list[list[str]]]:
    """The sentences of every line; a blank line gives an empty list.

    Without a language a line is a sentence, with spaces between its tokens. "-" is standard input.
    """
    tokenizer = None if lang is None else Tokenizer(lang)
    for line in read_lines(path):
        if tokenizer is None:
            yield [tokens] if (tokens := line.split()) else []
        else:
            yield tokenizer.sentences(line)


# Not str.split(): a no-break space or an ideographic space may be part of a token.
_WHITE_SPACE = re.compile(r"[ \t]+")


class Block(NamedTuple):
    """The rows between two blank lines; at least one."""

    rows: list[list[str]]  # the columns of every row
    lines: list[int]  # the line number of every row, from 1
    comments: list[str]  # the comment lines since the block before, as they stand


def read_columns(path: str | Path, *, separator: str | None = None, comment: str | None = "#") -> Iterator[Block]:
    """The blocks of a plain or compressed file; columns stand between `separator`s (None: any spaces and tabs).

    Lines that begin with `comment` are comments; None where a token may begin with the sign.
    """
    block = Block([], [], [])
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip(" \t"):  # some files have the separator on their blank lines
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
    """Rows with tabs (or `separator`) between their columns, a blank line after every block; whole or not at all.

    A column that `read_columns` with the same `separator` would not read back is refused.
    """
    parting = set("\n \t" if separator is None else "\n" + separator)
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        for block in blocks:
            for row in block:
                for column in row:
                    if not column or parting & set(column) or column.endswith("\r"):
                        raise InputError(
                            f"{path}: expected columns without white space between their letters, got {column!r}, "
                            "which would not read back. Replace or remove it."
                        )
                stream.write((separator or "\t").join(row) + "\n")
            stream.write("\n")


def malformed(path: str | Path, line: int, expected: str, found: str) -> InputError:
    """The error for a line that cannot be read.

    >>> print(malformed("train.conll", 7, "a token and its tag", "1 column"))
    train.conll: line 7: expected a token and its tag, found 1 column. Correct that line.
    """
    return InputError(f"{path}: line {line}: expected {expected}, found {found}. Correct that line.")


def parse_object(line: str, path: str | Path, number: int) -> dict[str, Any]:
    """The object on line `number` of a file, or an error that names the place."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise malformed(path, number, "a JSON object", f"something else ({error}): {line[:40]!r}") from error
    if not isinstance(content, dict):
        raise malformed(path, number, "a JSON object", repr(line[:40]))
    return content


_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


def unescape(token: str) -> str:
    r"""Treebanks keep brackets and slashes for themselves and write others in their place.

    >>> [unescape(token) for token in ["-LRB-", "co-writer\\/director", "film"]]
    ['(', 'co-writer/director', 'film']
    """
    return _BRACKETS.get(token.upper(), token.replace(r"\/", "/").replace(r"\*", "*"))
