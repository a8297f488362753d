"""The tensors of a biLM by name: what the file formats share."""

import torch
from torch import Tensor

from torchelmo.bilm.model import BiLM
from torchelmo.bilm.softmax import Softmax
from torchelmo.errors import WeightsError


def own_tensors(bilm: BiLM) -> dict[str, Tensor]:
    """The parameters by name, a tied softmax only once."""
    tied = {"softmax.weight"} if bilm.config.tied_softmax else set()
    return {name: tensor for name, tensor in bilm.state_dict().items() if name not in tied}


def fill(bilm: BiLM, tensors: dict[str, Tensor]) -> None:
    """Give a BiLM that was built on the meta device its parameters, without another copy."""
    if bilm.config.tied_softmax:
        tensors = tensors | {"softmax.weight": tensors["encoder.embedding"]}
    bilm.load_state_dict(tensors, assign=True)
    for parameter in bilm.parameters():
        parameter.requires_grad_(True)
    if bilm.config.tied_softmax and isinstance(bilm.softmax, Softmax):
        bilm.softmax.weight = bilm.encoder.embedding


def check_finite(tensor: Tensor, where: str) -> None:
    """NaN or Inf in a weight would silently make every vector NaN."""
    if not bool(torch.isfinite(tensor).all()):
        raise WeightsError(f"{where}: expected finite numbers, found NaN or Inf. The file is from a failed run.")
