"""The enhanced sequential inference model, ESIM (Chen et al. 2017).

a, b = encoder(premise), encoder(hypothesis);  ã = attention of a to b by dot products, b̃ of b to a
composed = composition(ReLU(W·[a; ã; a − ã; a ⊙ ã])), and so for b;  scores = classifier([mean; max of both])
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchelmo.tasks.classification import Classifier
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.attention import attend
from torchelmo.tasks.layers.dropout import VariationalDropout
from torchelmo.tasks.layers.encoder import BiRNN
from torchelmo.tasks.layers.feed_forward import FeedForward
from torchelmo.tasks.layers.pooling import max_pool, mean_pool
from torchelmo.tasks.nli.data import NliExample
from torchelmo.tasks.settings import require_positive, require_share


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
