"""Base of the tasks that give every token one tag, and the conversion between BIO, IOB1, BIOES tags and spans."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from torchelmo.errors import InputError, short_repr
from torchelmo.tasks.task import Source, Task, Tokens, Vocabularies
from torchelmo.text.places import Place, place_record, read_sentences, span_record

Tags: TypeAlias = list[str]
Scheme: TypeAlias = Literal["bio", "iob1", "bioes"]
_PREFIXES = {"auto": "BIESLU", "bio": "BI", "iob1": "BI", "bioes": "BIES"}
_AS_BIOES = {"L": "E", "U": "S"}  # BILOU is BIOES with other letters


class Tagged(NamedTuple):
    """A sentence of at least one token."""

    tokens: list[str]
    tags: Tags | None = None  # None if they are to be predicted
    place: Place | None = None  # of the tokens in a text to predict


class HasTags(Protocol):
    """An example with one tag for each of its tokens, or with none yet."""

    @property
    def tokens(self) -> Sequence[str]: ...

    @property
    def tags(self) -> Tags | None: ...

    @property
    def place(self) -> Place | None: ...


class TaggingTask(Task[Tagged, Tags]):
    """A task whose examples are sentences and whose predictions are their tags."""

    def sentences(self, example: Tagged) -> Sequence[Tokens]:
        return [example.tokens]

    def read_input(self, source: Source, options: Any, vocabularies: Vocabularies) -> Iterator[Tagged]:
        return (Tagged(tokens, None, place) for tokens, place in read_sentences(source, options))


def tags_record(example: HasTags, prediction: Tags) -> dict[str, Any]:
    """Return tokens and predicted tags as plain data for JSON, with line and character offsets if they are known."""
    return {"tokens": list(example.tokens), **place_record(example.place), "tags": prediction}


def spans_record(example: HasTags, prediction: Tags) -> list[dict[str, Any]]:
    """Return the spans of predicted BIO tags as plain data for JSON."""
    spans = spans_of(prediction)
    return [{"label": label, **span_record(example.tokens, start, end, example.place)} for label, start, end in spans]


class TagPair(NamedTuple):
    """The tags of one sentence, gold and predicted: as many of the one as of the other."""

    gold: Tags
    predicted: Tags


def pair_tags(examples: Sequence[HasTags], predictions: Sequence[Tags]) -> Iterator[TagPair]:
    """Yield the gold and predicted tags of every sentence.

    Raises:
        InputError: The numbers of sentences or of tags differ, or an example has no gold tags.
    """
    if len(examples) != len(predictions):
        raise InputError(f"Expected a prediction for each of {len(examples)} sentences, got {len(predictions)}.")
    for example, predicted in zip(examples, predictions):
        gold = gold_tags(example)
        if len(predicted) != len(gold):
            raise InputError(f"Expected {len(gold)} predicted tags for {first_words(example)}, got {len(predicted)}.")
        yield TagPair(gold, predicted)


def gold_tags(example: HasTags) -> Tags:
    """Return the tags of a labeled example.

    Raises:
        InputError: It has no tags, or not one for every token.
    """
    if example.tags is None or len(example.tags) != len(example.tokens):
        found = "none" if example.tags is None else str(len(example.tags))
        raise InputError(
            f"Expected one tag for each of the {len(example.tokens)} tokens of {first_words(example)}, found {found}."
        )
    return example.tags


def tag_ids(tags: Tags, ids: Mapping[str, int]) -> list[int]:
    """Return the id of every tag.

    Raises:
        InputError: A tag has none.
    """
    unknown = sorted(set(tags) - ids.keys())
    if unknown:
        raise InputError(
            f"Expected the tags that the model was built for ({', '.join(ids)}), found {', '.join(unknown)}. "
            "Train a new model on data with these tags."
        )
    return [ids[tag] for tag in tags]


def require_sentences(path: str | Path, sentences: list[Tagged], file_format: str) -> list[Tagged]:
    """Return `sentences`; raise an InputError that describes the expected format if there are none."""
    if not sentences:
        raise InputError(f"{path}: expected sentences, found none. Expected format: {file_format}")
    return sentences


def first_words(example: HasTags) -> str:
    """Return the first words of a sentence, for error messages."""
    return repr(" ".join(example.tokens[:5]) + (" …" if len(example.tokens) > 5 else ""))


class Span(NamedTuple):
    """A label for the tokens from `start` up to, but not including, `end`."""

    label: str
    start: int
    end: int


class Transitions(NamedTuple):
    """Which of n labels may start a sentence, follow one another, and end a sentence."""

    start: Tensor  # (n,) bool
    pairs: Tensor  # (n, n) bool, [from, to]
    end: Tensor  # (n,) bool


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Return the spans of BIO (or IOB1) tags, in order.

    As in conlleval, an I- tag that does not continue a span of the same label starts a span.

    >>> spans_of(["B-PER", "I-PER", "O", "I-LOC"])
    [Span(label='PER', start=0, end=2), Span(label='LOC', start=3, end=4)]
    """
    spans: list[Span] = []
    previous = "O"
    for index, tag in enumerate(tags):
        label = _label(tag)
        if _starts_span(previous, tag):
            spans.append(Span(label, index, index + 1))
        elif label:
            spans[-1] = spans[-1]._replace(end=index + 1)
        previous = tag
    return spans


def tags_of(spans: Sequence[Span], n: int) -> list[str]:
    """Return the BIO tags of `n` tokens.

    Args:
        spans: Spans in any order, which must not overlap.
        n: The number of tokens.
    """
    tags = ["O"] * n
    for span in spans:
        if not 0 <= span.start < span.end <= n:
            raise InputError(f"Expected spans of at least one token within {n} tokens, got {span}.")
        if any(tag != "O" for tag in tags[span.start : span.end]):
            raise InputError(f"Expected spans that do not overlap, got {span}, which shares tokens with another span.")
        inside = [f"I-{span.label}"] * (span.end - span.start - 1)
        tags[span.start : span.end] = [f"B-{span.label}", *inside]
    return tags


def to_bio(
    tags: Sequence[str],
    scheme: Literal["auto", "bio", "iob1", "bioes"],
    where: str,
    *,
    lines: Sequence[int] | None = None,
) -> list[str]:
    """Convert the tags of one sentence to BIO.

    Args:
        tags: The tags.
        scheme: "auto" reads every scheme and BILOU, and starts a span at a tag that does not continue one. With any
            other value, tags must be well-formed in that scheme.
        where: The source of the tags, for error messages.
        lines: The line number of each tag, for error messages; by default they name its position in the sentence.

    Raises:
        InputError: A tag is malformed.
    """
    places = [f"line {line}" for line in lines] if lines is not None else [f"tag {i + 1}" for i in range(len(tags))]
    bioes = [_read_tag(tag, scheme, f"{where}: {place}") for tag, place in zip(tags, places, strict=True)]
    if scheme in ("bio", "bioes") and (broken := _first_malformed(bioes, scheme)) is not None:
        found = repr(tags[broken]) if broken < len(tags) else "the end of the sentence"
        after = f"after {tags[broken - 1]!r}" if broken else "at the start of the sentence"
        raise InputError(
            f"{where}: {places[min(broken, len(tags) - 1)]}: expected {scheme.upper()} tags, found {found} {after}. "
            'Correct that line, or set the scheme to "auto", which reads it as conlleval does.'
        )
    result: list[str] = []
    previous = "O"
    for tag in bioes:
        starts = _starts_span(previous, tag)
        result.append(f"{'B' if starts else 'I'}-{_label(tag)}" if tag != "O" else "O")
        previous = tag
    return result


def from_bio(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Convert the BIO tags of one sentence to another scheme.

    >>> from_bio(["B-PER", "I-PER", "B-PER", "O"], "bioes")
    ['B-PER', 'E-PER', 'S-PER', 'O']
    >>> from_bio(["B-PER", "I-PER", "B-PER", "O"], "iob1")
    ['I-PER', 'I-PER', 'B-PER', 'O']
    """
    spans = spans_of(tags)
    result = tags_of(spans, len(tags))
    if scheme == "bioes":
        for label, start, end in spans:
            result[end - 1] = f"{'S' if end - start == 1 else 'E'}-{label}"
    elif scheme == "iob1":
        touching = {(span.label, span.end) for span in spans}
        for label, start, _ in spans:
            if (label, start) not in touching:
                result[start] = f"I-{label}"
    return result


def allowed_transitions(labels: Sequence[str]) -> Transitions:
    """Return the transitions of well-formed tags: of BIOES if a label has the prefix E- or S-, otherwise of BIO."""
    for label in labels:
        _read_tag(label, "bioes", "labels")
    scheme: Scheme = "bioes" if any(label[:2] in ("E-", "S-") for label in labels) else "bio"
    n = len(labels)
    pairs = [_follows(before, after, scheme) for before in labels for after in labels]
    return Transitions(
        start=torch.tensor([_follows("O", label, scheme) for label in labels], dtype=torch.bool),
        pairs=torch.tensor(pairs, dtype=torch.bool).view(n, n),
        end=torch.tensor([_follows(label, "O", scheme) for label in labels], dtype=torch.bool),
    )


def _label(tag: str) -> str:
    return tag.partition("-")[2]


def _starts_span(before: str, tag: str) -> bool:
    """Return whether a span starts at `tag`: at B-, S-, and at an I- or E- that does not continue `before`."""
    return tag != "O" and (tag[0] in "BS" or before[0] in "OES" or _label(before) != _label(tag))


def _follows(before: str, tag: str, scheme: Scheme) -> bool:
    """Return whether `tag` may follow `before`. O also represents the start and the end of the sentence."""
    continues = tag[0] in "IE"
    if scheme == "bio":
        return not continues or (before != "O" and _label(before) == _label(tag))
    is_open = before[0] in "BI"
    return continues == is_open and (not is_open or _label(before) == _label(tag))


def _first_malformed(tags: Sequence[str], scheme: Scheme) -> int | None:
    """Return the index of the first tag that may not follow the previous one; len(tags) if the last may not end."""
    before = ["O", *tags]
    after = [*tags, "O"]
    return next((i for i, pair in enumerate(zip(before, after)) if not _follows(*pair, scheme)), None)


def _read_tag(tag: str, scheme: str, where: str) -> str:
    prefix, hyphen, label = tag.partition("-")
    if tag == "O":
        return tag
    if len(prefix) != 1 or prefix not in _PREFIXES[scheme] or not hyphen or not label:
        prefixes = ", ".join(f"{prefix}-" for prefix in _PREFIXES[scheme])
        raise InputError(f"{where}: expected O or a label after one of {prefixes}, found {short_repr(tag)}.")
    return f"{_AS_BIOES.get(prefix, prefix)}-{label}"
