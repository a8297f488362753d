"""A biLM by its content, wherever its files are."""

import hashlib
import json

from torchelmo.bilm.model import BiLM
from torchelmo.bilm.tensors import own_tensors
from torchelmo.config import config_to_dict


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
