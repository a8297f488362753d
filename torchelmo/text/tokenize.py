"""Strings → sentences → tokens, by spaCy's rules for a language. No model is downloaded."""

import importlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from torchelmo.errors import ConfigError

# spaCy refuses longer texts only because its statistical models would need much memory; rules do not.
_LONGEST_TEXT = 1_000_000_000


class Tokenizer:
    """
    >>> Tokenizer("en").sentences("I took a bow. It's mine!")
    [['I', 'took', 'a', 'bow', '.'], ['It', "'s", 'mine', '!']]
    """

    def __init__(self, lang: str = "en") -> None:
        self.lang = lang
        self._pipeline  # noqa: B018  (an unknown language is an error here, not at the first text)

    def sentences(self, text: str) -> list[list[str]]:
        """The tokens of each sentence; white space is not a token."""
        return next(self.pipe([text]))

    def pipe(self, texts: Iterable[str]) -> Iterator[list[list[str]]]:
        """`sentences` for many texts, in their order."""
        for text in texts:
            document = self._pipeline(text)
            sentences = ([token.text for token in span if not token.is_space] for span in document.sents)
            yield [tokens for tokens in sentences if tokens]

    def tokens(self, text: str) -> list[str]:
        """The tokens of all sentences in a row."""
        return [token for sentence in self.sentences(text) for token in sentence]

    @cached_property
    def _pipeline(self) -> Any:
        spacy = importlib.import_module("spacy")  # takes a second: only those who pass strings wait for it
        try:
            pipeline = spacy.blank(self.lang)
        except ImportError as error:
            raise ConfigError(
                f"Language {self.lang!r}: expected a code that spaCy has rules for, such as en, de or xx (any "
                f"language): {error} Install what that names, or pass tokens instead of strings."
            ) from error
        pipeline.add_pipe("sentencizer")
        pipeline.max_length = _LONGEST_TEXT
        return pipeline
