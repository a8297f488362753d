"""[tokens; predicate mark] -> highway LSTM, forwards and backwards in turn -> scores of tags -> best well-formed tags.

ELMo at the output joins after the last layer. There is no CRF: well-formedness is a rule of decoding alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.highway_lstm import HighwayLSTM
from torchelmo.tasks.layers.padding import pad_ids
from torchelmo.tasks.layers.viterbi import viterbi_decode
from torchelmo.tasks.settings import require_positive, require_share
from torchelmo.tasks.spans import allowed_transitions
from torchelmo.tasks.srl.data import Proposition
from torchelmo.tasks.tagging import Tags, gold_tags
from torchelmo.tasks.task import TaskModel

_NO_LABEL = -100  # the index that cross_entropy leaves out


@dataclass(frozen=True)
class SrlConfig:
    """[model]: the sizes of He et al. 2017 and Peters et al. 2018."""

    n_layers: int = 8
    hidden_dim: int = 300
    predicate_dim: int = 100  # of the vector that says whether a token is the predicate
    dropout: float = 0.1  # recurrent: one mask for all tokens of a row, for every layer

    def __post_init__(self) -> None:
        require_positive(self, "n_layers", "hidden_dim", "predicate_dim")
        require_share(self, "dropout")


class SrlModel(TaskModel[Proposition, Tags]):
    """`labels` are the BIO tags, "O" among them."""

    def __init__(self, config: SrlConfig, inputs: TokenInput, labels: Sequence[str]) -> None:
        super().__init__()
        self.inputs, self.labels = inputs, list(labels)
        self._ids = {label: index for index, label in enumerate(labels)}
        self.predicate = nn.Embedding(2, config.predicate_dim)
        self.encoder = HighwayLSTM(
            inputs.dim + config.predicate_dim, config.hidden_dim, n_layers=config.n_layers, dropout=config.dropout
        )
        self.scores = nn.Linear(config.hidden_dim + inputs.output_dim, len(labels))

    def loss(self, examples: Sequence[Proposition]) -> Tensor:
        """The mean cross-entropy of all tokens; a tag that the training data had not is left out."""
        scores, mask = self._scores(examples)
        rows = [[self._ids.get(tag, _NO_LABEL) for tag in gold_tags(example)] for example in examples]
        return F.cross_entropy(scores[mask], pad_ids(rows, device=mask.device)[mask], ignore_index=_NO_LABEL)

    def predict(self, examples: Sequence[Proposition]) -> list[Tags]:
        """Tags in which I-X stands only after B-X or I-X; all O for a sentence without a predicate."""
        allowed = allowed_transitions(self.labels)
        scores, mask = self._scores(examples)
        start, pairs, end = (torch.zeros(part.shape).masked_fill(~part, -torch.inf).to(scores) for part in allowed)
        paths = viterbi_decode(scores.log_softmax(dim=-1), mask, pairs=pairs, start=start, end=end)
        return [
            ["O"] * len(path) if example.predicate is None else [self.labels[i] for i in path]
            for example, path in zip(examples, paths)
        ]

    def _scores(self, examples: Sequence[Proposition]) -> tuple[Tensor, Tensor]:
        """(batch, tokens, n_labels) and the mask of real tokens."""
        # The predicates of a sentence share its vectors, and so in training the dropout of its ELMo vectors.
        places = {tokens: i for i, tokens in enumerate(dict.fromkeys(example.tokens for example in examples))}
        vectors, mask, output = self.inputs(list(places))
        rows = torch.tensor([places[example.tokens] for example in examples], device=mask.device)
        vectors, mask = vectors[rows], mask[rows]
        marks = torch.zeros(mask.shape, dtype=torch.long, device=mask.device)
        for row, example in enumerate(examples):
            if example.predicate is not None:
                marks[row, example.predicate] = 1
        hidden = self.encoder(torch.cat([vectors, self.predicate(marks)], dim=-1), mask)
        if output is not None:
            hidden = torch.cat([hidden, output[rows]], dim=-1)
        return self.scores(hidden), mask
