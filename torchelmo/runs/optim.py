"""A moving average of the weights, a ← d·a + (1 − d)·w: steadier than the weights themselves."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchelmo.errors import WeightsError
from torchelmo.runs.config import OptimConfig


def build_optimizer(config: OptimConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimiser that `config` names; the learning rate is set anew before every step."""
    shared: dict[str, Any] = {"lr": config.peak, "weight_decay": config.weight_decay}
    optimizer: torch.optim.Optimizer
    match config.name:
        case "adagrad":
            on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
            start = config.initial_accumulator
            optimizer = torch.optim.Adagrad(parameters, initial_accumulator_value=start, fused=on_cpu, **shared)
        case "adadelta":
            optimizer = torch.optim.Adadelta(parameters, rho=config.rho, eps=config.eps, **shared)
        case _:
            adam = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
            optimizer = adam(parameters, betas=config.betas, eps=config.eps, fused=True, **shared)
    # Fused optimisers write to the weights without counting it, and by that count the fast paths of the biLM
    # know that what they made of the weights is out of date.
    optimizer.register_step_post_hook(lambda *_: _count_write(parameters))
    return optimizer


def learning_rate(config: OptimConfig, *, step: int, before: float, after: float) -> float:
    """For step number `step` (from 1), which takes the run from the share `before` (0 to 1) to `after`.

    >>> [learning_rate(OptimConfig(lr=1.0, warmup=2, decay="linear"), step=i, before=(i - 1) / 4, after=i / 4)
    ...  for i in (1, 2, 3, 4)]
    [0.5, 0.75, 0.5, 0.25]
    """
    rise = 1.0
    if config.warmup:
        rise = min(1.0, step / config.warmup if config.warmup >= 1 else after / config.warmup)
    done = min(1.0, max(0.0, before - config.hold) / (1.0 - config.hold))
    fall = {"none": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}[config.decay]
    return config.peak * rise * (config.final + (1.0 - config.final) * fall)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_gradients(parameters: list[nn.Parameter], limit: float) -> float:
    """Scale the whole gradient to a norm of at most `limit` (0: leave it); returns the norm before."""
    return float(nn.utils.clip_grad_norm_(parameters, limit or math.inf))


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, Tensor]:
    """The state as "name/what" → tensor; `names` are those of the parameters, in the optimiser's order."""
    state = optimizer.state_dict()["state"]
    return {f"{names[i]}/{what}": tensor for i, values in state.items() for what, tensor in values.items()}


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    names: list[str],
    tensors: Mapping[str, Tensor],
    where: str,
    *,
    complete: bool = True,
) -> None:
    """Give `optimizer` the state that `optimizer_tensors` named; `complete` if every parameter must have some."""
    state: dict[int, dict[str, Any]] = {}
    places = {name: i for i, name in enumerate(names)}
    for key, tensor in tensors.items():
        name, _, what = key.rpartition("/")
        if name not in places:
            raise WeightsError(f"{where}: found optimiser state of {name!r}, which is no trained parameter here.")
        # A tensor of a mapped file may start anywhere; its copy stands where PyTorch would have put it.
        state.setdefault(places[name], {})[what] = tensor.clone()
    missing = [name for name, i in places.items() if i not in state]
    if missing and complete:
        raise WeightsError(f"{where}: expected optimiser state of {missing[0]!r}, which is missing.")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _count_write(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        torch.autograd.graph.increment_version(parameter)


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
