"""Propositions to be labelled: their predicates are given, or looked for by their words."""

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.files import read_lines
from torchelmo.tasks.columns import malformed
from torchelmo.tasks.json_lines import parse_object
from torchelmo.tasks.srl.data import Proposition


class Sentence(NamedTuple):
    tokens: list[str]
    predicates: list[int] | None  # None where they are to be found


def propositions_of(
    tokens: Sequence[str], words: Collection[str], given: Sequence[int] | None = None
) -> Iterator[Proposition]:
    """One for each predicate: those that are given, else the tokens that are among `words` in lower case.

    Where there is none, one that says so.
    """
    found = (i for i, token in enumerate(tokens) if token.lower() in words)
    predicates = tuple(given if given is not None else found)
    for predicate in predicates or (None,):
        yield Proposition(tuple(tokens), predicate, predicates=predicates)


def read_json_lines(path: str | Path) -> Iterator[Sentence]:
    """Lines {"tokens": ["She", "came"], "predicates": [1]}; blank ones are skipped, other keys are not looked at."""
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield _sentence(path, number, line)


def _sentence(path: str | Path, number: int, line: str) -> Sentence:
    content = parse_object(line, path, number)
    tokens = content.get("tokens")
    if not _is_list_of(str, tokens) or not tokens:
        raise malformed(path, number, 'an object with "tokens", a list of at least one string', f"{line[:60]!r}")
    predicates = content.get("predicates")
    if predicates is None:
        return Sentence(tokens, None)
    if not _is_list_of(int, predicates) or not all(0 <= i < len(tokens) for i in predicates):
        expected = f'"predicates" to be a list of token numbers from 0 to {len(tokens) - 1}'
        raise malformed(path, number, expected, f"{json.dumps(predicates)[:60]}")
    return Sentence(tokens, predicates)


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)
