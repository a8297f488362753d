"""Semantic role labeling: who did what to whom, for every predicate. Scored by the F1 of srl-eval.pl."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.srl.data import (
    Proposition,
    SrlData,
    by_sentence,
    columns_of,
    propositions_of,
    read,
    read_json_lines,
)
from torchelmo.tasks.srl.model import SrlConfig, SrlModel
from torchelmo.tasks.tagging import Tags, gold_tags, pair_tags, spans_of, spans_record, tags_record
from torchelmo.tasks.task import (
    Counts,
    Scores,
    Source,
    Task,
    Tokens,
    Vocabularies,
    count_items,
    format_table,
    percentage,
    sum_counts,
)
from torchelmo.text.places import read_sentences
from torchelmo.text.reading import format_columns

_PREDICATE_ROLE = "V"  # not counted in scores
_CONTINUATION = "C-"


class Srl(Task[Proposition, Tags]):
    """Semantic role labeling."""

    name = "srl"
    metric = "f1"
    data_config = SrlData
    model_config = SrlConfig
    labels_predicates = True

    def read(self, path: Path, options: SrlData) -> list[Proposition]:
        return read(path, options)

    def sentences(self, example: Proposition) -> Sequence[Tokens]:
        return [example.tokens]

    def vocabularies(self, examples: Sequence[Proposition], options: SrlData) -> dict[str, list[str]]:
        """Return `labels`, the tags with "O" first, and `predicates`, the words that usually are predicates.

        Those are predicates in at least half of their occurrences, in lower case, in sentences with a predicate.
        """
        tags = {tag for example in examples for tag in gold_tags(example)}
        words: Counter[str] = Counter()
        predicates: Counter[str] = Counter()
        for example in examples:
            if example.predicates[:1] == (example.predicate,):  # count each sentence once
                words.update(token.lower() for token in example.tokens)
                predicates.update(example.tokens[i].lower() for i in example.predicates)
        usual = sorted(word for word, n in predicates.items() if 2 * n >= words[word])
        return {"labels": ["O", *sorted(tags - {"O"})], "predicates": usual}

    def build(self, config: SrlConfig, inputs: TokenInput, vocabularies: Vocabularies) -> SrlModel:
        return SrlModel(config, inputs, vocabularies["labels"])

    def score(self, examples: Sequence[Proposition], predictions: Sequence[Tags]) -> Scores:
        """Return F1, precision and recall of all arguments, and the percentage of propositions without an error."""
        pairs = _pair_arguments(examples, predictions)
        arguments = sum_counts(count_items(pairs))
        return {
            "f1": arguments.f1,
            "precision": arguments.precision,
            "recall": arguments.recall,
            "perfect": percentage([gold == predicted for gold, predicted in pairs]),
        }

    def count_labels(self, examples: Sequence[Proposition], predictions: Sequence[Tags]) -> dict[str, Counts]:
        return count_items(_pair_arguments(examples, predictions))

    def report(self, examples: Sequence[Proposition], predictions: Sequence[Tags]) -> str:
        return format_table("role", self.count_labels(examples, predictions))

    def read_input(self, source: Source, options: SrlData, vocabularies: Vocabularies) -> Iterator[Proposition]:
        """Read text, or a .jsonl file of {"tokens": […], "predicates": [indices]}.

        Without indices, the predicates are the words that the source names, or those known from training.
        """
        predicates = frozenset(word.lower() for word in source.predicates) or frozenset(vocabularies["predicates"])
        if re.search(r"\.jsonl(\.(gz|bz2|xz))?$", source.path):
            for tokens, given in read_json_lines(source.path):
                yield from propositions_of(tokens, predicates, given)
        else:
            for tokens, place in read_sentences(source, options):
                yield from propositions_of(tokens, predicates, place=place)

    def show(self, example: Proposition, prediction: Tags) -> str:
        """Return the predicate and the sentence: nominated: [ARG0 Bush] [V nominated] [ARG1 two people] ."""
        if example.predicate is None:
            return f"no predicate found: {' '.join(example.tokens)}"
        words = list(example.tokens)
        for role, start, end in spans_of(prediction):
            words[start] = f"[{role} {words[start]}"
            words[end - 1] += "]"
        return f"{example.tokens[example.predicate]}: {' '.join(words)}"

    def record(self, example: Proposition, prediction: Tags) -> dict[str, Any]:
        record = {**tags_record(example, prediction), "spans": spans_record(example, prediction)}
        return {"predicate": example.predicate, **record}

    def conll(self, predicted: Iterable[tuple[Proposition, Tags]], options: SrlData) -> Iterator[str]:
        """Yield the columns of CoNLL-2005: word, predicate, and the arguments of each predicate."""
        for sentence in by_sentence(example._replace(tags=tags) for example, tags in predicted):
            yield format_columns(columns_of(sentence), where="CoNLL output")


class Argument(NamedTuple):
    """An argument of a predicate, which may have several parts."""

    role: str
    pieces: tuple[tuple[int, int], ...]  # start and end of each part, in order


def arguments_of(tags: Sequence[str]) -> list[Argument]:
    """Return the arguments of a proposition with their continuations, without the predicate (V).

    >>> arguments_of(["B-A1", "B-V", "B-C-A1", "B-R-A0"])
    [Argument(role='A1', pieces=((0, 1), (2, 3))), Argument(role='R-A0', pieces=((3, 4),))]
    """
    found: list[Argument] = []
    last: dict[str, int] = {}  # index in `found` of the last argument with a role
    for label, start, end in spans_of(tags):
        role = label.removeprefix(_CONTINUATION)
        if role != label and role in last:
            before = found[last[role]]
            found[last[role]] = before._replace(pieces=(*before.pieces, (start, end)))
        else:
            last[role] = len(found)
            found.append(Argument(role, ((start, end),)))
    return [argument for argument in found if argument.role != _PREDICATE_ROLE]


def _pair_arguments(
    examples: Sequence[Proposition], predictions: Sequence[Tags]
) -> list[tuple[set[Argument], set[Argument]]]:
    """Return the gold and predicted arguments of every proposition."""
    return [
        (set(arguments_of(gold)), set(arguments_of(predicted))) for gold, predicted in pair_tags(examples, predictions)
    ]
