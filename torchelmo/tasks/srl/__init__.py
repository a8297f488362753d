"""Semantic roles: who did what to whom, for every predicate; scored by the F1 of srl-eval.pl."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.scores import count, table, total
from torchelmo.tasks.srl import data
from torchelmo.tasks.srl.data import Proposition, SrlData, propositions_of, read_json_lines
from torchelmo.tasks.srl.model import SrlConfig, SrlModel
from torchelmo.tasks.tagging import Tags, gold_tags, pairs, spans_of
from torchelmo.tasks.task import Scores, Source, Task, Tokens, Vocabularies
from torchelmo.text.reading import read_sentences

_NOT_COUNTED = "V"
_CONTINUES = "C-"


class Argument(NamedTuple):
    role: str
    pieces: tuple[tuple[int, int], ...]  # start and end of each, in order


def arguments_of(tags: Sequence[str]) -> list[Argument]:
    """The arguments of a proposition with their continuations, V left out.

    >>> arguments_of(["B-A1", "B-V", "B-C-A1", "B-R-A0"])
    [Argument(role='A1', pieces=((0, 1), (2, 3))), Argument(role='R-A0', pieces=((3, 4),))]
    """
    found: list[Argument] = []
    last: dict[str, int] = {}  # the place in `found` of the last argument with a role
    for label, start, end in spans_of(tags):
        role = label.removeprefix(_CONTINUES)
        if role != label and role in last:
            before = found[last[role]]
            found[last[role]] = before._replace(pieces=(*before.pieces, (start, end)))
        else:
            last[role] = len(found)
            found.append(Argument(role, ((start, end),)))
    return [argument for argument in found if argument.role != _NOT_COUNTED]


def score(examples: Sequence[Proposition], predictions: Sequence[Tags]) -> Scores:
    both = _arguments(examples, predictions)
    arguments = total(count(both))
    perfect = 100.0 * sum(there == found for there, found in both) / len(both) if both else 0.0
    return {"f1": arguments.f1, "precision": arguments.precision, "recall": arguments.recall, "perfect": perfect}


def report(examples: Sequence[Proposition], predictions: Sequence[Tags]) -> str:
    """One line for every role, and one for all."""
    return table("role", count(_arguments(examples, predictions)))


def _arguments(
    examples: Sequence[Proposition], predictions: Sequence[Tags]
) -> list[tuple[set[Argument], set[Argument]]]:
    """The gold and the predicted ones of every proposition."""
    return [(set(arguments_of(gold)), set(arguments_of(tags))) for gold, tags in pairs(examples, predictions)]


class Srl(Task[Proposition, Tags]):
    name = "srl"
    metric = "f1"
    data_config = SrlData
    model_config = SrlConfig

    def read(self, path: Path, options: SrlData) -> list[Proposition]:
        return data.read(path, options)

    def sentences(self, example: Proposition) -> Sequence[Tokens]:
        return [example.tokens]

    def vocabularies(self, examples: Sequence[Proposition], options: SrlData) -> dict[str, list[str]]:
        """`labels`: the tags, "O" first; `predicates`: the words that are one in at least half of the places.

        Words are counted in lower case, and in sentences that have a predicate.
        """
        tags = {tag for example in examples for tag in gold_tags(example)}
        words: Counter[str] = Counter()
        predicates: Counter[str] = Counter()
        for example in examples:
            if example.predicates[:1] == (example.predicate,):  # one example for each sentence
                words.update(token.lower() for token in example.tokens)
                predicates.update(example.tokens[i].lower() for i in example.predicates)
        usual = sorted(word for word, n in predicates.items() if 2 * n >= words[word])
        return {"labels": ["O", *sorted(tags - {"O"})], "predicates": usual}

    def build(self, config: SrlConfig, inputs: TokenInput, vocabularies: Vocabularies) -> SrlModel:
        return SrlModel(config, inputs, vocabularies["labels"])

    def score(self, examples: Sequence[Proposition], predictions: Sequence[Tags]) -> Scores:
        return score(examples, predictions)

    def report(self, examples: Sequence[Proposition], predictions: Sequence[Tags]) -> str:
        return report(examples, predictions)

    def read_input(self, source: Source, options: SrlData, vocabularies: Vocabularies) -> Iterator[Proposition]:
        """Text, or JSON lines {"tokens": […], "predicates": [numbers]}; without numbers, predicates are looked for."""
        predicates = frozenset(vocabularies["predicates"])
        if re.search(r"\.jsonl(\.(gz|bz2|xz))?$", source.path):
            for tokens, given in read_json_lines(source.path):
                yield from propositions_of(tokens, predicates, given)
        else:
            for sentence in read_sentences(source.path, source.lang):
                yield from propositions_of(sentence, predicates)

    def show(self, example: Proposition, prediction: Tags) -> str:
        """nominated: [ARG0 Bush] [V nominated] [ARG1 two individuals] ."""
        if example.predicate is None:
            return f"no predicate found: {' '.join(example.tokens)}"
        words = list(example.tokens)
        for role, start, end in spans_of(prediction):
            words[start] = f"[{role} {words[start]}"
            words[end - 1] += "]"
        return f"{example.tokens[example.predicate]}: {' '.join(words)}"

    def record(self, example: Proposition, prediction: Tags) -> dict[str, Any]:
        spans = [
            {**span._asdict(), "text": " ".join(example.tokens[span.start : span.end])} for span in spans_of(prediction)
        ]
        return {"tokens": list(example.tokens), "predicate": example.predicate, "tags": prediction, "spans": spans}
