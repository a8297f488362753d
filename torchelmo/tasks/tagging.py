"""What the tasks that give every token one tag have in common."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from torchelmo.errors import InputError
from torchelmo.tasks.task import Source, Task, Tokens, Vocabularies
from torchelmo.text.reading import read_sentences

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
