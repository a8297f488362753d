"""Text files → sentences: raw lines by spaCy's rules for a language, or lines that are already split into tokens."""

from collections.abc import Iterator

from torchelmo.files import read_lines
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
