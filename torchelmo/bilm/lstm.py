"""The LSTM of the biLM, with a projected output, and with clipped cells and outputs.

i, j, f, o = x_t W_x + h_{t−1} W_h + b
c_t = clip(σ(f + 1) ⊙ c_{t−1} + σ(i) ⊙ tanh(j))
h_t = clip((σ(o) ⊙ tanh(c_t)) W_p)
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

FORGET_BIAS = 1.0  # TensorFlow adds it at run time, so the bias in the files does not include it


class LSTMState(NamedTuple):
    """The state of one LSTM."""

    hidden: Tensor  # (batch, projection_dim)
    cell: Tensor  # (batch, cell_dim)


class ProjectedLSTM(nn.Module):
    """One layer in one direction: (batch, tokens, input_dim) -> (batch, tokens, projection_dim).

    This is the reference implementation; tests compare every faster one with it.

    Args:
        input_dim: The width of the input.
        cell_dim: The width of the cell.
        projection_dim: The width of the output.
        cell_clip: The limit of cell values; None for no limit.
        projection_clip: The limit of output values; None for no limit.
        backward: Read from the last token to the first.
    """

    def __init__(
        self,
        input_dim: int,
        cell_dim: int,
        projection_dim: int,
        *,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
        backward: bool = False,
    ) -> None:
        super().__init__()
        self.input_dim, self.cell_dim, self.projection_dim = input_dim, cell_dim, projection_dim
        self.cell_clip, self.projection_clip = cell_clip, projection_clip
        self.backward = backward
        # For x · W, with the gates i, j (candidate), f, o in columns, as in the official files. For one sentence at a
        # time, this orientation is read twice as fast as its transpose.
        self.input_weight = nn.Parameter(torch.empty(input_dim, 4 * cell_dim))
        self.state_weight = nn.Parameter(torch.empty(projection_dim, 4 * cell_dim))
        self.bias = nn.Parameter(torch.empty(4 * cell_dim))
        self.projection = nn.Parameter(torch.empty(cell_dim, projection_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize as published: Glorot-uniform over the joined input and state weights."""
        bound = math.sqrt(6.0 / (self.input_dim + self.projection_dim + 4 * self.cell_dim))
        nn.init.uniform_(self.input_weight, -bound, bound)
        nn.init.uniform_(self.state_weight, -bound, bound)
        nn.init.zeros_(self.bias)
        nn.init.xavier_uniform_(self.projection)

    def forward(self, x: Tensor, mask: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        """Run over all tokens.

        Args:
            x: (batch, tokens, input_dim).
            mask: (batch, tokens), true at real tokens. Padded positions do not change the state of a row.
            state: The state before the first token; default: zero.

        Returns:
            The outputs (batch, tokens, projection_dim), 0 at padded positions, and the state after the last token.
        """
        hidden, cell = state or self.zero_state(x)
        outputs = [hidden] * x.shape[1]
        for t in reversed(range(x.shape[1])) if self.backward else range(x.shape[1]):
            new = self.step(x[:, t], LSTMState(hidden, cell))
            real = mask[:, t].unsqueeze(1)
            hidden = torch.where(real, new.hidden, hidden)
            cell = torch.where(real, new.cell, cell)
            outputs[t] = torch.where(real, new.hidden, torch.zeros_like(new.hidden))
        return torch.stack(outputs, dim=1) if outputs else x.new_zeros(len(x), 0, self.projection_dim), LSTMState(
            hidden, cell
        )

    def step(self, x: Tensor, state: LSTMState) -> LSTMState:
        """Return the state after one token of every row, x (batch, input_dim)."""
        gates = x @ self.input_weight + state.hidden @ self.state_weight + self.bias
        i, j, f, o = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(f + FORGET_BIAS) * state.cell + torch.sigmoid(i) * torch.tanh(j)
        cell = _clip(cell, self.cell_clip)
        hidden = _clip((torch.sigmoid(o) * torch.tanh(cell)) @ self.projection, self.projection_clip)
        return LSTMState(hidden, cell)

    def zero_state(self, x: Tensor) -> LSTMState:
        """Return the zero state for a batch like x."""
        return LSTMState(x.new_zeros(len(x), self.projection_dim), x.new_zeros(len(x), self.cell_dim))


def _clip(x: Tensor, limit: float | None) -> Tensor:
    return x if limit is None else x.clamp(-limit, limit)
