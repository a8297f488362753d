"""A text to find answers in: its tokens, where each stands in it, and the windows that a model reads it by."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchelmo.errors import InputError
from torchelmo.text.tokenize import Tokenizer


class Window(NamedTuple):
    """What the model reads at once."""

    start: int  # the passage's token that it begins with
    sentences: list[list[str]]  # one, or as many as go through the biLM each by itself

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.sentences))


class Passage(NamedTuple):
    text: str
    offsets: list[tuple[int, int]]  # of every token: text[start:end] is the token
    sentences: list[int]  # the token that each sentence begins with
    windows: list[Window]

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """The fewest tokens, first and last, that cover text[start:end]; None where no token stands.

        >>> make_passage("It's Jan.", ["It", "'s", "Jan", "."]).span(5, 8)
        (2, 2)
        """
        first = bisect_right(self.offsets, start, key=lambda token: token[1])
        last = bisect_left(self.offsets, end, key=lambda token: token[0]) - 1
        return (first, last) if first <= last and start < end else None

    def marked(self, start: int, end: int) -> str:
        """The sentence (or sentences) around text[start:end] on one line, with brackets around those characters."""
        covered = self.span(start, end) or (0, 0)
        begin = self.sentences[bisect_right(self.sentences, covered[0]) - 1]
        after = bisect_right(self.sentences, covered[1])
        stop = self.sentences[after] - 1 if after < len(self.sentences) else len(self.offsets) - 1
        left, right = self.offsets[begin][0], self.offsets[stop][1]
        return " ".join(f"{self.text[left:start]}[{self.text[start:end]}]{self.text[end:right]}".split())


def make_passage(
    text: str,
    tokens: Sequence[str],
    *,
    sentences: Sequence[int] = (0,),
    split_sentences: bool = False,
    window: int | None = None,
) -> Passage:
    """`sentences` are the tokens that sentences begin with. A longer text is read by windows of `window` tokens,
    each half a window on from the one before; without `window` it is read as a whole."""
    starts = _window_starts(len(tokens), window)
    windows = []
    for start in starts:
        end = len(tokens) if window is None else min(start + window, len(tokens))
        cuts = [start, *(cut for cut in sentences if start < cut < end)] if split_sentences else [start]
        windows.append(Window(start, [list(tokens[i:j]) for i, j in zip(cuts, [*cuts[1:], end])]))
    return Passage(text, locate(text, tokens), list(sentences), windows)


def locate(text: str, tokens: Iterable[str]) -> list[tuple[int, int]]:
    """Where each token stands: all of `text` but white space, in order.

    >>> locate("I  can't", ["I", "ca", "n't"])
    [(0, 1), (3, 5), (5, 8)]
    """
    offsets, end = [], 0
    for token in tokens:
        start = text.find(token, end)
        if start < 0 or text[end:start].strip():
            raise InputError(
                f"Expected the token {token!r} after character {end} of its text, found {text[end : end + 40]!r}. "
                "Tokens must be pieces of the text as it stands, in its order."
            )
        end = start + len(token)
        offsets.append((start, end))
    if text[end:].strip():
        raise InputError(f"Expected tokens for all of a text, found none for its end {text[end : end + 40]!r}.")
    return offsets


def tokenize(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[list[str]]]:
    """For every text its sentences; all at once, as reading them one by one costs much more."""
    types, ids, lengths, text_of = tokenizer.encode(texts)
    result: list[list[list[str]]] = [[] for _ in texts]
    start = 0
    tokens = [types[i] for i in ids.tolist()]
    for length, number in zip(lengths.tolist(), text_of.tolist()):
        result[number].append(tokens[start : start + length])
        start += length
    return result


def _window_starts(n_tokens: int, window: int | None) -> range:
    """The last window is not longer than the others, and no window lies within another."""
    if window is None or n_tokens <= window:
        return range(1)
    step = max(window // 2, 1)
    return range(0, n_tokens - window + step, step)
