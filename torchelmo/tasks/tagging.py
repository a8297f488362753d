"""What the tasks that give every token one tag have in common."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from torchelmo.errors import InputError
from torchelmo.tasks.task import Source, Task, Tokens, Vocabularies
from torchelmo.text.reading import read_sentences

Scheme: TypeAlias = Literal["bio", "iob1", "bioes"]
_PREFIXES = {"auto": "BIESLU", "bio": "BI", "iob1": "BI", "bioes": "BIES"}
_AS_BIOES = {"L": "E", "U": "S"}  # BILOU is BIOES with other letters


class Span(NamedTuple):
    """A label for the tokens from `start` up to, not including, `end`."""

    label: str
    start: int
    end: int


class Transitions(NamedTuple):
    """Which of n labels may begin a sentence, follow one another, and end it."""

    start: Tensor  # (n,) bool
    pairs: Tensor  # (n, n) bool, [from, to]
    end: Tensor  # (n,) bool


def spans_of(tags: Sequence[str]) -> list[Span]:
    """The spans of BIO (or IOB1) tags, in order.

    As conlleval counts: an I- that continues nothing, or a span of another label, begins a span.

    >>> spans_of(["B-PER", "I-PER", "O", "I-LOC"])
    [Span(label='PER', start=0, end=2), Span(label='LOC', start=3, end=4)]
    """
    spans: list[Span] = []
    previous = "O"
    for index, tag in enumerate(tags):
        label = _label(tag)
        if _begins(previous, tag):
            spans.append(Span(label, index, index + 1))
        elif label:
            spans[-1] = spans[-1]._replace(end=index + 1)
        previous = tag
    return spans


def tags_of(spans: Sequence[Span], n: int) -> list[str]:
    """The BIO tags of `n` tokens; spans may stand in any order, but not overlap."""
    tags = ["O"] * n
    for span in spans:
        if not 0 <= span.start < span.end <= n:
            raise InputError(f"Expected spans within {n} tokens that hold at least one, got {span}.")
        if any(tag != "O" for tag in tags[span.start : span.end]):
            raise InputError(f"Expected spans that do not overlap, got {span} over tokens of another span.")
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
    """The tags of one sentence in any scheme, as BIO.

    "auto" reads all of them (and BILOU), and a tag that continues nothing begins a span. A named scheme is checked:
    errors name `where` and the tag's line out of `lines`, else its number in the sentence.
    """
    places = [f"line {line}" for line in lines] if lines is not None else [f"tag {i + 1}" for i in range(len(tags))]
    bioes = [_read_tag(tag, scheme, f"{where}: {place}") for tag, place in zip(tags, places, strict=True)]
    if scheme in ("bio", "bioes") and (broken := _first_broken(bioes, scheme)) is not None:
        found = repr(tags[broken]) if broken < len(tags) else "the end of the sentence"
        after = f"after {tags[broken - 1]!r}" if broken else "at the beginning of the sentence"
        raise InputError(
            f"{where}: {places[min(broken, len(tags) - 1)]}: expected {scheme.upper()} tags, found {found} {after}. "
            'Correct that line, or set the scheme to "auto", which reads it as conlleval does.'
        )
    result: list[str] = []
    previous = "O"
    for tag in bioes:
        begins = _begins(previous, tag)
        result.append(f"{'B' if begins else 'I'}-{_label(tag)}" if tag != "O" else "O")
        previous = tag
    return result


def from_bio(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """BIO tags of one sentence in another scheme.

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
    """What well-formed tags allow: as BIOES if a label has the prefix E- or S-, else as BIO."""
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


def _begins(before: str, tag: str) -> bool:
    """Whether a span begins at `tag`: at B- and S-, and at an I- or E- that does not continue the tag before."""
    return tag != "O" and (tag[0] in "BS" or before[0] in "OES" or _label(before) != _label(tag))


def _follows(before: str, tag: str, scheme: Scheme) -> bool:
    """Whether `tag` may stand after `before`; O stands for both ends of the sentence too."""
    goes_on = tag[0] in "IE"
    if scheme == "bio":
        return not goes_on or (before != "O" and _label(before) == _label(tag))
    is_open = before[0] in "BI"
    return goes_on == is_open and (not is_open or _label(before) == _label(tag))


def _first_broken(tags: Sequence[str], scheme: Scheme) -> int | None:
    """The first tag that may not stand where it does; len(tags) if the sentence may not end there."""
    before = ["O", *tags]
    after = [*tags, "O"]
    return next((i for i, pair in enumerate(zip(before, after)) if not _follows(*pair, scheme)), None)


def _read_tag(tag: str, scheme: str, where: str) -> str:
    prefix, hyphen, label = tag.partition("-")
    if tag == "O":
        return tag
    if len(prefix) != 1 or prefix not in _PREFIXES[scheme] or not hyphen or not label:
        prefixes = ", ".join(f"{prefix}-" for prefix in _PREFIXES[scheme])
        raise InputError(f"{where}: expected O or a label after one of {prefixes}, found {tag!r}. Correct that tag.")
    return f"{_AS_BIOES.get(prefix, prefix)}-{label}"


Tags: TypeAlias = list[str]


class Tagged(NamedTuple):
    """A sentence of at least one token."""

    tokens: list[str]
    tags: Tags | None = None  # None where they are to be predicted


class HasTags(Protocol):
    """An example with a tag for each of its tokens, or with none yet."""

    @property
    def tokens(self) -> Sequence[str]: ...

    @property
    def tags(self) -> Tags | None: ...


class TaggingTask(Task[Tagged, Tags]):
    """A task whose examples are sentences and whose predictions are their tags."""

    def sentences(self, example: Tagged) -> Sequence[Tokens]:
        return [example.tokens]

    def read_input(self, source: Source, options: Any, vocabularies: Vocabularies) -> Iterator[Tagged]:
        return (Tagged(tokens) for tokens in read_sentences(source.path, source.lang))


class Pair(NamedTuple):
    gold: Tags
    predicted: Tags


def gold_tags(example: HasTags) -> Tags:
    """The tags of a labelled example; an error if it has none, or not one for every token."""
    if example.tags is None or len(example.tags) != len(example.tokens):
        found = "none" if example.tags is None else str(len(example.tags))
        raise InputError(
            f"Expected one tag for each of the {len(example.tokens)} tokens of {opening(example)}, found {found}."
        )
    return example.tags


def pairs(examples: Sequence[HasTags], predictions: Sequence[Tags]) -> Iterator[Pair]:
    """Gold and predicted tags, sentence by sentence, as many of the one as of the other."""
    if len(examples) != len(predictions):
        raise InputError(f"Expected a prediction for each of {len(examples)} sentences, got {len(predictions)}.")
    for example, predicted in zip(examples, predictions):
        gold = gold_tags(example)
        if len(predicted) != len(gold):
            raise InputError(f"Expected {len(gold)} predicted tags for {opening(example)}, got {len(predicted)}.")
        yield Pair(gold, predicted)


def tag_ids(tags: Tags, ids: Mapping[str, int]) -> list[int]:
    """The number of every tag."""
    unknown = sorted(set(tags) - ids.keys())
    if unknown:
        raise InputError(
            f"Expected the tags that the model was built for ({', '.join(ids)}), found {', '.join(unknown)}. "
            "Train a new model on data with these tags."
        )
    return [ids[tag] for tag in tags]


def require_sentences(path: str | Path, sentences: list[Tagged], what: str) -> list[Tagged]:
    """`sentences`, if the file had any."""
    if not sentences:
        raise InputError(f"{path}: expected {what}, found no sentence at all. Check that it is the right file.")
    return sentences


def opening(example: HasTags) -> str:
    """Its first words, for messages."""
    return repr(" ".join(example.tokens[:5]) + (" …" if len(example.tokens) > 5 else ""))
