"""Text of task data: how it is split into tokens, and where every token is in it.

The settings `lang` and `pretokenized` are part of `[data]` of a task, so that a trained task splits text in the same
way in training, in evaluation and in prediction.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

from torchelmo.config import Config
from torchelmo.errors import InputError, short_repr
from torchelmo.files import read_lines
from torchelmo.text.tokenize import align, tokenizer_for

Data = TypeVar("Data", bound="TextData")


class TextSource(Protocol):
    """A text file, or texts in memory."""

    @property
    def path(self) -> str: ...  # "-" is standard input

    @property
    def lang(self) -> str | None: ...  # a language code; None: already tokenized; "auto": as the settings say

    @property
    def texts(self) -> Sequence[Any] | None: ...  # instead of the file


class Place(NamedTuple):
    """The position of a sentence in its text."""

    line: int | None  # line of the file, from 1; None for a text in memory
    offsets: list[tuple[int, int]]  # start and end of every token, in characters of the line or text


class Sentence(NamedTuple):
    """A sentence of at least one token."""

    tokens: list[str]
    place: Place | None  # None if the tokens do not come from a text


@dataclass(frozen=True)
class TextData(Config):
    """[data]: how raw text is split into tokens, in training files that have raw text and in text to predict."""

    lang: str = "en"  # language of raw text, a code that spaCy knows
    pretokenized: bool = False  # text is already tokenized: one sentence per line, tokens separated by spaces

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of all sentences of a text."""
        return text.split() if self.pretokenized else tokenizer_for(self.lang).tokens(text)

    def sentences(self, text: str, line: int | None = None) -> list[Sentence]:
        """Return the sentences of a text.

        >>> TextData().sentences("Hi! It's me.", line=3)[0]
        Sentence(tokens=['Hi', '!'], place=Place(line=3, offsets=[(0, 2), (2, 3)]))
        """
        if self.pretokenized:
            split = [part.split() for part in text.split("\n") if part.strip()]
        else:
            split = tokenizer_for(self.lang).sentences(text)
        return [
            Sentence(tokens, Place(line, [(token.start, token.end) for token in found]))
            for tokens, found in zip(split, align(split, text))
        ]

    def sentences_of(self, text: str | Sequence[str]) -> list[Sentence]:
        """Return the sentences of a text in memory. A list of tokens is one sentence.

        Raises:
            InputError: The text is neither a string nor a list of tokens.
        """
        if isinstance(text, str):
            return self.sentences(text)
        if not isinstance(text, (list, tuple)) or not all(isinstance(token, str) and token for token in text):
            raise InputError(f"Expected a string or a list of tokens that are not empty, got {short_repr(text)}.")
        return [Sentence(list(text), None)] if text else []


def settings_of(source: TextSource, options: Data) -> Data:
    """Return the [data] settings for a source, which may choose another language or tokenization."""
    if source.lang == "auto":
        return options
    if source.lang is None:
        return replace(options, pretokenized=True)
    return replace(options, lang=source.lang, pretokenized=False)


def read_texts(source: TextSource) -> Iterator[tuple[int | None, Any]]:
    """Yield the lines of a file with their numbers, or the texts in memory with None."""
    if source.texts is None:
        yield from enumerate(read_lines(source.path), 1)
    else:
        yield from ((None, text) for text in source.texts)


def read_paragraphs(source: TextSource, options: TextData) -> Iterator[list[Sentence]]:
    """Yield the sentences of every line of a file, or of every text in memory; an empty list for a blank one.

    Raises:
        InputError: A text in memory is neither a string nor a list of tokens.
    """
    settings = settings_of(source, options)
    for line, text in read_texts(source):
        yield settings.sentences_of(text) if line is None else settings.sentences(text, line)


def read_sentences(source: TextSource, options: TextData) -> Iterator[Sentence]:
    """Yield the sentences of a file or of texts in memory."""
    for paragraph in read_paragraphs(source, options):
        yield from paragraph


def join_sentences(sentences: Iterable[Sentence]) -> Sentence:
    """Join the sentences of one text.

    >>> join_sentences(TextData().sentences("Hi! Ho.")).tokens
    ['Hi', '!', 'Ho', '.']
    """
    parts = list(sentences)
    tokens = [token for part in parts for token in part.tokens]
    places = [part.place for part in parts if part.place is not None]
    offsets = [offset for place in places for offset in place.offsets]
    return Sentence(tokens, Place(places[0].line, offsets) if places else None)


def place_record(place: Place | None) -> dict[str, Any]:
    """Return the line number and the character offsets of the tokens for a JSON record; empty if unknown."""
    if place is None:
        return {}
    return {**({} if place.line is None else {"line": place.line}), "offsets": [list(pair) for pair in place.offsets]}


def span_record(tokens: Sequence[str], start: int, end: int, place: Place | None) -> dict[str, Any]:
    """Return the tokens from `start` to `end` for a JSON record, with their characters if they are known."""
    record: dict[str, Any] = {"start": start, "end": end}
    if place is not None:
        record |= {"start_char": place.offsets[start][0], "end_char": place.offsets[end - 1][1]}
    return record | {"text": " ".join(tokens[start:end])}
