"""tokens -> dropout -> biLSTM -> dropout -> biLSTM -> scores of tags -> CRF.

ELMo at the output joins after the second biLSTM, or between the two, which with the top layer alone is TagLM.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchelmo.errors import ConfigError
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.crf import CRF
from torchelmo.tasks.layers.dropout import VariationalDropout
from torchelmo.tasks.layers.encoder import BiRNN
from torchelmo.tasks.layers.padding import pad_ids
from torchelmo.tasks.settings import require_share
from torchelmo.tasks.spans import allowed_transitions, from_bio, to_bio
from torchelmo.tasks.tagging import Tagged, Tags, gold_tags, tag_ids
from torchelmo.tasks.task import TaskModel


@dataclass(frozen=True)
class NerConfig:
    """[model]: the sizes of Peters et al. 2018 (Peters et al. 2017 for the place "between")."""

    hidden_dims: tuple[int, int] = (200, 100)  # of each direction of the two biLSTMs
    dropout: float = 0.5  # at the input of both
    scheme: Literal["bio", "bioes"] = "bioes"  # of the tags inside the model; examples and predictions are BIO
    elmo_output: Literal["end", "between"] = "end"  # where ELMo at the output joins

    def __post_init__(self) -> None:
        if min(self.hidden_dims) < 1:
            raise ConfigError(f"hidden_dims must be at least 1, got {list(self.hidden_dims)}.")
        require_share(self, "dropout")


class NerModel(TaskModel[Tagged, Tags]):
    """`types` are the labels of entities; the tags are made of them."""

    def __init__(self, config: NerConfig, inputs: TokenInput, types: Sequence[str]) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        prefixes = "BIES" if config.scheme == "bioes" else "BI"
        self.labels = ["O", *(f"{prefix}-{name}" for name in types for prefix in prefixes)]
        self._ids = {label: index for index, label in enumerate(self.labels)}
        between = inputs.output_dim if config.elmo_output == "between" else 0
        first, second = config.hidden_dims
        self.dropout = VariationalDropout(config.dropout)
        self.first = BiRNN(inputs.dim, first)
        self.second = BiRNN(self.first.dim + between, second)
        self.scores = nn.Linear(self.second.dim + inputs.output_dim - between, len(self.labels))
        self.crf = CRF(len(self.labels), transitions=allowed_transitions(self.labels))

    def loss(self, examples: Sequence[Tagged]) -> Tensor:
        emissions, mask = self._emissions(examples)
        rows = [tag_ids(from_bio(gold_tags(example), self.config.scheme), self._ids) for example in examples]
        log_likelihood: Tensor = self.crf.log_likelihood(emissions, pad_ids(rows, device=mask.device), mask)
        return -log_likelihood.mean()

    def predict(self, examples: Sequence[Tagged]) -> list[Tags]:
        emissions, mask = self._emissions(examples)
        paths = self.crf.viterbi(emissions, mask)
        return [to_bio([self.labels[i] for i in path], "auto", "prediction") for path in paths]

    def _emissions(self, examples: Sequence[Tagged]) -> tuple[Tensor, Tensor]:
        """(batch, tokens, n_labels) and the mask of real tokens."""
        vectors, mask, output = self.inputs([example.tokens for example in examples])
        hidden = self.first(self.dropout(vectors), mask)
        if output is not None and self.config.elmo_output == "between":
            hidden = torch.cat([hidden, output], dim=-1)
        hidden = self.second(self.dropout(hidden), mask)
        if output is not None and self.config.elmo_output == "end":
            hidden = torch.cat([hidden, output], dim=-1)
        return self.scores(hidden), mask
