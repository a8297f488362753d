"""A moving average of the weights, a ← d·a + (1 − d)·w: steadier than the weights themselves."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class MovingAverage:
    """Early on the decay is smaller, (1 + n) / (10 + n), so that the average forgets the random start."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        self.tensors["n_updates"] = torch.zeros((), dtype=torch.float64)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        count = self.tensors["n_updates"].add_(1.0).item()
        share = 1.0 - min(self.decay, (1.0 + count) / (10.0 + count))
        for name, parameter in model.named_parameters():
            if name in self.tensors:
                self.tensors[name].lerp_(parameter, share)

    @contextlib.contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """The model has the averaged weights inside the block."""
        with torch.no_grad():
            kept = {name: p.detach().clone() for name, p in model.named_parameters() if name in self.tensors}
            self._fill(model, self.tensors)
        try:
            yield
        finally:
            self._fill(model, kept)

    @torch.no_grad()
    def _fill(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        for name, parameter in model.named_parameters():
            if name in tensors:
                parameter.copy_(tensors[name])
