"""The SRL model: [tokens; predicate mark] -> highway LSTM -> scores of tags -> best well-formed tags.

Layers of the highway LSTM read forward and backward in turn (He et al. 2017). ELMo at the output is concatenated after
the last layer. There is no CRF: only decoding enforces well-formed tags.

    c_t = σ(i) tanh(j) + σ(f) c'        h_t = z (σ(r) σ(o) tanh(c_t) + (1 - σ(r)) W_h x_t)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.config import Config, Fraction, LayerCount, Width
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.basic import pad_ids
from torchelmo.tasks.layers.crf import viterbi_decode
from torchelmo.tasks.srl.data import Proposition
from torchelmo.tasks.srl.fast_highway_lstm import HighwayWeights, run_packed
from torchelmo.tasks.tagging import Tags, allowed_transitions, gold_tags
from torchelmo.tasks.task import TaskModel

_NO_LABEL = -100  # ignored by cross_entropy


@dataclass(frozen=True)
class SrlConfig(Config):
    """[model]: the defaults are the sizes of He et al. 2017 and Peters et al. 2018."""

    n_layers: LayerCount = 8
    hidden_dim: Width = 300
    predicate_dim: Width = 100  # width of the vector that marks the predicate
    dropout: Fraction = 0.1  # recurrent dropout: one mask for all tokens of a row, for every layer


class SrlModel(TaskModel[Proposition, Tags]):
    """Tag the arguments of a predicate. `labels` are the BIO tags, "O" among them."""

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
        """Return the mean cross-entropy over tokens, without those whose tag is not in the training data."""
        scores, mask = self._scores(examples)
        rows = [[self._ids.get(tag, _NO_LABEL) for tag in gold_tags(example)] for example in examples]
        return F.cross_entropy(scores[mask], pad_ids(rows, device=mask.device)[mask], ignore_index=_NO_LABEL)

    def predict(self, examples: Sequence[Proposition]) -> list[Tags]:
        """Return the best tags in which I-X follows only B-X or I-X; all O for a sentence without a predicate."""
        allowed = allowed_transitions(self.labels)
        scores, mask = self._scores(examples)
        start, pairs, end = (torch.zeros(part.shape).masked_fill(~part, -torch.inf).to(scores) for part in allowed)
        paths = viterbi_decode(scores.log_softmax(dim=-1), mask, pairs=pairs, start=start, end=end)
        return [
            ["O"] * len(path) if example.predicate is None else [self.labels[i] for i in path]
            for example, path in zip(examples, paths)
        ]

    def _scores(self, examples: Sequence[Proposition]) -> tuple[Tensor, Tensor]:
        """Return the scores (batch, tokens, n_labels) and the mask of real tokens."""
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


class HighwayLSTM(nn.Module):
    """Encode a batch: (batch, tokens, input_dim), mask (batch, tokens) -> (batch, tokens, hidden_dim), 0 at padding.

    `path` chooses between two implementations with the same results: "reference" follows the equations step by step;
    "fast" skips padding, computes the products with x for all steps at once, and has a hand-written gradient.
    """

    def __init__(self, input_dim: int, hidden_dim: int, *, n_layers: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim, self.dropout = hidden_dim, dropout
        widths = [input_dim, *[hidden_dim] * (n_layers - 1)]
        self.layers = nn.ModuleList(HighwayLayer(width, hidden_dim) for width in widths)

    def forward(self, x: Tensor, mask: Tensor, *, path: Literal["fast", "reference"] = "fast") -> Tensor:
        weights = [layer.weights() for layer in self.layers if isinstance(layer, HighwayLayer)]
        kept = self._dropout_masks(x)
        if path == "fast":
            return run_packed(x, mask, kept, weights)
        for number, layer in enumerate(weights):
            x = run_reference(x, mask, None if kept is None else kept[number], layer, backwards=number % 2 == 1)
        return x

    def _dropout_masks(self, x: Tensor) -> Tensor | None:
        """Draw the dropout masks z of all layers: (n_layers, batch, hidden_dim), 0 or 1 / (1 - p)."""
        if not self.training or not self.dropout:
            return None
        masks = x.new_empty(len(self.layers), len(x), self.dim)
        return masks.bernoulli_(1 - self.dropout).div_(1 - self.dropout)


class HighwayLayer(nn.Module):
    """The weights of one layer, initialized with orthonormal blocks and a forget-gate bias of 1."""

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.input_weight = nn.Parameter(_orthonormal_blocks(input_dim, hidden_dim, 6))
        self.state_weight = nn.Parameter(_orthonormal_blocks(hidden_dim, hidden_dim, 5))
        self.bias = nn.Parameter(torch.zeros(5 * hidden_dim))
        with torch.no_grad():
            self.bias[2 * hidden_dim : 3 * hidden_dim] = 1.0

    def weights(self) -> HighwayWeights:
        return HighwayWeights(self.input_weight, self.state_weight, self.bias)


def _orthonormal_blocks(rows: int, columns: int, n_blocks: int) -> Tensor:
    return torch.cat([nn.init.orthogonal_(torch.empty(rows, columns)) for _ in range(n_blocks)], dim=1)


def run_reference(x: Tensor, mask: Tensor, kept: Tensor | None, weights: HighwayWeights, *, backwards: bool) -> Tensor:
    """Run one layer by its equations; padded positions do not change the state."""
    batch, steps, _ = x.shape
    dim = weights.state.shape[0]
    hidden = cell = x.new_zeros(batch, dim)
    outputs = [hidden] * steps
    for t in reversed(range(steps)) if backwards else range(steps):
        of_input, carried = (x[:, t] @ weights.input).split([5 * dim, dim], dim=1)
        j, i, f, o, r = (of_input + hidden @ weights.state + weights.bias).chunk(5, dim=1)
        i, f, o, r = i.sigmoid(), f.sigmoid(), o.sigmoid(), r.sigmoid()
        new_cell = i * j.tanh() + f * cell
        new_hidden = r * o * new_cell.tanh() + (1 - r) * carried
        if kept is not None:
            new_hidden = kept * new_hidden
        real = mask[:, t : t + 1]
        hidden, cell = torch.where(real, new_hidden, hidden), torch.where(real, new_cell, cell)
        outputs[t] = torch.where(real, new_hidden, torch.zeros_like(hidden))
    return torch.stack(outputs, dim=1) if steps else x.new_zeros(batch, 0, dim)
