"""Building blocks of task models: padding, dropout, attention, pooling, feed-forward and recurrent layers.

Vectors are (batch, tokens, dim); a mask (batch, tokens) is true at real tokens.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchelmo.config import suggest
from torchelmo.errors import ConfigError
from torchelmo.tasks.layers.fast_rnn import run_gru

Cell = Literal["lstm", "gru"]


def lengths_mask(lengths: Sequence[int] | Tensor, device: torch.device | str | None = None) -> Tensor:
    """Return a mask for rows of these lengths: (n,) -> (n, longest) bool, true at real positions.

    >>> lengths_mask([2, 0, 1]).int().tolist()
    [[1, 1], [0, 0], [1, 0]]
    """
    lengths = torch.as_tensor(lengths, dtype=torch.long, device=device)
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)


def pad_ids(rows: Sequence[Sequence[int]], value: int = 0, device: torch.device | str | None = None) -> Tensor:
    """Pad lists of ids with `value` to a tensor (n, longest) of int64.

    >>> pad_ids([[5, 6], [7]]).tolist()
    [[5, 6], [7, 0]]
    """
    longest = max(map(len, rows), default=0)
    padded = [[*row, *[value] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long, device=device).view(len(rows), longest)


class VariationalDropout(nn.Module):
    """Dropout with one mask for all tokens of a row: (batch, tokens, dim) -> the same shape."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ConfigError(f"VariationalDropout: expected a probability p of at least 0 and below 1, got {p}.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        return x * F.dropout(x.new_ones(len(x), 1, x.shape[2]), self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def masked_softmax(scores: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Compute a softmax over the positions of `dim` at which `mask` is true; all others get the weight 0.

    `mask` is broadcast to `scores`. If no position is true, all weights are 0.

    >>> masked_softmax(torch.tensor([1.0, 1.0, 9.0]), torch.tensor([True, True, False])).tolist()
    [0.5, 0.5, 0.0]
    """
    # The lowest finite number instead of -inf: a row without real positions gets weights and gradients of 0, not NaN.
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), dim=dim) * mask


def attend(scores: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Average values by attention: scores (batch, n, m), values (batch, m, dim) and their mask -> (batch, n, dim)."""
    return masked_softmax(scores, mask.unsqueeze(-2)) @ values


def self_attend(vectors: Tensor, mask: Tensor) -> Tensor:
    """Let every position attend to its own sequence: (batch, n, dim), mask (batch, n) -> (batch, n, dim)."""
    return attend(vectors @ vectors.transpose(-2, -1), vectors, mask)


def max_pool(vectors: Tensor, mask: Tensor) -> Tensor:
    """Return the maximum over real tokens, 0 for a row without any: (batch, dim)."""
    real = mask.unsqueeze(-1)
    highest = vectors.masked_fill(~real, -torch.inf).amax(dim=1)
    return highest.masked_fill(~real.any(dim=1), 0.0)


def min_pool(vectors: Tensor, mask: Tensor) -> Tensor:
    """Return the minimum over real tokens, 0 for a row without any: (batch, dim)."""
    return -max_pool(-vectors, mask)


def mean_pool(vectors: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over real tokens, 0 for a row without any: (batch, dim)."""
    real = mask.unsqueeze(-1)
    return vectors.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1).clamp_min(1)


class SelfAttentivePool(nn.Module):
    """Pool tokens with learned weights: Σ_t softmax_t(v·x_t + d) x_t."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        weights = masked_softmax(self.score(vectors).squeeze(-1), mask)  # (batch, tokens)
        return (weights.unsqueeze(-2) @ vectors).squeeze(-2)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}


class FeedForward(nn.Module):
    """Apply layers of h = dropout(activation(W x + b)): (..., dims[0]) -> (..., dims[-1]).

    Args:
        dims: The width of the input and of each layer.
        dropout: Dropout after each activation.
        activation: "relu" or "tanh".
        last_linear: Leave out activation and dropout of the last layer, whose values are scores.
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
            raise ConfigError(
                f"FeedForward: expected the widths of the input and of at least one layer, got {list(dims)}."
            )
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


class BiRNN(nn.Module):
    """Stack bidirectional layers: (batch, tokens, input_dim) -> (batch, tokens, 2 * hidden_dim), 0 at padding.

    Args:
        input_dim: The width of the token vectors.
        hidden_dim: The width of each direction.
        n_layers: The number of layers.
        cell: "lstm" or "gru".
        dropout: Variational dropout between the layers; none before the first and after the last.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dim: int,
        *,
        n_layers: int = 1,
        cell: Cell = "lstm",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim = 2 * hidden_dim
        make = nn.LSTM if cell == "lstm" else nn.GRU
        self.layers = nn.ModuleList(
            make(input_dim if number == 0 else self.dim, hidden_dim, batch_first=True, bidirectional=True)
            for number in range(n_layers)
        )
        self.dropout = VariationalDropout(dropout)
        for layer in self.layers:
            assert isinstance(layer, nn.LSTM | nn.GRU)
            _initialize(layer)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Encode a batch. `mask` (batch, tokens) is true at real tokens, which come first; a row may have none."""
        if not mask.numel():
            return x.new_zeros(*mask.shape, self.dim)
        lengths = mask.sum(dim=1)
        for number, layer in enumerate(self.layers):
            if number:
                x = self.dropout(x)
            x = _run_layer(layer, x, lengths)
        return x.masked_fill(~mask.unsqueeze(2), 0.0)


def _run_layer(layer: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    if x.device.type == "cpu":
        return run_gru(layer, x, lengths) if isinstance(layer, nn.GRU) else _run_lstm(layer, x, lengths)
    # Packed sequences may not be empty: rows without tokens read one padded position, which is masked later.
    packed = pack_padded_sequence(x, lengths.clamp_min(1).cpu(), batch_first=True, enforce_sorted=False)
    out, _ = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=x.shape[1])
    return out


def _run_lstm(lstm: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    """Run both directions as unidirectional LSTMs over padded rows; positions after a row's end are undefined.

    PyTorch's LSTM kernel for packed sequences takes about twice as long as that for padded batches
    (benchmarks/task_layers.py), and batches are sorted by length, so they have little padding. The backward direction
    reads each row reversed from its own end, so padding comes last in both directions and does not affect real tokens.
    """
    assert isinstance(lstm, nn.LSTM)
    weights: list[Tensor] = list(lstm.parameters())
    step = torch.arange(x.shape[1], device=x.device)
    ends = lengths.unsqueeze(1)
    reversal = torch.where(step < ends, ends - 1 - step, step).unsqueeze(2)  # (batch, tokens, 1), its own inverse
    with torch.autocast(x.device.type, enabled=False):
        x = x.to(weights[0].dtype)
        zeros = x.new_zeros(1, len(x), lstm.hidden_size)

        def run(x: Tensor, weights: list[Tensor]) -> Tensor:
            return torch.lstm(x, (zeros, zeros), weights, True, 1, 0.0, lstm.training, False, True)[0]

        forward = run(x, weights[:4])
        backward = run(x.gather(1, reversal.expand_as(x)), weights[4:])
        return torch.cat([forward, backward.gather(1, reversal.expand_as(backward))], dim=2)


def _initialize(layer: nn.LSTM | nn.GRU) -> None:
    """Initialize each gate: Glorot-uniform input weights, orthogonal recurrent weights, forget-gate bias 1."""
    for name, parameter in layer.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih") and isinstance(layer, nn.LSTM):
                with torch.no_grad():  # the gates are i, f, g, o
                    parameter[layer.hidden_size : 2 * layer.hidden_size] = 1.0
            continue
        for gate in parameter.detach().split(layer.hidden_size):
            if name.startswith("weight_hh"):
                nn.init.orthogonal_(gate)
            else:
                nn.init.xavier_uniform_(gate)
