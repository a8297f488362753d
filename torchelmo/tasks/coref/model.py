"""The end-to-end coreference model (Lee et al. 2017): it scores spans as mentions and pairs of spans as coreferent.

tokens -> biLSTM over each sentence -> spans -> mention scores -> the best λT spans -> antecedent scores
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchelmo.config import Config, Fraction, LayerCount, NonNegativeInt, PositiveFloat, PositiveInt, Range, Width
from torchelmo.tasks.coref.data import Document, Mention, crop, sort_clusters
from torchelmo.tasks.coref.scoring import (
    AntecedentScorer,
    MentionScorer,
    SpanEncoder,
    Tokens,
    best_antecedents,
    marginal_loss,
    prune,
    span_grid,
)
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import BiRNN, FeedForward, VariationalDropout
from torchelmo.tasks.task import TaskModel


@dataclass(frozen=True)
class CorefConfig(Config):
    """[model]: the defaults are those of Lee et al. 2017."""

    hidden_dim: Width = 200  # width of each direction of the biLSTM
    ffnn_dim: Width = 150
    ffnn_layers: LayerCount = 2
    feature_dim: Width = 20  # width of each feature: span width, distance, speaker, genre
    max_width: Annotated[int, Range(min=1, max=1000)] = 10  # longest span, in tokens
    spans_per_token: PositiveFloat = 0.4  # λ: the number of spans that are kept
    n_antecedents: PositiveInt = 250  # K: the number of kept spans before a span that it may choose from
    max_sentences: NonNegativeInt = (
        50  # longest part of a document in training, chosen at random in every step; 0 for all of it
    )
    lexical_dropout: Fraction = 0.5  # on the input of the biLSTM
    dropout: Fraction = 0.2  # on its states, hidden layers and features
    singletons: bool = False  # also learn which spans are mentions, and predict clusters of one mention


class Ranking(NamedTuple):
    """The scores of one document."""

    grid: Tensor  # (tokens, max_width) bool: which spans exist
    mention_scores: Tensor  # (tokens, max_width): which spans are kept; with singletons, which are mentions
    kept: list[Mention]  # in the order of the text
    scores: Tensor  # (kept, 1 + antecedents): column 0 is ε, column k the span k before


class CorefModel(TaskModel[Document, list[list[Mention]]]):
    """Predict the clusters of a document. `genres` are those of the training documents."""

    def __init__(self, config: CorefConfig, inputs: TokenInput, genres: Sequence[str]) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        self._genres = {genre: number for number, genre in enumerate(genres, 1)}
        self.lexical_dropout = VariationalDropout(config.lexical_dropout)
        self.encoder = BiRNN(inputs.dim, config.hidden_dim)
        self.dropout = VariationalDropout(config.dropout)
        context_dim = self.encoder.dim + inputs.output_dim
        hidden = [config.ffnn_dim] * config.ffnn_layers
        self.heads = FeedForward([context_dim, *hidden, 1], dropout=config.dropout, last_linear=True)
        self.spans = SpanEncoder(
            context_dim,
            inputs.dim,
            max_width=config.max_width,
            feature_dim=config.feature_dim,
            dropout=config.dropout,
        )
        self.mentions = MentionScorer(
            self.spans,
            hidden_dim=config.ffnn_dim,
            n_layers=config.ffnn_layers,
            dropout=config.dropout,
            # A singleton is a mention that must not choose an antecedent: one score cannot be both high and low.
            n_scores=2 if config.singletons else 1,
        )
        self.antecedents = AntecedentScorer(
            self.spans.dim,
            n_antecedents=config.n_antecedents,
            hidden_dim=config.ffnn_dim,
            n_layers=config.ffnn_layers,
            feature_dim=config.feature_dim,
            n_genres=len(genres),
            dropout=config.dropout,
        )

    def loss(self, examples: Sequence[Document]) -> Tensor:
        """Return the mean loss of a document: the sum over its spans."""
        return torch.stack([self._document_loss(self._training_part(document)) for document in examples]).mean()

    def predict(self, examples: Sequence[Document]) -> list[list[list[Mention]]]:
        return [self._clusters(self.rank(document)) for document in examples]

    def rank(self, document: Document) -> Ranking:
        """The scores of all mentions and of all antecedents of a document."""
        vectors, mask, elmo = self.inputs(document.sentences)
        words = self.lexical_dropout(vectors)
        states = self.dropout(self.encoder(words, mask))
        context = (states if elmo is None else torch.cat([states, elmo], dim=2))[mask]
        tokens = Tokens(context, words[mask], self.heads(context).squeeze(1))

        grid = span_grid([len(sentence) for sentence in document.sentences], self.config.max_width, context.device)
        both = self.mentions(self.spans, tokens)
        in_pairs, mention_scores = both[:, :, 0], both[:, :, -1]  # the same as published
        n_spans = max(1, int(self.config.spans_per_token * len(context)))
        kept = prune(mention_scores.detach(), grid, n_spans)

        starts, ends = torch.tensor(kept, device=context.device).unbind(dim=1)
        scores = self.antecedents(
            self.spans(tokens, starts, ends),
            in_pairs[starts, ends - starts - 1],
            torch.tensor(_speaker_numbers(document, kept), device=context.device),
            self._genres.get(document.genre, 0),
        )
        return Ranking(grid, mention_scores, kept, scores)

    def _training_part(self, document: Document) -> Document:
        """Return a random part of a long document in training, otherwise the document."""
        longest = self.config.max_sentences
        n_left_out = len(document.sentences) - longest
        if not longest or n_left_out <= 0 or not self.training:
            return document
        return crop(document, int(torch.randint(n_left_out + 1, ()).item()), longest)

    def _document_loss(self, document: Document) -> Tensor:
        ranking = self.rank(document)
        clusters = {mention: i for i, cluster in enumerate(document.clusters or []) for mention in cluster}
        gold = torch.tensor([clusters.get(mention, -1) for mention in ranking.kept], device=ranking.scores.device)
        loss = marginal_loss(ranking.scores, gold)
        if not self.config.singletons:
            return loss
        is_mention = torch.zeros_like(ranking.mention_scores)
        fitting = [m for m in clusters if m.end - m.start <= self.config.max_width]
        if fitting:
            starts, ends = torch.tensor(fitting, device=is_mention.device).unbind(dim=1)
            is_mention[starts, ends - starts - 1] = 1.0
        chosen = ranking.mention_scores[ranking.grid], is_mention[ranking.grid]
        return loss + F.binary_cross_entropy_with_logits(*chosen, reduction="sum")

    def _clusters(self, ranking: Ranking) -> list[list[Mention]]:
        """Return the clusters that antecedents connect; with `singletons` also single spans with a score above 0."""
        cluster_of: list[list[Mention]] = []
        for mention, antecedent in zip(ranking.kept, best_antecedents(ranking.scores)):
            cluster_of.append(cluster_of[antecedent] if antecedent < len(cluster_of) else [])
            cluster_of[-1].append(mention)
        distinct = list({id(cluster): cluster for cluster in cluster_of}.values())
        if not self.config.singletons:
            return sort_clusters(cluster for cluster in distinct if len(cluster) > 1)
        scores = ranking.mention_scores.tolist()
        return sort_clusters(c for c in distinct if len(c) > 1 or scores[c[0].start][c[0].end - c[0].start - 1] > 0)


def _speaker_numbers(document: Document, spans: Sequence[Mention]) -> list[int]:
    """Number the speakers of the spans' first tokens within the document; 0 for an unknown speaker."""
    if not document.speakers:
        return [0] * len(spans)
    numbers = {"": 0}
    return [numbers.setdefault(document.speakers[span.start], len(numbers)) for span in spans]
