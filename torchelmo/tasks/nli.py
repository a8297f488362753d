"""Natural language inference: does a premise entail a hypothesis, contradict it, or neither?"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.config import require_positive, require_share
from torchelmo.errors import InputError
from torchelmo.files import read_lines
from torchelmo.tasks.classification import ClassificationTask, Classifier, Prediction
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import FeedForward, VariationalDropout, attend, max_pool, mean_pool
from torchelmo.tasks.layers.rnn import BiRNN
from torchelmo.tasks.task import Source, Tokens, Vocabularies
from torchelmo.text.reading import malformed, parse_object, unescape
from torchelmo.text.tokenize import Tokenizer

LABELS = ["entailment", "neutral", "contradiction"]
_NO_LABEL = "-"  # the annotators did not agree


@dataclass(frozen=True)
class NliData:
    """[data] Where the tokens come from.

    "auto" takes them from sentence1_binary_parse and sentence2_binary_parse where those are there, as in the files
    of SNLI and MultiNLI, and else splits at spaces; "raw" splits the sentences by spaCy's rules for `lang`.
    """

    text: Literal["auto", "tokenised", "raw"] = "auto"
    lang: str = "en"


class NliExample(NamedTuple):
    premise: tuple[str, ...]
    hypothesis: tuple[str, ...]
    label: str | None  # one of LABELS


def read_nli(path: Path, options: NliData) -> list[NliExample]:
    """Labelled pairs; those without an agreed label ("-") are left out."""
    tokens_of = _splitter(options)
    examples = []
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            pair = parse_object(line, path, number)
            label = _text(pair, "gold_label", path, number)
            if label == _NO_LABEL:
                continue
            if label not in LABELS:
                raise malformed(path, number, f"gold_label {', '.join(LABELS)} or {_NO_LABEL}", repr(label))
            examples.append(_example(pair, label, tokens_of, path, number))
    if not examples:
        raise InputError(
            f"{path}: expected a JSON object with gold_label, sentence1 and sentence2 on each line, found no labelled "
            "pair. Check that it is the right file."
        )
    return examples


def read_pairs(source: Source) -> Iterator[NliExample]:
    """Pairs without labels, each line in the form that it begins with; blank lines are skipped."""
    tokens_of = _splitter(NliData("tokenised") if source.lang is None else NliData("raw", source.lang))
    for number, line in enumerate(read_lines(source.path), 1):
        if not line.strip():
            continue
        if line.lstrip().startswith("{"):
            pair = parse_object(line, source.path, number)
        else:
            fields = line.split("\t")
            if len(fields) != 2:
                expected = "premise TAB hypothesis, or a JSON object"
                raise malformed(source.path, number, expected, f"{len(fields) - 1} tabs in {line[:40]!r}")
            pair = dict(zip(("sentence1", "sentence2"), fields))
        yield _example(pair, None, tokens_of, source.path, number)


_Splitter = Callable[[str, str | None], list[str]]


def _splitter(options: NliData) -> _Splitter:
    """(text, binary parse) -> tokens."""
    if options.text == "raw":
        tokenizer = Tokenizer(options.lang)
        return lambda text, parse: tokenizer.tokens(text)
    if options.text == "tokenised":
        return lambda text, parse: text.split()
    return lambda text, parse: text.split() if parse is None else _leaves(parse)


def _leaves(parse: str) -> list[str]:
    """
    >>> _leaves("( ( A dog ) ( -LRB- runs ) )")
    ['A', 'dog', '(', 'runs']
    """
    return [unescape(part) for part in parse.split() if part not in ("(", ")")]


def _text(pair: dict[str, Any], key: str, path: Path | str, number: int) -> str:
    if key not in pair:
        raise malformed(path, number, f"the key {key!r}", f"only {', '.join(map(repr, pair)) or 'no keys'}")
    if not isinstance(pair[key], str):
        raise malformed(path, number, f"text for {key!r}", repr(pair[key]))
    return str(pair[key])


def _example(
    pair: dict[str, Any], label: str | None, tokens_of: _Splitter, path: Path | str, number: int
) -> NliExample:
    sentences = []
    for key in ("sentence1", "sentence2"):
        text, parse_key = _text(pair, key, path, number), f"{key}_binary_parse"
        parse = _text(pair, parse_key, path, number) if parse_key in pair else None
        tokens = tuple(tokens_of(text, parse))
        if not tokens:
            raise malformed(path, number, f"words in {key!r}", "none")
        sentences.append(tokens)
    return NliExample(sentences[0], sentences[1], label)


@dataclass(frozen=True)
class EsimConfig:
    """[model] The sizes are those of Chen et al. 2017, which Peters et al. 2018 kept."""

    encoder_dim: int = 300  # of each direction
    projection_dim: int = 300  # of a token and what it is aligned with, before the composition
    composition_dim: int = 300  # of each direction
    classifier_dim: int = 300  # of the tanh layer
    dropout: float = 0.5  # on the token vectors, the projection, the pooled vectors and the tanh layer

    def __post_init__(self) -> None:
        require_positive(self, "encoder_dim", "projection_dim", "composition_dim", "classifier_dim")
        require_share(self, "dropout")


class Esim(Classifier[NliExample]):
    """ELMo at the output stands beside the encoder's: [a; ELMo]."""

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
        # Premises and hypotheses go through the encoders as one batch: first all premises, then all hypotheses.
        sentences = [example.premise for example in examples] + [example.hypothesis for example in examples]
        vectors, mask, elmo = self.inputs(sentences)
        x = self.encoder(self.dropout(vectors), mask)
        if elmo is not None:
            x = torch.cat([x, elmo], dim=-1)
        other, other_mask = _exchanged(x), _exchanged(mask)
        aligned = attend(x @ other.transpose(-2, -1), other, other_mask)
        enhanced = torch.cat([x, aligned, x - aligned, x * aligned], dim=-1)
        composed = self.composition(self.dropout(self.projection(enhanced)), mask)
        pooled = torch.cat([mean_pool(composed, mask), max_pool(composed, mask)], dim=-1)
        scores: Tensor = self.classifier(self.pooled_dropout(torch.cat(pooled.chunk(2), dim=-1)))
        return scores


def _exchanged(pairs: Tensor) -> Tensor:
    """(2 · n, …): the hypotheses where the premises were, and the other way round."""
    first, second = pairs.chunk(2)
    return torch.cat([second, first])


class Nli(ClassificationTask[NliExample]):
    name = "nli"
    data_config = NliData
    model_config = EsimConfig

    def read(self, path: Path, options: NliData) -> list[NliExample]:
        return read_nli(path, options)

    def sentences(self, example: NliExample) -> Sequence[Tokens]:
        return [example.premise, example.hypothesis]

    def vocabularies(self, examples: Sequence[NliExample], options: NliData) -> dict[str, list[str]]:
        return {"labels": LABELS}

    def build(self, config: EsimConfig, inputs: TokenInput, vocabularies: Vocabularies) -> Esim:
        return Esim(config, inputs, labels=vocabularies["labels"])

    def read_input(self, source: Source, options: NliData, vocabularies: Vocabularies) -> Iterator[NliExample]:
        return read_pairs(source)

    def show(self, example: NliExample, prediction: Prediction) -> str:
        probability = prediction.probabilities[prediction.label]
        return f"{prediction.label} {probability:.2f}  {' '.join(example.premise)} → {' '.join(example.hypothesis)}"

    def record(self, example: NliExample, prediction: Prediction) -> dict[str, Any]:
        return {
            "premise": list(example.premise),
            "hypothesis": list(example.hypothesis),
            **prediction._asdict(),
        }
