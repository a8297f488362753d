"""Training with several processes: each rank reads its rows of the stream, and gradients are averaged.

All parameters except the softmax go through DistributedDataParallel. A sampled softmax has a gradient only in the rows
of the window's targets and negatives, so only these rows are exchanged.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from torchelmo.runtime import choose_device


class World(NamedTuple):
    """One process among `size`. Rank 0 writes files and logs."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")

    def sum_over_ranks(self, values: Sequence[float]) -> list[float]:
        """Return the sum of each value over all ranks; every rank gets the same result."""
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(numbers)
        return list(map(float, numbers))

    def barrier(self) -> None:
        """Block until every rank reaches this call."""
        self.sum_over_ranks([0.0])

    def gather(self, part: Tensor, dim: int) -> Tensor:
        """Return the parts of all ranks, concatenated along `dim` in the order of the ranks."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        distributed.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=dim)

    def share(self, whole: Tensor, dim: int) -> Tensor:
        """Return this rank's part of a tensor that `gather` concatenated."""
        return whole.tensor_split(self.size, dim=dim)[self.rank]

    def map_shares(self, function: Callable[[Tensor], Tensor], whole: Tensor) -> Tensor:
        """Return `function(whole)`, which maps every row by itself; each rank computes its share of the rows."""
        if self.size == 1:
            return function(whole)
        padding = whole.new_zeros(-len(whole) % self.size, *whole.shape[1:])  # parts of equal size
        share = self.share(torch.cat([whole, padding]), dim=0)
        return self.gather(function(share), dim=0)[: len(whole)]

    def average_rows(self, gradient: Tensor | None, rows: Tensor) -> None:
        """Average the given rows of a gradient over all ranks, in place; all other rows must be zero."""
        if self.size == 1 or gradient is None:
            return
        touched = gradient[rows]
        distributed.all_reduce(touched)
        gradient[rows] = touched / self.size


@contextlib.contextmanager
def distributed_context(device: str = "auto") -> Iterator[World]:
    """Join the processes that torchrun started, or yield a world of one process. Contexts may be nested.

    Args:
        device: "auto", "cpu", "cuda", "cuda:1" and so on.
    """
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


def parallel(module: nn.Module, world: World, *, excluded_parameters: Sequence[nn.Parameter]) -> nn.Module:
    """Wrap `module` so that gradients are averaged over the ranks, except those of `excluded_parameters`."""
    names = [
        name
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if any(parameter is other for other in excluded_parameters)
    ]
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    if world.size == 1 or not set(trained) - set(names):
        return module
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(module, names)
    return DistributedDataParallel(module)
