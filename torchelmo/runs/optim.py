"""Optimizers, the learning-rate schedule, gradient clipping, and a moving average of the weights."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchelmo.errors import ConfigError, WeightsError
from torchelmo.runs.config import BaseOptimConfig, OptimConfig
from torchelmo.runs.distributed import World
from torchelmo.runs.muon import Muon
from torchelmo.tensors import Shape

# The tensors that an optimizer keeps for every parameter, each of its shape; "step" is a scalar beside them. Muon has
# its own list for every parameter.
_STATE: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.Adagrad: ("sum",),
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    torch.optim.Adadelta: ("square_avg", "acc_delta"),
}
_SIGNED = ("exp_avg", "momentum")  # all other state is a sum of squares or a count


def build_optimizer(
    config: BaseOptimConfig,
    parameters: list[nn.Parameter],
    blocks: Mapping[Tensor, int] | None = None,
    world: World | None = None,
) -> torch.optim.Optimizer:
    """Build the optimizer that `config` names. The loop sets the learning rate before every step.

    Args:
        config: The optimizer and its settings.
        parameters: All trained parameters.
        blocks: The matrices that "muon" orthogonalizes, from `lstm_blocks`; other optimizers do not need them.
        world: The ranks that share the work of "muon".

    Raises:
        ConfigError: The optimizer is "muon", and there are no blocks.
    """
    shared: dict[str, Any] = {"lr": config.peak, "weight_decay": config.weight_decay}
    optimizer: torch.optim.Optimizer
    match config.name:
        case "adagrad":
            on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
            start = config.initial_accumulator
            optimizer = torch.optim.Adagrad(parameters, initial_accumulator_value=start, fused=on_cpu, **shared)
        case "adadelta":
            optimizer = torch.optim.Adadelta(parameters, rho=config.rho, eps=config.eps, **shared)
        case "muon":
            if not blocks or not isinstance(config, OptimConfig):
                raise ConfigError("optim.name: 'muon' trains the LSTM matrices of a biLM, found none. Use 'adamw'.")
            optimizer = Muon(
                parameters,
                blocks,
                betas=config.betas,
                eps=config.eps,
                momentum=config.muon_momentum,
                scale=config.muon_scale,
                world=world,
                **shared,
            )
        case _:
            adam = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
            optimizer = adam(parameters, betas=config.betas, eps=config.eps, fused=True, **shared)
    # Fused optimizers change the weights without increasing their version, by which the fast paths of the biLM detect
    # that cached results are out of date.
    optimizer.register_step_post_hook(lambda *_: _increment_versions(parameters))
    return optimizer


def learning_rate(config: BaseOptimConfig, *, step: int, before: float, after: float) -> float:
    """Return the learning rate of a step.

    Args:
        config: The schedule.
        step: The number of the step, from 1.
        before: The share of the run (0 to 1) that is done before the step.
        after: The share that is done after it.

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
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_gradients(parameters: list[nn.Parameter], limit: float) -> float:
    """Scale the gradients so that their joint norm is at most `limit` (0: no limit). Return the norm before."""
    return float(nn.utils.clip_grad_norm_(parameters, limit or math.inf))


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the optimizer's state as "parameter/what" → tensor.

    Args:
        optimizer: An optimizer of `build_optimizer`.
        names: The names of its parameters, in its order.
    """
    state = optimizer.state_dict()["state"]
    return {f"{names[i]}/{what}": tensor for i, values in state.items() for what, tensor in values.items()}


def optimizer_shapes(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> dict[str, Shape]:
    """Return the shape of every tensor that `optimizer_tensors` can return, to check a file before it is read."""
    shapes: dict[str, Shape] = {}
    for name, parameter in zip(names, _parameters(optimizer), strict=True):
        for what in _state_names(optimizer, parameter):
            shapes[f"{name}/{what}"] = () if what == "step" else tuple(parameter.shape)
    return shapes


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    names: Sequence[str],
    tensors: Mapping[str, Tensor],
    where: str,
    *,
    complete: bool = True,
) -> None:
    """Give the optimizer the state that `optimizer_tensors` returned.

    Names, shapes and signs are checked: a fused optimizer would write beyond the end of a tensor that is too small.

    Args:
        optimizer: An optimizer of the same kind and parameters.
        names: The names of its parameters, in its order.
        tensors: The state.
        where: The source of the state, for error messages.
        complete: Whether every parameter must have state. A parameter that no example has reached yet has none.

    Raises:
        WeightsError: The state does not fit the optimizer.
    """
    shapes = optimizer_shapes(optimizer, names)
    for key, tensor in tensors.items():
        if key not in shapes:
            raise WeightsError(f"{where}: found optimizer state {key!r:.200}, which no trained parameter here has.")
        if tuple(tensor.shape) != shapes[key] or not tensor.is_floating_point():
            raise WeightsError(
                f"{where}: optimizer state {key!r}: expected floating-point numbers of shape {shapes[key]}, "
                f"found {tensor.dtype} of shape {tuple(tensor.shape)}."
            )
        if not key.endswith(_SIGNED) and tensor.numel() and float(tensor.min()) < 0:
            raise WeightsError(f"{where}: optimizer state {key!r}: expected no negative number, found one.")
    state: dict[int, dict[str, Any]] = {}
    for i, (name, parameter) in enumerate(zip(names, _parameters(optimizer), strict=True)):
        keys = [f"{name}/{what}" for what in _state_names(optimizer, parameter)]
        missing = [key for key in keys if key not in tensors]
        if missing and (complete or len(missing) < len(keys)):
            raise WeightsError(f"{where}: expected optimizer state {missing[0]!r}, which is missing.")
        if not missing:
            state[i] = {key.rpartition("/")[2]: tensors[key].clone() for key in keys}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


class MovingAverage:
    """A moving average of the trained weights, a ← d·a + (1 − d)·w, which is steadier than the weights.

    The decay of update n is min(d, (1 + n) / (10 + n)), so that the average soon forgets the random start.

    `torch.optim.swa_utils.AveragedModel` would copy the whole model, a frozen biLM and its cache included.

    Args:
        model: The model; its parameters that require a gradient are averaged.
        decay: d, at least 0 and below 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.n_updates = 0
        self.tensors: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad
        }

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the current weights to the average."""
        self.n_updates += 1
        share = 1.0 - min(self.decay, (1.0 + self.n_updates) / (10.0 + self.n_updates))
        for name, parameter in model.named_parameters():
            if name in self.tensors:
                self.tensors[name].lerp_(parameter, share)

    @contextlib.contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights inside the block, and its own weights again after it."""
        with torch.no_grad():
            kept = {name: p.detach().clone() for name, p in model.named_parameters() if name in self.tensors}
            self._assign(model, self.tensors)
        try:
            yield
        finally:
            self._assign(model, kept)

    @torch.no_grad()
    def _assign(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        for name, parameter in model.named_parameters():
            if name in tensors:
                parameter.copy_(tensors[name])


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _state_names(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> tuple[str, ...]:
    return optimizer.state_names(parameter) if isinstance(optimizer, Muon) else (*_STATE[type(optimizer)], "step")


def _increment_versions(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        torch.autograd.graph.increment_version(parameter)
