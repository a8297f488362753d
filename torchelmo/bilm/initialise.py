"""Random initial weights."""

from torch import Tensor, nn


def normal_(tensor: Tensor, std: float) -> None:
    """Normal with mean 0. Left out on the meta device, for which PyTorch would load its compiler: two seconds."""
    if not tensor.is_meta:
        nn.init.normal_(tensor, 0.0, std)
