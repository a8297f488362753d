"""Labelled trees: "(3 (2 It) (4 works))". Every phrase of a sentence has a label, words included."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torchelmo.errors import InputError
from torchelmo.tasks.treebank import unescape

N_LABELS = 5
_LABELS = {str(label): label for label in range(N_LABELS)}
# Not \s: "2 1/2" with a no-break space is one word of the Stanford Sentiment Treebank.
_PARTS = re.compile(r"[()]|[^ \t()]+")


class Tree(NamedTuple):
    """A word (then there are no children) or a phrase of others. `str` writes it as it was read."""

    label: int  # 0 very negative … 4 very positive
    word: str | None
    children: tuple["Tree", ...] = ()

    def subtrees(self) -> Iterator["Tree"]:
        """The tree itself, then those under it, from left to right."""
        waiting = [self]
        while waiting:
            tree = waiting.pop()
            yield tree
            waiting.extend(reversed(tree.children))

    def phrases(self) -> Iterator["Phrase"]:
        """What the subtrees stand for, in their order: the whole sentence first."""
        trees, tokens = list(self.subtrees()), self.tokens()
        sizes: list[int] = []  # from the right, children stand before their parents
        finished: list[int] = []
        for tree in reversed(trees):
            sizes.append(sum(finished.pop() for _ in tree.children) if tree.children else 1)
            finished.append(sizes[-1])
        start = 0
        for tree, size in zip(trees, reversed(sizes)):
            yield Phrase(tokens[start : start + size], tree.label)
            start += tree.word is not None

    def tokens(self) -> tuple[str, ...]:
        """Its words, with brackets and slashes as people write them."""
        return tuple(unescape(tree.word) for tree in self.subtrees() if tree.word is not None)

    def __str__(self) -> str:
        inside = self.word if self.word is not None else " ".join(map(str, self.children))
        return f"({self.label} {inside})"


class Phrase(NamedTuple):
    tokens: tuple[str, ...]
    label: int


class _Open(NamedTuple):
    """A bracket that is not closed yet."""

    column: int
    label: int
    words: list[str]
    children: list[Tree]


def parse_tree(text: str, path: str | Path, line: int) -> Tree:
    """The one tree of a line; `path` and `line` are for the error.

    >>> parse_tree("(3 (2 It) (4 works))", "train.txt", 1).tokens()
    ('It', 'works')
    """

    def wrong(column: int, expected: str, found: str) -> InputError:
        what = repr(found) if found else "the end of the line"
        return InputError(
            f"{path}: line {line}: column {column}: expected {expected}, found {what}. "
            "A tree looks like (3 (2 It) (4 works)), one on a line."
        )

    opened: list[_Open] = []
    parts = [(match.start() + 1, match[0]) for match in _PARTS.finditer(text)]
    end = (len(text) + 1, "")
    place = 0
    while place < len(parts):
        column, part = parts[place]
        place += 1
        if part == "(":
            if opened and opened[-1].words:
                raise wrong(column, f"')' after the word {opened[-1].words[0]!r}", part)
            label_column, label = parts[place] if place < len(parts) else end
            if label not in _LABELS:
                raise wrong(label_column, f"a label from 0 to {N_LABELS - 1} after '('", label)
            opened.append(_Open(column, _LABELS[label], [], []))
            place += 1
        elif not opened:
            raise wrong(column, "a tree that begins with '('", part)
        elif part != ")":
            if opened[-1].words or opened[-1].children:
                raise wrong(column, f"one word, or phrases in brackets, after the label {opened[-1].label}", part)
            opened[-1].words.append(part)
        else:
            _, number, words, children = opened.pop()
            if not words and not children:
                raise wrong(column, "a word or phrases after the label", part)
            tree = Tree(number, words[0] if words else None, tuple(children))
            if opened:
                opened[-1].children.append(tree)
            elif place < len(parts):
                raise wrong(parts[place][0], "the end of the line after the tree", parts[place][1])
            else:
                return tree
    if opened:
        raise wrong(end[0], f"')' for the '(' in column {opened[-1].column}", end[1])
    raise wrong(1, "a tree that begins with '('", "")
