"""Natural language inference: does a premise entail a hypothesis, contradict it, or neither?

The model is ESIM (Chen et al. 2017). Files are JSON lines as in SNLI and MultiNLI.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.config import Config, Fraction, Width
from torchelmo.errors import InputError, short_repr, shorten
from torchelmo.files import read_lines
from torchelmo.tasks.classification import ClassificationTask, Classifier, Prediction
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import BiRNN, FeedForward, VariationalDropout, attend, max_pool, mean_pool
from torchelmo.tasks.task import Source, Tokens, Vocabularies
from torchelmo.text.places import Place, Sentence, TextData, join_sentences, place_record, read_texts, settings_of
from torchelmo.text.reading import malformed, parse_object, unescape

LABELS = ["entailment", "neutral", "contradiction"]
_NO_LABEL = "-"  # the annotators did not agree
_KEYS = ("sentence1", "sentence2")
_FORMAT = 'JSON lines such as {"gold_label": "neutral", "sentence1": "A dog runs.", "sentence2": "It is old."}'
_UNLABELED_FORMAT = 'premise TAB hypothesis, or a JSON object {"sentence1": "A dog runs.", "sentence2": "It is old."}'


@dataclass(frozen=True)
class NliData(TextData):
    """[data]: how sentences are split into tokens.

    If a pair has the keys `sentence1_binary_parse` and `sentence2_binary_parse`, as in the files of SNLI and MultiNLI,
    the tokens are those of the parses.
    """


@dataclass(frozen=True)
class EsimConfig(Config):
    """[model]: the defaults are those of Chen et al. 2017, which Peters et al. 2018 kept."""

    encoder_dim: Width = 300  # width of each direction
    projection_dim: Width = 300  # of a token with its aligned vector, before the composition
    composition_dim: Width = 300  # width of each direction
    classifier_dim: Width = 300  # of the tanh layer
    dropout: Fraction = 0.5  # on the token vectors, the projection, the pooled vectors and the tanh layer


class NliExample(NamedTuple):
    """A pair of sentences."""

    premise: tuple[str, ...]
    hypothesis: tuple[str, ...]
    label: str | None  # one of LABELS; None if it is to be predicted
    places: tuple[Place | None, Place | None] = (None, None)  # of premise and hypothesis, in their own texts


class Nli(ClassificationTask[NliExample]):
    """Natural language inference."""

    name = "nli"
    data_config = NliData
    model_config = EsimConfig

    def read(self, path: Path, options: NliData) -> list[NliExample]:
        return read(path, options)

    def sentences(self, example: NliExample) -> Sequence[Tokens]:
        return [example.premise, example.hypothesis]

    def vocabularies(self, examples: Sequence[NliExample], options: NliData) -> dict[str, list[str]]:
        return {"labels": LABELS}

    def build(self, config: EsimConfig, inputs: TokenInput, vocabularies: Vocabularies) -> "Esim":
        return Esim(config, inputs, labels=vocabularies["labels"])

    def read_input(self, source: Source, options: NliData, vocabularies: Vocabularies) -> Iterator[NliExample]:
        return read_pairs(source, options)

    def show(self, example: NliExample, prediction: Prediction) -> str:
        probability = prediction.probabilities[prediction.label]
        return f"{prediction.label} {probability:.2f}  {' '.join(example.premise)} → {' '.join(example.hypothesis)}"

    def record(self, example: NliExample, prediction: Prediction) -> dict[str, Any]:
        record: dict[str, Any] = {"premise": list(example.premise), "hypothesis": list(example.hypothesis)}
        for key, place in zip(("premise", "hypothesis"), example.places):
            if place is not None:
                located = place_record(place)
                record |= {f"{key}_offsets": located.pop("offsets"), **located}
        return record | prediction._asdict()


def read(path: Path, options: NliData) -> list[NliExample]:
    """Read labeled pairs; those without an agreed label ("-") are left out.

    Raises:
        InputError: A line is malformed, or the file has no labeled pairs.
    """
    examples = []
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            pair = parse_object(line, path, number, _FORMAT)
            label = _text(pair, "gold_label", path, number)
            if label == _NO_LABEL:
                continue
            if label not in LABELS:
                expected = f"gold_label {', '.join(LABELS)} or {_NO_LABEL}"
                raise malformed(path, number, expected, short_repr(label), _FORMAT)
            examples.append(_example(pair, label, options, path, number))
    if not examples:
        raise InputError(f"{path}: expected labeled pairs, found none. Expected format: {_FORMAT}")
    return examples


def read_pairs(source: Source, options: NliData) -> Iterator[NliExample]:
    """Read pairs without labels: lines of a file, or pairs of strings or token lists in memory."""
    settings = settings_of(source, options)
    for number, line in read_texts(source):
        if number is None:
            yield _pair_in_memory(line, settings)
        elif line.strip():
            yield _example(_parse_pair(line, source.path, number), None, settings, source.path, number)


def _parse_pair(line: str, path: str, number: int) -> dict[str, Any]:
    if line.lstrip().startswith("{"):
        return parse_object(line, path, number, _UNLABELED_FORMAT)
    fields = line.split("\t")
    if len(fields) != 2:
        found = f"{len(fields) - 1} tabs in {shorten(repr(line))}"
        raise malformed(path, number, "premise TAB hypothesis, or a JSON object", found, _UNLABELED_FORMAT)
    return dict(zip(_KEYS, fields))


def _example(pair: Mapping[str, Any], label: str | None, options: NliData, path: Path | str, number: int) -> NliExample:
    sentences = []
    for key in _KEYS:
        text, parse_key = _text(pair, key, path, number), f"{key}_binary_parse"
        if parse_key in pair:
            sentence = Sentence(_leaves(_text(pair, parse_key, path, number)), None)
        elif label is not None:
            sentence = Sentence(options.tokens(text), None)
        else:
            sentence = join_sentences(options.sentences(text, number))
        if not sentence.tokens:
            raise malformed(path, number, f"words in {key!r}", "none", _FORMAT)
        sentences.append(sentence)
    premise, hypothesis = sentences
    return NliExample(tuple(premise.tokens), tuple(hypothesis.tokens), label, places=(premise.place, hypothesis.place))


def _pair_in_memory(pair: Any, options: NliData) -> NliExample:
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise InputError(f"Expected a pair (premise, hypothesis) of strings or token lists, got {short_repr(pair)}.")
    sentences = [join_sentences(options.sentences_of(text)) for text in pair]
    if not all(sentence.tokens for sentence in sentences):
        raise InputError(f"Expected words in both sentences of a pair, got {short_repr(pair)}.")
    premise, hypothesis = sentences
    return NliExample(tuple(premise.tokens), tuple(hypothesis.tokens), None, (premise.place, hypothesis.place))


def _text(pair: Mapping[str, Any], key: str, path: Path | str, number: int) -> str:
    if key not in pair:
        found = f"only {shorten(', '.join(map(repr, pair))) or 'no keys'}"
        raise malformed(path, number, f"the key {key!r}", found, _FORMAT)
    if not isinstance(pair[key], str):
        raise malformed(path, number, f"text for {key!r}", short_repr(pair[key]), _FORMAT)
    return str(pair[key])


def _leaves(parse: str) -> list[str]:
    """Return the tokens of a binary parse.

    >>> _leaves("( ( A dog ) ( -LRB- runs ) )")
    ['A', 'dog', '(', 'runs']
    """
    return [unescape(part) for part in parse.split() if part not in ("(", ")")]


class Esim(Classifier[NliExample]):
    """ESIM: encode, align each token with the other sentence, compose, pool, classify.

    ELMo at the output is concatenated to the states of the encoder: [a; ELMo].
    """

    def __init__(self, config: EsimConfig, inputs: TokenInput, *, labels: Sequence[str]) -> None:
        super().__init__()
        self.inputs, self.labels = inputs, list(labels)
        self.dropout = VariationalDropout(config.dropout)
        self.encoder = BiRNN(inputs.dim, config.encoder_dim)
        self.projection = FeedForward([4 * (self.encoder.dim + inputs.output_dim), config.projection_dim])
        self.composition = BiRNN(config.projection_dim, config.composition_dim)
        self.pooled_dropout = nn.Dropout(config.dropout)
        self.classifier = FeedForward(
            [4 * self.composition.dim, config.classifier_dim, len(self.labels)],
            dropout=config.dropout,
            activation="tanh",
            last_linear=True,
        )

    def forward(self, examples: Sequence[NliExample]) -> Tensor:
        """Return the scores of every label: (batch, n_labels)."""
        # Premises and hypotheses are one batch of the encoders: first all premises, then all hypotheses.
        sentences = [example.premise for example in examples] + [example.hypothesis for example in examples]
        vectors, mask, elmo = self.inputs(sentences)
        x = self.encoder(self.dropout(vectors), mask)
        if elmo is not None:
            x = torch.cat([x, elmo], dim=-1)
        other, other_mask = _swap_halves(x), _swap_halves(mask)
        aligned = attend(x @ other.transpose(-2, -1), other, other_mask)
        enhanced = torch.cat([x, aligned, x - aligned, x * aligned], dim=-1)
        composed = self.composition(self.dropout(self.projection(enhanced)), mask)
        pooled = torch.cat([mean_pool(composed, mask), max_pool(composed, mask)], dim=-1)
        scores: Tensor = self.classifier(self.pooled_dropout(torch.cat(pooled.chunk(2), dim=-1)))
        return scores


def _swap_halves(pairs: Tensor) -> Tensor:
    """Exchange premises and hypotheses: (2 · n, …) -> (2 · n, …)."""
    first, second = pairs.chunk(2)
    return torch.cat([second, first])
