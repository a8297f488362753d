"""Named entities in columns: the token first, its tag last, and any others (CoNLL-2003 has four) between them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchelmo.tasks.columns import Block, malformed, read_columns, write_columns
from torchelmo.tasks.spans import Scheme, from_bio, to_bio
from torchelmo.tasks.tagging import Tagged, gold_tags, require_sentences

_DOCUMENT = "-DOCSTART-"  # a line of its own before every document of CoNLL-2003


@dataclass(frozen=True)
class NerData:
    """[data]: "auto" reads BIO, IOB1 and BIOES; a scheme that is named is checked."""

    scheme: Literal["auto", "bio", "iob1", "bioes"] = "auto"


def read(path: str | Path, options: NerData) -> list[Tagged]:
    """Sentences with BIO tags, whatever the scheme of the file."""
    sentences: list[Tagged] = []
    n_columns = 0
    for block in read_columns(path, comment=None):  # "#" is a token like any other
        rows, lines = _without_documents(block)
        for row, line in zip(rows, lines):
            n_columns = n_columns or len(row)
            if len(row) < 2:
                raise malformed(path, line, "a token and its tag", f"one column, {row[0]!r}")
            if len(row) != n_columns:
                raise malformed(path, line, f"{n_columns} columns, as in the lines before it", str(len(row)))
        if rows:
            tags = to_bio([row[-1] for row in rows], options.scheme, str(path), lines=lines)
            sentences.append(Tagged([row[0] for row in rows], tags))
    return require_sentences(path, sentences, "a token and its tag on every line")


def write(path: str | Path, sentences: Iterable[Tagged], scheme: Scheme = "bio") -> None:
    """Two columns, token and tag, as in W-NUT 2017; `read` reads them back."""
    blocks = (zip(sentence.tokens, from_bio(gold_tags(sentence), scheme)) for sentence in sentences)
    write_columns(path, blocks)


def _without_documents(block: Block) -> tuple[list[list[str]], list[int]]:
    kept = [i for i, row in enumerate(block.rows) if row[0] != _DOCUMENT]
    return [block.rows[i] for i in kept], [block.lines[i] for i in kept]
