"""Has a weight changed? The fast paths and the caches ask this before they use what they made of the weights."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

WeightsKey = tuple[tuple[int, ...], tuple[int, ...], bytes]  # places, versions, some values

_FEW = 8  # values of a large parameter that are looked at
_SMALL = 1 << 13  # values up to which a parameter is small


class Watch:
    """Parameters -> a key, another one when a parameter was replaced, moved or written to.

    Fused optimisers write without raising the version of a tensor, so a few values are compared, too. Where they
    stand is kept for the next call, and with it the memory: no other tensor can come to the same place unseen.
    """

    def __init__(self) -> None:
        self._seen: tuple[tuple[int, ...], list[Tensor]] = ((), [])

    def __reduce__(self) -> tuple[Any, ...]:
        return Watch, ()  # a copy looks at parameters of its own

    def __call__(self, parameters: Iterable[Tensor]) -> WeightsKey:
        tensors = list(parameters)
        places = tuple(tensor.data_ptr() for tensor in tensors)
        known, samples = self._seen
        if places != known:
            samples = [_sample(tensor.detach()) for tensor in tensors]
            self._seen = places, samples
        versions = tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)
        # One copy and one comparison of bytes, for all together: this runs before every sentence. NaN equals itself.
        return places, versions, torch.cat(samples).cpu().view(torch.uint8).numpy().tobytes()


def _sample(tensor: Tensor) -> Tensor:
    """A view of some values from all over a tensor, the last one among them; (n,)."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return tensor.reshape(-1)
    # Every row of a small one: training writes only to those rows of the character table that it reads.
    n = len(tensor) if tensor.numel() <= _SMALL else _FEW
    steps = [(size - 1) // max(1, n - 1) for size in tensor.shape]
    first = [size - 1 - step * (n - 1) for size, step in zip(tensor.shape, steps)]
    strides = tensor.stride()
    offset = tensor.storage_offset() + sum(i * stride for i, stride in zip(first, strides))
    return tensor.as_strided((n,), (sum(step * stride for step, stride in zip(steps, strides)),), offset)
