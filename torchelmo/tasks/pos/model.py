"""tokens -> dropout -> biLSTM -> scores of tags; or the linear probe, tokens -> scores of tags."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchelmo.errors import ConfigError
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.dropout import VariationalDropout
from torchelmo.tasks.layers.encoder import BiRNN
from torchelmo.tasks.settings import require_positive, require_share
from torchelmo.tasks.tagging import Tagged, Tags, gold_tags, tag_ids
from torchelmo.tasks.task import TaskModel


@dataclass(frozen=True)
class PosConfig:
    """[model]: "linear" is the probe of Peters et al. 2018, Table 6; they publish no sizes of a biLSTM tagger."""

    head: Literal["bilstm", "linear"] = "bilstm"  # the other settings are those of the biLSTM
    hidden_dim: int = 200  # of each direction
    n_layers: int = 2
    dropout: float = 0.33  # at the input of every layer, and of the scores

    def __post_init__(self) -> None:
        require_positive(self, "hidden_dim", "n_layers")
        require_share(self, "dropout")


class PosModel(TaskModel[Tagged, Tags]):
    """ELMo at the output joins after the biLSTM."""

    def __init__(self, config: PosConfig, inputs: TokenInput, tags: Sequence[str]) -> None:
        super().__init__()
        self.inputs = inputs
        self.tags = list(tags)
        self._ids = {tag: index for index, tag in enumerate(self.tags)}
        self.encoder: BiRNN | None = None
        if config.head == "linear":
            if inputs.output_dim:
                raise ConfigError(
                    'head = "linear" has no encoder whose output ELMo could join: set elmo.place = "input".'
                )
            self.scores = nn.Linear(inputs.dim, len(self.tags))
        else:
            rnn = BiRNN(inputs.dim, config.hidden_dim, n_layers=config.n_layers, dropout=config.dropout)
            self.encoder, self.dropout = rnn, VariationalDropout(config.dropout)
            self.scores = nn.Linear(rnn.dim + inputs.output_dim, len(self.tags))

    def loss(self, examples: Sequence[Tagged]) -> Tensor:
        scores, mask = self._scores(examples)
        gold = [index for example in examples for index in tag_ids(gold_tags(example), self._ids)]
        return nn.functional.cross_entropy(scores[mask], torch.tensor(gold, device=mask.device))

    def predict(self, examples: Sequence[Tagged]) -> list[Tags]:
        scores, _ = self._scores(examples)
        best = scores.argmax(dim=-1).tolist()
        return [[self.tags[i] for i in row[: len(example.tokens)]] for row, example in zip(best, examples)]

    def _scores(self, examples: Sequence[Tagged]) -> tuple[Tensor, Tensor]:
        """(batch, tokens, n_tags) and the mask of real tokens."""
        vectors, mask, output = self.inputs([example.tokens for example in examples])
        if self.encoder is not None:
            vectors = self.dropout(self.encoder(self.dropout(vectors), mask))
        if output is not None:
            vectors = torch.cat([vectors, output], dim=-1)
        return self.scores(vectors), mask
