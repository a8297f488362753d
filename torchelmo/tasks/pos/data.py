"""CoNLL-U: ten columns, of which the word and one of its two tags are read."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchelmo.errors import InputError
from torchelmo.tasks.columns import malformed, read_columns, write_columns
from torchelmo.tasks.tagging import Tagged, gold_tags, require_sentences

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
