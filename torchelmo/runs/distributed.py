"""Many processes, one model: each rank reads its rows of the stream, and their gradients are averaged.

Everything but the softmax goes through DistributedDataParallel. A sampled softmax touches the rows of the
window's targets and negatives only, so only those rows travel.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from torchelmo.errors import ConfigError


class World(NamedTuple):
    """One process among `size`; rank 0 writes the files and speaks."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")

    def total(self, values: Sequence[float]) -> list[float]:
        """The sum of each value over all ranks, the same on every one of them."""
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(numbers)
        return list(map(float, numbers))

    def wait(self) -> None:
        """Until every rank has come here."""
        self.total([0.0])

    def gather(self, part: Tensor, dim: int) -> Tensor:
        """The parts of all ranks, joined along `dim` in the order of the ranks."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        distributed.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=dim)

    def share(self, whole: Tensor, dim: int) -> Tensor:
        """This rank's part of what `gather` joins."""
        return whole.tensor_split(self.size, dim=dim)[self.rank]

    def average_rows(self, gradient: Tensor | None, rows: Tensor) -> None:
        """Average the given rows of a gradient over all ranks, in place; the others are zero everywhere."""
        if self.size == 1 or gradient is None:
            return
        touched = gradient[rows]
        distributed.all_reduce(touched)
        gradient[rows] = touched / self.size


@contextlib.contextmanager
def joined(device: str = "auto") -> Iterator[World]:
    """The world of the environment that torchrun sets, or a world of one. It may be joined again inside."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    world = World(int(os.environ.get("RANK", "0")), size, choose_device(device))
    if size == 1 or distributed.is_initialized():
        yield world
        return
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    distributed.init_process_group("nccl" if world.device.type == "cuda" else "gloo")
    try:
        yield world
    finally:
        distributed.destroy_process_group()


def parallel(module: nn.Module, world: World, *, apart: Sequence[nn.Parameter]) -> nn.Module:
    """`module` with its gradients averaged over the ranks, but for those of the parameters kept `apart`."""
    names = [
        name
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if any(parameter is other for other in apart)
    ]
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    if world.size == 1 or not set(trained) - set(names):
        return module
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(module, names)
    return DistributedDataParallel(module)


def choose_device(name: str) -> torch.device:
    """ "auto" is CUDA where there is one, else the CPU; "cuda" without a number is this rank's own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: expected auto, cpu or cuda (or cuda:1, …), got {name!r}.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: {name!r} was asked for, but this PyTorch sees no GPU. Use auto or cpu.")
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device
