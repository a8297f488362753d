"""The biattentive classification network (McCann et al. 2017), for one sentence that attends to itself.

x = encoder(ReLU(W·vectors));  c = attention of x to x;  y = integrator([x; x − c; x ⊙ c])
scores = classifier([max y; mean y; min y; self-attentive y])
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchelmo.tasks.classification import Classifier
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.attention import self_attend
from torchelmo.tasks.layers.dropout import VariationalDropout
from torchelmo.tasks.layers.encoder import BiRNN
from torchelmo.tasks.layers.feed_forward import FeedForward
from torchelmo.tasks.layers.pooling import SelfAttentivePool, max_pool, mean_pool, min_pool
from torchelmo.tasks.sentiment.data import SentimentExample
from torchelmo.tasks.settings import require_positive, require_share


@dataclass(frozen=True)
class BCNConfig:
    """[model] The widths of Peters et al. 2018, with their two ReLU layers in place of maxout."""

    feed_forward_dim: int = 300  # of the ReLU layer below the encoder
    encoder_dim: int = 300  # of each direction
    integrator_dim: int = 300  # of each direction
    classifier_dim: int = 300  # of the two ReLU layers above the pooled vectors
    input_dropout: float = 0.5  # on the token vectors
    dropout: float = 0.25  # after the ReLU layers and on the integrated tokens

    def __post_init__(self) -> None:
        require_positive(self, "feed_forward_dim", "encoder_dim", "integrator_dim", "classifier_dim")
        require_share(self, "input_dropout", "dropout")


class BCN(Classifier[SentimentExample]):
    """ELMo at the output stands beside the integrator's: [y; ELMo].

    Not before the attention: an ELMo vector has by far the largest product with itself, so that every word would see
    little but itself.
    """

    def __init__(self, config: BCNConfig, inputs: TokenInput, *, labels: Sequence[str]) -> None:
        super().__init__()
        self.inputs, self.labels = inputs, list(labels)
        self.input_dropout = VariationalDropout(config.input_dropout)
        self.feed_forward = FeedForward([inputs.dim, config.feed_forward_dim], dropout=config.dropout)
        self.encoder = BiRNN(config.feed_forward_dim, config.encoder_dim)
        self.integrator = BiRNN(3 * self.encoder.dim, config.integrator_dim)
        self.integrated_dropout = VariationalDropout(config.dropout)
        integrated_dim = self.integrator.dim + inputs.output_dim
        self.attentive_pool = SelfAttentivePool(integrated_dim)
        hidden = config.classifier_dim
        self.classifier = FeedForward(
            [4 * integrated_dim, hidden, hidden, len(self.labels)], dropout=config.dropout, last_linear=True
        )

    def forward(self, examples: Sequence[SentimentExample]) -> Tensor:
        vectors, mask, elmo = self.inputs([example.tokens for example in examples])
        x = self.encoder(self.feed_forward(self.input_dropout(vectors)), mask)
        seen = self_attend(x, mask)
        y = self.integrator(torch.cat([x, x - seen, x * seen], dim=-1), mask)
        if elmo is not None:
            y = torch.cat([y, elmo], dim=-1)
        y = self.integrated_dropout(y)
        pools = (max_pool, mean_pool, min_pool, self.attentive_pool)
        scores: Tensor = self.classifier(torch.cat([pool(y, mask) for pool in pools], dim=-1))
        return scores
