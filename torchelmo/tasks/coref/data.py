"""Documents: sentences, who says them, and clusters of mentions, which are spans of the document's tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple


class Mention(NamedTuple):
    """Tokens `start` up to, not including, `end`; both count from the beginning of the document."""

    start: int
    end: int


class Document(NamedTuple):
    name: str
    part: str
    sentences: list[list[str]]  # none of them empty
    speakers: list[str]  # of every token of the document; empty where the data has none
    genre: str  # "bn" of "bn/abc/00/abc_0001"; "" where the name has no such beginning
    clusters: list[list[Mention]] | None  # None: not annotated. Mentions are sorted, clusters by their first mention.


@dataclass(frozen=True)
class CorefData:
    """[data] of a configuration: the files say all there is to know."""


def sentence_bounds(sentences: Sequence[Sequence[str]]) -> list[int]:
    """Where every sentence begins in the document, and at last where the document ends.

    >>> sentence_bounds([["He", "slept", "."], ["Why", "?"]])
    [0, 3, 5]
    """
    return list(accumulate((len(sentence) for sentence in sentences), initial=0))


def in_order(clusters: Iterable[Iterable[Mention]]) -> list[list[Mention]]:
    """The same clusters, each sorted, by their first mention."""
    return sorted(sorted(cluster) for cluster in clusters)


def crop(document: Document, first: int, n_sentences: int) -> Document:
    """Only sentences `first` to `first + n_sentences`, with the mentions that lie in them."""
    bounds = sentence_bounds(document.sentences)
    sentences = document.sentences[first : first + n_sentences]
    start, end = bounds[first], bounds[first + len(sentences)]
    clusters = None
    if document.clusters is not None:
        inside = (
            [Mention(m.start - start, m.end - start) for m in cluster if start <= m.start and m.end <= end]
            for cluster in document.clusters
        )
        clusters = [cluster for cluster in inside if cluster]
    return document._replace(sentences=sentences, speakers=document.speakers[start:end], clusters=clusters)
