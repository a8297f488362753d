"""A biLM by its content, wherever its files are."""

import hashlib
import json

import torch
from torch import Tensor

from torchelmo.bilm.model import BiLM
from torchelmo.bilm.softmax import Softmax
from torchelmo.config import config_to_dict
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


def fingerprint(bilm: BiLM) -> str:
    """Models that have this in common give the same vectors."""
    digest = hashlib.sha256(json.dumps(config_to_dict(bilm.config), sort_keys=True).encode())
    for name, tensor in sorted(own_tensors(bilm).items()):
        if not name.startswith("softmax."):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data.cast("B"))
    if bilm.vocabulary is not None and bilm.config.input == "words":
        digest.update("\n".join(bilm.vocabulary).encode())
    return digest.hexdigest()
