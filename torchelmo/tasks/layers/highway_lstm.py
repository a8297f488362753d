"""A stack of LSTM layers with highway connections, every other one reading backwards (He et al. 2017).

For each layer, with the step before it (after it, in layers that read backwards) marked ′:

    j = tanh(W_j x + U_j h′ + b_j)          i, f, o, r = σ(W x + U h′ + b), each with weights of its own
    c = i ⊙ j + f ⊙ c′
    h = z ⊙ (r ⊙ o ⊙ tanh(c) + (1 − r) ⊙ W_h x)

z is the recurrent dropout: one mask for all steps of a row, drawn for every layer. h is the next layer's x.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from torchelmo.tasks.layers.fast_highway_lstm import HighwayWeights, run_packed


class HighwayLSTM(nn.Module):
    """(batch, tokens, input_dim), mask (batch, tokens) -> (batch, tokens, hidden_dim), 0 at padded positions.

    `path` chooses how the same numbers are computed: "plain" follows the equations step by step; "fast" looks at
    real tokens only, takes the products with x for all steps at once, and has its gradient written out.
    """

    def __init__(self, input_dim: int, hidden_dim: int, *, n_layers: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim, self.dropout = hidden_dim, dropout
        widths = [input_dim, *[hidden_dim] * (n_layers - 1)]
        self.layers = nn.ModuleList(HighwayLayer(width, hidden_dim) for width in widths)

    def forward(self, x: Tensor, mask: Tensor, *, path: Literal["fast", "plain"] = "fast") -> Tensor:
        weights = [layer.weights() for layer in self.layers if isinstance(layer, HighwayLayer)]
        kept = self._dropout_masks(x)
        if path == "fast":
            return run_packed(x, mask, kept, weights)
        for number, layer in enumerate(weights):
            x = _run_plain(x, mask, None if kept is None else kept[number], layer, backwards=number % 2 == 1)
        return x

    def _dropout_masks(self, x: Tensor) -> Tensor | None:
        """(n_layers, batch, hidden_dim): z of every layer, 0 or 1 / (1 − p)."""
        if not self.training or not self.dropout:
            return None
        masks = x.new_empty(len(self.layers), len(x), self.dim)
        return masks.bernoulli_(1 - self.dropout).div_(1 - self.dropout)


class HighwayLayer(nn.Module):
    """The weights of one layer: at the start each block is orthonormal and the forget gate open."""

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


def _run_plain(x: Tensor, mask: Tensor, kept: Tensor | None, weights: HighwayWeights, *, backwards: bool) -> Tensor:
    """One layer as the equations say; a padded position leaves the state as it was."""
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
