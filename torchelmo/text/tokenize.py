"""Split strings into sentences and tokens by spaCy's rules for a language. Nothing is downloaded.

spaCy splits every word between two spaces independently of the others, so this module splits a distinct word once and
caches the result, which is many times faster. Some languages have rules that join words over a space ("EE. UU."); for
these, whole texts are split. A sentence ends after . ! ? (or their counterparts in other scripts) and the punctuation
that follows, and at the end of its text.
"""

import importlib
import importlib.util
import logging
import re
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.errors import ConfigError, InputError, short_repr

log = logging.getLogger(__name__)

_MAX_WORDS = 500_000  # in the cache, about 200 MB
_MAX_CHARACTERS = 50_000_000  # of the tokens in the cache
_MAX_CACHED_LENGTH = 200  # longer words are rare, and not worth a place in the cache
_LONG_WORD = re.compile(r"\S{500}(?=\S)")
_SPACE = re.compile(r"(\s+)")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Thai, Lao, Tibetan, Myanmar, Khmer, Japanese and Chinese, which put no spaces between words.
_WITHOUT_SPACES = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]{12,}")
_thread_tokenizers = threading.local()

# The role of a token at the end of a sentence. White space has a role too, though it is not a token of the result.
_ORDINARY, _TERMINATOR, _PUNCTUATION = range(3)


class Token(NamedTuple):
    """A token and its place in the text: `text[start:end]`."""

    text: str
    start: int
    end: int


class Tokenized(NamedTuple):
    """The sentences of many texts in a row, in a form that is compact in memory and cheap to send."""

    types: list[str]  # the distinct tokens, in the order of their first occurrence
    ids: npt.NDArray[np.int64]  # (n_tokens,): every token as an index into `types`
    lengths: npt.NDArray[np.int64]  # (n_sentences,): the number of tokens of each sentence, at least 1
    texts: npt.NDArray[np.int64]  # (n_sentences,): the index of the text that it belongs to


class Tokenizer:
    """Split text into sentences and tokens by the rules of a language.

    White space is never a token. Half of a surrogate pair, which no encoding can represent, is read as U+FFFD. A word
    of more than 500 characters is split into pieces of 500.

    Args:
        lang: A language code of spaCy, such as "en" or "de"; "xx" has rules for any language with spaces between words.

    Raises:
        ConfigError: spaCy has no rules for the language, or needs another package for it.

    >>> Tokenizer("en").sentences("I took a bow. It's mine!")
    [['I', 'took', 'a', 'bow', '.'], ['It', "'s", 'mine', '!']]
    """

    def __init__(self, lang: str = "en") -> None:
        self.lang = lang
        self._warned = False
        self._words  # noqa: B018  (an unknown language raises here, not at the first text)

    def sentences(self, text: str) -> list[list[str]]:
        """Return the tokens of each sentence."""
        types, ids, lengths, _ = self.encode([text])
        tokens = [types[i] for i in ids]
        ends = np.cumsum(lengths).tolist()
        return [tokens[start:end] for start, end in zip([0, *ends], ends)]

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of all sentences in one list."""
        return [token for sentence in self.sentences(text) for token in sentence]

    def spans(self, text: str) -> list[list[Token]]:
        """Return the tokens of each sentence with their character offsets.

        >>> Tokenizer("en").spans("It's mine!")
        [[Token(text='It', start=0, end=2), Token(text="'s", start=2, end=4), Token(text='mine', start=5, end=9), \
Token(text='!', start=9, end=10)]]
        """
        return align(self.sentences(text), text)

    def encode(self, texts: Sequence[str]) -> Tokenized:
        """Split many texts at once and return the tokens as numbers: the fastest way to read a large text."""
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
        self._warn_of_unsplit_text(result.types)
        if words.is_full():
            del self._words
        return result

    @cached_property
    def _words(self) -> "_WordCache":
        spacy = importlib.import_module("spacy")  # takes a second, so it is imported only for strings
        try:
            return _WordCache(spacy.blank(self.lang).tokenizer)
        except ImportError as error:
            known = re.fullmatch("[a-z]{2,3}", self.lang) and importlib.util.find_spec(f"spacy.lang.{self.lang}")
            problem = (
                f"spaCy needs another package for it ({str(error).partition(chr(10))[0].strip()}). Install that package"
                if known
                else "expected a code that spaCy has rules for, such as en, de, zh or xx (any language with spaces "
                "between words). Choose one of them"
            )
            raise ConfigError(
                f"Language {self.lang!r}: {problem}, or split the text with a tokenizer of your choice and "
                "pass tokens (files: `pretokenized`)."
            ) from error

    def _warn_of_unsplit_text(self, types: list[str]) -> None:
        """Warn once of a script without spaces that these rules do not split: a sentence would become one token."""
        if self._warned:
            return
        for token in types:
            if len(token) >= 12 and _WITHOUT_SPACES.search(token):
                self._warned = True
                log.warning(
                    "The text is in a script without spaces between words, which the rules for language %r do not "
                    "split: %r… is one token. Set `lang` to zh for Chinese (ja, th and others need another package), "
                    "or split the text with a tokenizer for its language and pass tokens (files: `pretokenized`).",
                    self.lang,
                    token[:12],
                )
                return


def tokenizer_for(lang: str) -> Tokenizer:
    """Return this thread's tokenizer for a language, which takes long to build.

    Every thread has its own, because the cache of a tokenizer is not thread-safe.
    """
    tokenizers: dict[str, Tokenizer] = _thread_tokenizers.__dict__
    if lang not in tokenizers:
        tokenizers[lang] = Tokenizer(lang)
    return tokenizers[lang]


def align(sentences: Iterable[Sequence[str]], text: str) -> list[list[Token]]:
    """Add character offsets to the tokens of a text. They must cover all of it but white space, in order.

    Raises:
        InputError: A token is not found, or a part of the text has no token.

    >>> align([["a", "bow"]], "a  bow")
    [[Token(text='a', start=0, end=1), Token(text='bow', start=3, end=6)]]
    """
    text = replace_surrogates(text)
    end = 0
    aligned = []
    for sentence in sentences:
        tokens = []
        for token in sentence:
            start = text.find(token, end)
            if start < 0 or text[end:start].strip():
                raise InputError(
                    f"Expected the token {short_repr(token)} after character {end} of its text, found "
                    f"{text[end : end + 40]!r}. Tokens must be parts of the text, in its order."
                )
            end = start + len(token)
            tokens.append(Token(token, start, end))
        aligned.append(tokens)
    if text[end:].strip():
        raise InputError(f"Expected tokens for all of a text, found none for its end {text[end : end + 40]!r}.")
    return aligned


def place_tokens(tokens: Iterable[str]) -> list[Token]:
    """Add character offsets to tokens, as they are in the tokens joined by spaces.

    >>> place_tokens(["a", "bow"])
    [Token(text='a', start=0, end=1), Token(text='bow', start=2, end=5)]
    """
    placed, start = [], 0
    for token in tokens:
        placed.append(Token(token, start, start + len(token)))
        start += len(token) + 1
    return placed


def find_tokens(tokens: Sequence[Token], start: int, end: int) -> list[int]:
    """Return the positions of the tokens that have a character in common with `text[start:end]`.

    >>> find_tokens([Token("a", 0, 1), Token("bow", 2, 5), Token(".", 5, 6)], 3, 6)
    [1, 2]
    """
    return [i for i, token in enumerate(tokens) if max(token.start, start) < min(token.end, end)]


def replace_surrogates(text: str) -> str:
    """Replace every half of a surrogate pair by U+FFFD, which keeps the offsets of the other characters."""
    return _SURROGATE.sub("\ufffd", text)


class _WordCache(dict[str, tuple[int, ...]]):
    """Map a word between spaces to its tokens, as indices of `types` and `kinds`."""

    SPACE_ID = 0

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        tokenizing, sentencizing = map(importlib.import_module, ("spacy.tokenizer", "spacy.pipeline"))
        self._terminators = frozenset(sentencizing.Sentencizer.default_punct_chars)
        self._by_rules = type(tokenizer) is tokenizing.Tokenizer  # others have a model or a dictionary
        self._word_by_word = self._by_rules and not any(
            len(rule.split()) > 1 or (rule.strip() and rule != rule.strip()) for rule in tokenizer.rules
        )
        self.types, self.kinds = [" "], bytearray([_ORDINARY])  # NumPy reads the bytes without a copy
        self._numbers = {" ": self.SPACE_ID}
        self._n_characters = 0

    def split(self, text: str) -> Sequence[int]:
        """Return the tokens of `text`, with SPACE_ID for white space other than one space after a word."""
        text = replace_surrogates(text)
        if self._by_rules:
            text = _LONG_WORD.sub(r"\g<0> ", text)  # spaCy's time grows with the square of the length of a word
        if not self._word_by_word:
            return self._tokens_of(text)
        words = text.split()
        if text.removesuffix(" ") != " ".join(words):
            words = _with_spaces(text)
        return list(chain.from_iterable(map(self.__getitem__, words)))

    def is_full(self) -> bool:
        """Whether the cache has grown so large that it should be replaced by a new one."""
        return max(len(self), len(self.types)) > _MAX_WORDS or self._n_characters > _MAX_CHARACTERS

    def __missing__(self, word: str) -> tuple[int, ...]:
        numbers = self._tokens_of(word)
        if len(word) <= _MAX_CACHED_LENGTH:
            self[word] = numbers
        return numbers

    def _tokens_of(self, text: str) -> tuple[int, ...]:
        return tuple(self._number(token) for token in self._tokenizer(text))

    def _number(self, token: Any) -> int:
        text: str = " " if token.is_space else token.text
        number = self._numbers.setdefault(text, len(self.types))
        if number == len(self.types):
            self.types.append(text)
            self._n_characters += len(text)
            ordinary = _PUNCTUATION if token.is_punct else _ORDINARY
            self.kinds.append(_TERMINATOR if text in self._terminators else ordinary)
        return number


def _with_spaces(text: str) -> list[str]:
    """Return the words of `text`, and the white space between them that spaCy makes a token of.

    >>> _with_spaces(" a b  c\\td ")
    [' ', 'a', 'b', ' ', 'c', '\\t', 'd']
    """
    words = _SPACE.split(text)
    # One space after a word belongs to the word; white space beyond it is a token.
    words[1::2] = [space if i == 0 and not words[0] else space.removeprefix(" ") for i, space in enumerate(words[1::2])]
    return [word for word in words if word]


def _starts(kinds: npt.NDArray[np.int8], text_of: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mark the starts of sentences: the start of a text, and the first ordinary token after a terminator."""
    starts = np.ones(len(kinds), dtype=np.bool_)
    starts[1:] = text_of[1:] != text_of[:-1]
    relevant = np.flatnonzero(kinds != _PUNCTUATION)
    before, here = relevant[:-1], relevant[1:]
    ends = (kinds[before] == _TERMINATOR) & (kinds[here] == _ORDINARY) & (text_of[before] == text_of[here])
    starts[here[ends]] = True
    return starts


def _in_order_of_occurrence(ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct numbers by first occurrence, and every number as an index into them."""
    distinct, first, place = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[place]
