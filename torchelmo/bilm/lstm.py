"""The LSTM of the biLM: its output is projected, and both cell and output are clipped.

i, j, f, o = x_t W_x + h_{t−1} W_h + b
c_t = clip(σ(f + 1) ⊙ c_{t−1} + σ(i) ⊙ tanh(j))
h_t = clip((σ(o) ⊙ tanh(c_t)) W_p)
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

FORGET_BIAS = 1.0  # TensorFlow adds it at run time, so that the files hold the bias without it


class LSTMState(NamedTuple):
    hidden: Tensor  # (batch, projection_dim)
    cell: Tensor  # (batch, cell_dim)


class ProjectedLSTM(nn.Module):
    """(batch, tokens, input_dim) -> (batch, tokens, projection_dim), one direction.

    This loop is the reference: every faster path is held to it by a test.
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
        # x · W orientation and the gates i, j (candidate), f, o side by side, as in the official files: one
        # sentence at a time, this orientation is read twice as fast as its transpose.
        self.input_weight = nn.Parameter(torch.empty(input_dim, 4 * cell_dim))
        self.state_weight = nn.Parameter(torch.empty(projection_dim, 4 * cell_dim))
        self.bias = nn.Parameter(torch.empty(4 * cell_dim))
        self.projection = nn.Parameter(torch.empty(cell_dim, projection_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform over the joined input and state weights, as the published program began."""
        bound = math.sqrt(6.0 / (self.input_dim + self.projection_dim + 4 * self.cell_dim))
        nn.init.uniform_(self.input_weight, -bound, bound)
        nn.init.uniform_(self.state_weight, -bound, bound)
        nn.init.zeros_(self.bias)
        nn.init.xavier_uniform_(self.projection)

    def forward(self, x: Tensor, mask: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        """`mask` (batch, tokens) is true at real tokens; a row's state rests while its mask is false."""
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
        """One token of every row: (batch, input_dim) and the state before it -> the state after it."""
        gates = x @ self.input_weight + state.hidden @ self.state_weight + self.bias
        i, j, f, o = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(f + FORGET_BIAS) * state.cell + torch.sigmoid(i) * torch.tanh(j)
        cell = _clip(cell, self.cell_clip)
        hidden = _clip((torch.sigmoid(o) * torch.tanh(cell)) @ self.projection, self.projection_clip)
        return LSTMState(hidden, cell)

    def zero_state(self, x: Tensor) -> LSTMState:
        return LSTMState(x.new_zeros(len(x), self.projection_dim), x.new_zeros(len(x), self.cell_dim))


def _clip(x: Tensor, limit: float | None) -> Tensor:
    return x if limit is None else x.clamp(-limit, limit)
