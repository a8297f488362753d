"""WordNet's index.sense: the senses of every word, the most usual one first."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from torchelmo.errors import InputError
from torchelmo.files import read_lines
from torchelmo.tasks.columns import malformed

Word: TypeAlias = tuple[str, str]  # lemma with _ for spaces, and part of speech: NOUN, VERB, ADJ or ADV
Senses: TypeAlias = Mapping[Word, Sequence[str]]  # the sense keys of each word in WordNet's order

PARTS_OF_SPEECH = ("NOUN", "VERB", "ADJ", "ADV")

# lemma%ss_type:lex_filenum:lex_id:head_word:head_id
_KEY = re.compile(r"(.+)%([1-5]):\d\d:\d\d:[^:\s]*:(?:\d\d)?")
_TYPES = dict(zip("12345", [*PARTS_OF_SPEECH, "ADJ"]))  # 5 is an adjective that clusters around another


def word_of(key: str) -> Word | None:
    """The word that a sense key belongs to; None if it is no sense key.

    >>> word_of("over-all%5:00:00:gross:00")
    ('over-all', 'ADJ')
    """
    found = _KEY.fullmatch(key)
    return None if found is None else (found[1], _TYPES[found[2]])


def split_keys(keys: str) -> list[str]:
    """SemCor writes the senses of a word that has several as one key.

    >>> split_keys("year%1:28:02::;1:28:01::")
    ['year%1:28:02::', 'year%1:28:01::']
    """
    lemma, sign, senses = keys.rpartition("%")
    return [lemma + sign + sense for sense in senses.split(";")]


def read_senses(path: str | Path) -> Senses:
    """index.sense, whose lines are: sense key, synset offset, sense number, tag count."""
    numbered: dict[Word, list[tuple[int, str]]] = {}
    for line_number, line in enumerate(read_lines(path), 1):
        columns = line.split()
        if not columns:
            continue
        word = word_of(columns[0])
        if word is None or len(columns) != 4 or not columns[2].isdecimal():
            raise malformed(path, line_number, "a sense key, an offset, a sense number and a count", repr(line[:60]))
        numbered.setdefault(word, []).append((int(columns[2]), columns[0]))
    if not numbered:
        raise InputError(f"{path}: expected the index.sense of WordNet, found no sense in it.")
    return {word: [key for _, key in sorted(senses)] for word, senses in numbered.items()}
