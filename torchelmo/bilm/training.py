"""Windows of running text through the biLM, for training: all rows full, the state carried, gradients cut.

Both directions read left to right: the stream hands the backward language model its text reversed.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchelmo.bilm.lstm import LSTMState
from torchelmo.bilm.model import BiLM, BiLMState


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
    reads words. Dropout falls on the input of every LSTM and on the output, as published.
    """
    both = {"forward": ids_forward, "backward": ids_backward}
    ids = [both[direction] for direction in bilm.config.directions]
    xs = _encode(bilm, [item.T for item in ids if item is not None], characters)
    if state is None:
        state = bilm.zero_state(xs[0].shape[1])
    hiddens, cells = [], []
    for j in range(bilm.config.n_layers):
        inputs = [F.dropout(x, dropout, training=dropout > 0) for x in xs]
        lstms = [bilm.direction_lstms(direction)[j] for direction in bilm.config.directions]
        starts = [LSTMState(state.hidden[d, j], state.cell[d, j]) for d in range(len(lstms))]
        results = []
        for lstm, x, start in zip(lstms, inputs, starts):
            outputs = []
            now = start
            for x_t in x.unbind():
                now = lstm.step(x_t, now)
                outputs.append(now.hidden)
            results.append((torch.stack(outputs), now))
        residual = bilm.config.residual and j > 0
        xs = [out + x if residual else out for (out, _), x in zip(results, inputs)]
        hiddens.append(torch.stack([end.hidden.detach() for _, end in results]))
        cells.append(torch.stack([end.cell.detach() for _, end in results]))
    tops = {
        direction: F.dropout(x, dropout, training=dropout > 0).transpose(0, 1)
        for direction, x in zip(bilm.config.directions, xs)
    }
    after = BiLMState(torch.stack(hiddens, dim=1), torch.stack(cells, dim=1))
    return TrainingOutput(tops.get("forward"), tops.get("backward"), after)


def _encode(bilm: BiLM, ids: list[Tensor], characters: Tensor | None) -> list[Tensor]:
    """Each (unroll, batch) -> (unroll, batch, projection_dim): every distinct type of the window once."""
    if characters is None:
        return [bilm.encoder(item) for item in ids]
    types, place = torch.unique(torch.stack(ids), return_inverse=True)
    vectors = bilm.encoder(characters[types].long())
    return list(F.embedding(place, vectors).unbind())
