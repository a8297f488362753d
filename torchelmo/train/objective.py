"""What training minimises: −½ (log p(→) + log p(←)) per token, one softmax for both directions."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.bilm.model import BiLM, BiLMState
from torchelmo.bilm.training import run_training
from torchelmo.train.losses import Loss, Negatives


class Batch(NamedTuple):
    """A window of the stream on the device of the model; None for a direction that the model lacks."""

    forward: Tensor | None  # (batch, unroll)
    forward_targets: Tensor | None
    backward: Tensor | None
    backward_targets: Tensor | None
    begins: Tensor  # (batch,): true for the rows whose window begins with a sentence

    def inputs(self) -> Tensor:
        """(n,): those of both directions in a row."""
        return _in_a_row(self.forward, self.backward)

    def targets(self) -> Tensor:
        return _in_a_row(self.forward_targets, self.backward_targets)


class ObjectiveOutput(NamedTuple):
    loss: Tensor  # the mean over the directions
    forward: Tensor | None  # −log p per token, detached
    backward: Tensor | None
    state: BiLMState  # for the next window


class Objective(nn.Module):
    """A module, so that DistributedDataParallel can stand around it."""

    def __init__(
        self,
        bilm: BiLM,
        loss: Loss,
        characters: Tensor | None,
        *,
        dropout: float = 0.0,
        bfloat16: bool = False,
    ) -> None:
        super().__init__()
        self.bilm, self.loss, self.dropout = bilm, loss, dropout
        self.in_bfloat16 = bfloat16  # the products; sums and weights stay in float32
        self.characters = characters  # not a buffer: it is data, and DistributedDataParallel need not send it

    def forward(self, batch: Batch, state: BiLMState, negatives: Negatives | None) -> ObjectiveOutput:
        with torch.autocast(state.hidden.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            out = run_training(
                self.bilm,
                batch.forward,
                batch.backward,
                state,
                dropout=self.dropout,
                characters=self.characters,
            )
            losses = {
                name: self.loss(self.bilm.softmax, hidden.flatten(0, 1), targets.flatten(), negatives)
                for name, hidden, targets in (
                    ("forward", out.forward, batch.forward_targets),
                    ("backward", out.backward, batch.backward_targets),
                )
                if hidden is not None and targets is not None
            }
        seen = {name: loss.detach() for name, loss in losses.items()}
        mean = torch.stack(list(losses.values())).mean()
        carried = BiLMState(*(part.to(before.dtype) for part, before in zip(out.state, state)))
        return ObjectiveOutput(mean, seen.get("forward"), seen.get("backward"), carried)


def _in_a_row(*parts: Tensor | None) -> Tensor:
    return torch.cat([part.flatten() for part in parts if part is not None])
