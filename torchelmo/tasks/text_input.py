"""Text for `predict`: raw lines by spaCy's rules, or lines that are already split into tokens."""

from collections.abc import Iterator

from torchelmo.files import read_lines
from torchelmo.tasks.task import Source
from torchelmo.text.tokenize import Tokenizer


def read_sentences(source: Source) -> Iterator[list[str]]:
    """The sentences of a text, blank lines skipped."""
    for sentences in read_paragraphs(source):
        yield from sentences


def read_paragraphs(source: Source) -> Iterator[list[list[str]]]:
    """The sentences of every line; a blank line gives an empty list."""
    tokenizer = None if source.pretokenized else Tokenizer(source.lang)
    for line in read_lines(source.path):
        if tokenizer is None:
            yield [tokens] if (tokens := line.split()) else []
        else:
            yield tokenizer.sentences(line)
