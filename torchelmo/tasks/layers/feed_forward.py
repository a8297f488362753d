"""Layers of h = dropout(act(W x + b)), one after the other."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from torchelmo.config import suggest
from torchelmo.errors import ConfigError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}


class FeedForward(nn.Module):
    """(..., dims[0]) -> (..., dims[-1]), a layer for every two neighbours in `dims`.

    With `last_linear` the last layer has neither activation nor dropout: its values are scores.
    """

    def __init__(
        self,
        dims: Sequence[int],
        *,
        dropout: float = 0.0,
        activation: str = "relu",
        last_linear: bool = False,
    ) -> None:
        super().__init__()
        if len(dims) < 2:
            raise ConfigError(f"FeedForward: expected the width of the input and of each layer, got {list(dims)}.")
        if activation not in ACTIVATIONS:
            raise ConfigError(f"FeedForward: no activation {activation!r}.{suggest(activation, ACTIVATIONS)}")
        self.dim, self.activation, self.last_linear = dims[-1], activation, last_linear
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in itertools.pairwise(dims))
        self.dropout = nn.Dropout(dropout)
        for linear in self.layers:
            assert isinstance(linear, nn.Linear)
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        for number, linear in enumerate(self.layers, 1):
            x = linear(x)
            if number < len(self.layers) or not self.last_linear:
                x = self.dropout(ACTIVATIONS[self.activation](x))
        return x
