"""Predicted clusters for people, as brackets in the text, and for programs."""

from collections.abc import Sequence
from typing import Any

from torchelmo.tasks.coref.data import Document, Mention


def bracketed(document: Document, clusters: Sequence[Sequence[Mention]]) -> str:
    """[1 Anna] saw [2 [1 her] brother] . and then every cluster in a line of its own."""
    words = [word for sentence in document.sentences for word in sentence]
    before: list[list[str]] = [[] for _ in words]
    after = [0] * len(words)
    numbered = [(mention, number) for number, cluster in enumerate(clusters, 1) for mention in cluster]
    for mention, number in sorted(numbered, key=lambda item: (item[0].start, -item[0].end)):  # the outer ones first
        before[mention.start].append(f"[{number} ")
        after[mention.end - 1] += 1
    marked = iter("".join(opened) + word + "]" * closed for word, opened, closed in zip(words, before, after))
    lines = [" ".join(next(marked) for _ in sentence) for sentence in document.sentences]
    lists = [f"{number}: {' | '.join(_text(words, m) for m in cluster)}" for number, cluster in enumerate(clusters, 1)]
    return "\n".join([*lines, "", *(lists or ["No mentions were found that refer to the same entity."])])


def record(document: Document, clusters: Sequence[Sequence[Mention]]) -> dict[str, Any]:
    """Mentions by the first token and the one after the last, counted from the beginning of the document."""
    words = [word for sentence in document.sentences for word in sentence]
    return {
        "document": document.name,
        "part": document.part,
        "sentences": document.sentences,
        "clusters": [
            [{"start": m.start, "end": m.end, "text": _text(words, m)} for m in cluster] for cluster in clusters
        ],
    }


def _text(words: Sequence[str], mention: Mention) -> str:
    return " ".join(words[mention.start : mention.end])
