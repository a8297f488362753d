"""Bidirectional LSTM and GRU layers over padded sentences: h_t = [→h_t ; ←h_t]."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchelmo.tasks.layers.basic import VariationalDropout
from torchelmo.tasks.layers.fast_rnn import run_gru

Cell = Literal["lstm", "gru"]


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
