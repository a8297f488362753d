"""A sentence some of whose words are tagged with senses."""

from typing import NamedTuple

from torchelmo.analysis.senses import Word


class TaggedWord(NamedTuple):
    start: int  # it is tokens[start:end] of its sentence
    end: int
    word: Word  # lemma and part of speech
    senses: tuple[str, ...]  # its sense keys: where there are several, each of them is right


class TaggedSentence(NamedTuple):
    tokens: list[str]
    words: list[TaggedWord]


def add_word(tokens: list[str], text: str) -> tuple[int, int]:
    """Append the parts of a word; say where they stand.

    >>> tokens = ["He"]
    >>> add_word(tokens, "took_part"), tokens
    ((1, 3), ['He', 'took', 'part'])
    """
    start = len(tokens)
    tokens += text.replace("_", " ").split() or [text]
    return start, len(tokens)
