"""Windows of running text through the biLM, for training: all rows full, the state carried, gradients cut.

Both directions read left to right: the stream hands the backward language model its text reversed.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchelmo.bilm.char_cnn import WordEmbedding
from torchelmo.bilm.lstm import LSTMState, ProjectedLSTM
from torchelmo.bilm.model import BiLM, BiLMState
from torchelmo.bilm.training_cnn import encode_types
from torchelmo.bilm.training_lstm import run_layer
from torchelmo.errors import InputError


class TrainingOutput(NamedTuple):
    forward: Tensor | None  # (batch, unroll, projection_dim), the top layer; None without that direction
    backward: Tensor | None
    state: BiLMState  # detached, for the next window


def run_training(
    bilm: BiLM,
    ids_forward: Tensor | None,
    ids_backward: Tensor | None,
    state: BiLMState | None,
    *,
    dropout: float = 0.0,
    characters: Tensor | None = None,
    path: Literal["fast", "plain"] = "fast",
) -> TrainingOutput:
    """ids (batch, unroll), each in reading order -> the top layers, with gradients for every parameter.

    Ids are rows of `characters` (n_types, max_characters) for a character model, word ids + 1 for one that
    reads words. Dropout falls on the input of every LSTM and on the output, as published. The plain path gives
    the same numbers by autograd alone.
    """
    config = bilm.config
    x = _encode(bilm, _reading(bilm, ids_forward, ids_backward), characters, path)
    if state is None:
        state = bilm.zero_state(x[0].shape[1])
    bilm.check_state(state, x[0].shape[1])
    run = run_layer if path == "fast" else _run_layer_plain
    ends: list[list[LSTMState]] = []
    for j in range(config.n_layers):
        lstms = [bilm.direction_lstms(direction)[j] for direction in config.directions]
        starts = [LSTMState(state.hidden[d, j], state.cell[d, j]) for d in range(len(lstms))]
        inputs = [_drop(each, dropout) for each in x]
        x, end = run(lstms, inputs, starts)
        if config.residual and j > 0:
            x = [out + each for out, each in zip(x, inputs)]
        ends.append(end)
    top = {name: _drop(each, dropout).transpose(0, 1) for name, each in zip(config.directions, x)}
    return TrainingOutput(top.get("forward"), top.get("backward"), _join(ends))


def _reading(bilm: BiLM, ids_forward: Tensor | None, ids_backward: Tensor | None) -> list[Tensor]:
    """What each direction of the model reads, checked."""
    given = {"forward": ids_forward, "backward": ids_backward}
    reading = [given[direction] for direction in bilm.config.directions]
    for direction, ids in zip(bilm.config.directions, reading):
        if ids is None or ids.dim() != 2 or ids.shape != reading[0].shape:  # type: ignore[union-attr]
            found = None if ids is None else tuple(ids.shape)
            raise InputError(f"run_training: expected ids_{direction} (batch, unroll), alike both ways, got {found}.")
    return [ids for ids in reading if ids is not None]


def _encode(bilm: BiLM, reading: list[Tensor], characters: Tensor | None, path: str) -> list[Tensor]:
    """Each (batch, unroll) -> (unroll, batch, projection_dim): every distinct type of the window once."""
    encoder = bilm.encoder
    if isinstance(encoder, WordEmbedding):
        return [encoder(ids.T) for ids in reading]
    if characters is None:
        raise InputError("run_training: a model that reads characters needs `characters`, the table of all types.")
    types, place = torch.unique(torch.stack([ids.T for ids in reading]), return_inverse=True)
    rows = characters[types].long()
    vectors = encode_types(encoder, rows) if path == "fast" else encoder(rows)
    return list(F.embedding(place, vectors).unbind())


def _run_layer_plain(
    lstms: Sequence[ProjectedLSTM], inputs: Sequence[Tensor], starts: Sequence[LSTMState]
) -> tuple[list[Tensor], list[LSTMState]]:
    """As `run_layer`, by autograd through the steps: the reference."""
    outputs, ends = [], []
    for lstm, x, now in zip(lstms, inputs, starts):
        hidden = []
        for x_t in x.unbind():
            now = lstm.step(x_t, now)
            hidden.append(now.hidden)
        outputs.append(torch.stack(hidden))
        ends.append(LSTMState(now.hidden.detach(), now.cell.detach()))
    return outputs, ends


def _drop(x: Tensor, dropout: float) -> Tensor:
    return F.dropout(x, dropout) if dropout else x


def _join(ends: list[list[LSTMState]]) -> BiLMState:
    """Layers of directions of states -> (n_directions, n_layers, batch, …)."""
    hidden, cell = (
        torch.stack([torch.stack([end[part] for end in layer]) for layer in ends], dim=1) for part in (0, 1)
    )
    return BiLMState(hidden, cell)
