"""Strings → sentences → tokens, by spaCy's rules for a language. No model is downloaded.

spaCy splits each word between spaces on its own, so a word is split once and remembered: many times faster than
whole documents. Where a language has rules that join words over a space ("EE. UU."), whole texts are split.
A sentence ends after . ! ? (or their like in other scripts) and the punctuation that follows, and with its text.
"""

import importlib
import re
import threading
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.errors import ConfigError

_MOST_WORDS = 500_000  # remembered at once: some 200 MB
_SPACE = re.compile(r"(\s+)")
_kept = threading.local()  # the tokenizers of each thread

# What a token is to the end of a sentence. White space counts, though it is not a token of the result.
_ORDINARY, _TERMINATOR, _PUNCTUATION = range(3)


class Tokenized(NamedTuple):
    """The sentences of many texts in a row, in the form that costs little to hold and to send."""

    types: list[str]  # the distinct tokens, in the order of their first occurrence
    ids: npt.NDArray[np.int64]  # (n_tokens,): every token as an index into `types`
    lengths: npt.NDArray[np.int64]  # (n_sentences,): its number of tokens, at least 1
    texts: npt.NDArray[np.int64]  # (n_sentences,): which text it came from


class Tokenizer:
    """
    >>> Tokenizer("en").sentences("I took a bow. It's mine!")
    [['I', 'took', 'a', 'bow', '.'], ['It', "'s", 'mine', '!']]
    """

    def __init__(self, lang: str = "en") -> None:
        self.lang = lang
        self._words  # noqa: B018  (an unknown language is an error here, not at the first text)

    def sentences(self, text: str) -> list[list[str]]:
        """The tokens of each sentence; white space is not a token."""
        types, ids, lengths, _ = self.encode([text])
        tokens = [types[i] for i in ids]
        ends = np.cumsum(lengths).tolist()
        return [tokens[start:end] for start, end in zip([0, *ends], ends)]

    def tokens(self, text: str) -> list[str]:
        """The tokens of all sentences in a row."""
        return [token for sentence in self.sentences(text) for token in sentence]

    def encode(self, texts: Sequence[str]) -> Tokenized:
        """`sentences` for many texts at once, as numbers: the fast way to read a large text."""
        words = self._words
        pieces = [words.split(text) for text in texts]
        ids = np.fromiter(chain.from_iterable(pieces), dtype=np.int64)
        text_of = np.repeat(np.arange(len(pieces)), list(map(len, pieces)))
        sentence = np.cumsum(_starts(np.frombuffer(words.kinds, dtype=np.int8)[ids], text_of)) - 1
        real = ids != words.SPACE_ID
        ids, text_of, sentence = ids[real], text_of[real], sentence[real]
        _, first, lengths = np.unique(sentence, return_index=True, return_counts=True)
        distinct, place = _in_order_of_occurrence(ids)
        result = Tokenized([words.types[i] for i in distinct], place, lengths, text_of[first])
        if max(len(words), len(words.types)) > _MOST_WORDS:  # whole texts are split into types, with no words between
            del self._words
        return result

    @cached_property
    def _words(self) -> "_Words":
        spacy = importlib.import_module("spacy")  # takes a second: only those who pass strings wait for it
        try:
            return _Words(spacy.blank(self.lang).tokenizer)
        except ImportError as error:
            raise ConfigError(
                f"Language {self.lang!r}: expected a code that spaCy has rules for, such as en, de or xx (any "
                f"language): {error} Install what that names, or pass tokens instead of strings."
            ) from error


def tokenizer_for(lang: str) -> Tokenizer:
    """The tokenizer of a language that this thread keeps: to build one takes longer than most texts do.

    One for each thread, because what a tokenizer remembers is not safe to share.
    """
    tokenizers: dict[str, Tokenizer] = _kept.__dict__
    if lang not in tokenizers:
        tokenizers[lang] = Tokenizer(lang)
    return tokenizers[lang]


class _Words(dict[str, tuple[int, ...]]):
    """Word between spaces -> its tokens, as numbers: place i of `types` and `kinds`."""

    SPACE_ID = 0

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        tokenizing, sentencizing = map(importlib.import_module, ("spacy.tokenizer", "spacy.pipeline"))
        self._terminators = frozenset(sentencizing.Sentencizer.default_punct_chars)
        self._word_by_word = type(tokenizer) is tokenizing.Tokenizer and not any(
            len(rule.split()) > 1 or (rule.strip() and rule != rule.strip()) for rule in tokenizer.rules
        )
        self.types, self.kinds = [" "], bytearray([_ORDINARY])  # bytes, which NumPy reads where they stand
        self._numbers = {" ": self.SPACE_ID}

    def split(self, text: str) -> Sequence[int]:
        """The tokens of `text`, and SPACE_ID for white space other than one space after a word."""
        if not self._word_by_word:
            return self._tokens_of(text)
        words = text.split()
        if text.removesuffix(" ") != " ".join(words):
            words = _with_spaces(text)
        return list(chain.from_iterable(map(self.__getitem__, words)))

    def __missing__(self, word: str) -> tuple[int, ...]:
        self[word] = numbers = self._tokens_of(word)
        return numbers

    def _tokens_of(self, text: str) -> tuple[int, ...]:
        return tuple(self._number(token) for token in self._tokenizer(text))

    def _number(self, token: Any) -> int:
        text: str = " " if token.is_space else token.text
        number = self._numbers.setdefault(text, len(self.types))
        if number == len(self.types):
            self.types.append(text)
            ordinary = _PUNCTUATION if token.is_punct else _ORDINARY
            self.kinds.append(_TERMINATOR if text in self._terminators else ordinary)
        return number


def _with_spaces(text: str) -> list[str]:
    """The words of `text`, and the white space between them that spaCy makes a token of.

    >>> _with_spaces(" a b  c\\td ")
    [' ', 'a', 'b', ' ', 'c', '\\t', 'd']
    """
    words = _SPACE.split(text)
    # A space after a word belongs to the word; what stands beyond it is a token.
    words[1::2] = [space if i == 0 and not words[0] else space.removeprefix(" ") for i, space in enumerate(words[1::2])]
    return [word for word in words if word]


def _starts(kinds: npt.NDArray[np.int8], text_of: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """True where a sentence starts: where a text does, and at the first ordinary token after a terminator."""
    starts = np.ones(len(kinds), dtype=np.bool_)
    starts[1:] = text_of[1:] != text_of[:-1]
    relevant = np.flatnonzero(kinds != _PUNCTUATION)
    before, here = relevant[:-1], relevant[1:]
    ends = (kinds[before] == _TERMINATOR) & (kinds[here] == _ORDINARY) & (text_of[before] == text_of[here])
    starts[here[ends]] = True
    return starts


def _in_order_of_occurrence(ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The distinct numbers by their first place, and every number as an index into them."""
    distinct, first, place = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[place]
