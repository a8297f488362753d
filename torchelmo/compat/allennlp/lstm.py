"""AllenNLP's `_elmo_lstm._elmo_lstm`: LSTMs that go on from where the last call ended."""

from collections.abc import Iterator

import torch
from torch import Tensor

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.lstm import FORGET_BIAS
from torchelmo.bilm.model import BiLM, BiLMState
from torchelmo.compat.allennlp.borrowed import Borrowed, Renamed
from torchelmo.errors import InputError


class ElmoLstm(Borrowed):
    """(batch, tokens, projection_dim) -> (n_layers, batch, tokens, 2 · projection_dim).

    With `stateful` row i of a call starts from the state in which row i of the call before ended. Rows that
    a smaller batch does not use keep their state, rows that a larger batch adds start from zero. The state
    is cut from the graph between calls.
    """

    def __init__(self, bilm: BiLM, *, requires_grad: bool = False, stateful: bool = True) -> None:
        super().__init__(bilm, list(_table(bilm.config)), trainable=requires_grad)
        self.num_layers = bilm.config.n_layers
        self.stateful = stateful
        # Hidden (n_layers, rows, 2 · projection_dim) and cell (n_layers, rows, 2 · cell_dim), forward first.
        self._states: tuple[Tensor, Tensor] | None = None

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return self.all_layers(inputs, mask)[1:]

    def all_layers(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """(n_layers + 1, batch, tokens, 2 · projection_dim): the token layer, doubled, comes first."""
        out = self.run("run_layers", inputs, mask, self._start(inputs))
        if self.stateful:
            self._keep(out.state)
        layers: Tensor = out.layers
        return layers

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Start from zero again: all rows, or those at which `mask` (rows,) is true."""
        if mask is None or self._states is None:
            self._states = None
            return
        hidden, cell = self._states
        if mask.shape != (hidden.shape[1],):
            raise InputError(
                f"reset_states: expected a mask of shape ({hidden.shape[1]},), one for each row, "
                f"got {tuple(mask.shape)}. Leave it out to reset all."
            )
        gone = mask.to(hidden.device, torch.bool).view(1, -1, 1)
        self._states = hidden.masked_fill(gone, 0.0), cell.masked_fill(gone, 0.0)

    def _keep(self, state: BiLMState) -> None:
        """Remember how this call ended; rows beyond its batch stay as they are."""
        hidden, cell = (torch.cat(tuple(part.detach()), dim=-1) for part in state)
        if self._states is not None:
            n_rows = hidden.shape[1]
            rest = [old[:, n_rows:].to(hidden) for old in self._states]
            hidden, cell = torch.cat([hidden, rest[0]], dim=1), torch.cat([cell, rest[1]], dim=1)
        self._states = hidden, cell

    def _start(self, inputs: Tensor) -> BiLMState:
        """What the rows of this call start from."""
        config, batch = self.core.config, len(inputs)
        if self._states is None or not self.stateful:
            shape = (2, config.n_layers, batch)
            return BiLMState(inputs.new_zeros(*shape, config.projection_dim), inputs.new_zeros(*shape, config.cell_dim))
        hidden, cell = (_with_rows(part, batch).to(inputs) for part in self._states)
        return BiLMState(torch.stack(hidden.chunk(2, dim=-1)), torch.stack(cell.chunk(2, dim=-1)))


def _with_rows(state: Tensor, n_rows: int) -> Tensor:
    """(n_layers, rows, dim) -> (n_layers, n_rows, dim): the first rows, then zeros."""
    missing = max(0, n_rows - state.shape[1])
    return torch.nn.functional.pad(state, (0, 0, 0, missing))[:, :n_rows]


def _table(config: BiLMConfig) -> Iterator[Renamed]:
    for j in range(config.n_layers):
        for direction in config.directions:
            theirs, ours = f"{direction}_layer_{j}", f"{direction}_lstms.{j}"
            for part in ("input", "state"):
                yield Renamed(
                    f"{theirs}.{part}_linearity.weight",
                    (f"{ours}.{part}_weight",),
                    _weight_to_ours,
                    _weight_to_theirs,
                )
            yield Renamed(f"{theirs}.state_linearity.bias", (f"{ours}.bias",), _bias_to_ours, _bias_to_theirs)
            yield Renamed(f"{theirs}.state_projection.weight", (f"{ours}.projection",), _turned_to_ours, _turned)


def swap_gates(gates: Tensor, dim: int = 0) -> Tensor:
    """Gates i, j, f, o (ours) <-> i, f, j, o (AllenNLP's): its own inverse.

    >>> swap_gates(torch.tensor([1, 2, 3, 4])).tolist()
    [1, 3, 2, 4]
    """
    i, second, third, o = gates.chunk(4, dim)
    return torch.cat([i, third, second, o], dim)


def _weight_to_theirs(weight: Tensor) -> Tensor:
    return swap_gates(weight.T)


def _weight_to_ours(weight: Tensor) -> tuple[Tensor, ...]:
    return (swap_gates(weight.T, dim=1),)


def _bias_to_theirs(bias: Tensor) -> Tensor:
    """AllenNLP keeps the forget bias in the parameter; the core adds it at run time, as the files want it."""
    return swap_gates(bias + _forget_bias(bias))


def _bias_to_ours(bias: Tensor) -> tuple[Tensor, ...]:
    ours = swap_gates(bias)
    return (ours - _forget_bias(ours),)


def _forget_bias(bias: Tensor) -> Tensor:
    return bias.new_tensor([0.0, 0.0, FORGET_BIAS, 0.0]).repeat_interleave(len(bias) // 4)


def _turned(weight: Tensor) -> Tensor:
    return weight.T.contiguous()


def _turned_to_ours(weight: Tensor) -> tuple[Tensor, ...]:
    return (_turned(weight),)
