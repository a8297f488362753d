"""Sentences read in both directions: h_t = [→h_t ; ←h_t], layer upon layer."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchelmo.tasks.layers.basic import VariationalDropout
from torchelmo.tasks.layers.fast_rnn import run_gru, run_lstm

Cell = Literal["lstm", "gru"]


class BiRNN(nn.Module):
    """(batch, tokens, input_dim) -> (batch, tokens, 2 * hidden_dim), 0 at padding.

    `dropout` is variational and acts between the layers, neither before the first nor after the last.
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
            _initialise(layer)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """`mask` (batch, tokens) is true at real tokens, which come first in every row; a row may have none."""
        if not mask.numel():
            return x.new_zeros(*mask.shape, self.dim)
        # Packing knows no empty rows: they read one padded position, and lose it again at the end.
        lengths = mask.sum(dim=1).clamp_min(1).cpu()
        for number, layer in enumerate(self.layers):
            if number:
                x = self.dropout(x)
            if isinstance(layer, nn.GRU) and x.device.type == "cpu":
                x = run_gru(layer, x, lengths)
                continue
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            if isinstance(layer, nn.LSTM) and x.device.type == "cpu" and torch.is_grad_enabled():
                packed = run_lstm(layer, packed)
            else:
                packed, _ = layer(packed)
            x, _ = pad_packed_sequence(packed, batch_first=True, total_length=mask.shape[1])
        return x.masked_fill(~mask.unsqueeze(2), 0.0)


def _initialise(layer: nn.LSTM | nn.GRU) -> None:
    """Each gate by itself: Glorot-uniform from the input, orthogonal from the state; what is new is kept at first."""
    for name, parameter in layer.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih") and isinstance(layer, nn.LSTM):
                with torch.no_grad():  # gates i, f, g, o; the forget gate begins open
                    parameter[layer.hidden_size : 2 * layer.hidden_size] = 1.0
            continue
        for gate in parameter.detach().split(layer.hidden_size):
            if name.startswith("weight_hh"):
                nn.init.orthogonal_(gate)
            else:
                nn.init.xavier_uniform_(gate)
