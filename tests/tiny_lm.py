"""A tiny biLM with a softmax over a few words and random weights, and the oracle of a masked one."""

from typing import Any

import numpy as np
import torch
from oracle import Array, Oracle

from torchelmo import BiLM, BiLMConfig
from torchelmo.bilm.encoder import CharCNN
from torchelmo.text.vocabulary import Vocabulary

WORDS = ["<S>", "</S>", "<UNK>", "the", "bow", "and", "arrow", "rose", "."]
SHAPE = {"filters": ((1, 3), (2, 4)), "char_dim": 4, "n_highway": 1, "projection_dim": 6, "cell_dim": 10}


def tiny_lm(direction: str = "both", **changes: Any) -> BiLM:
    torch.manual_seed(5)
    bilm = BiLM(BiLMConfig(**SHAPE, softmax_words=len(WORDS), direction=direction, **changes), Vocabulary(WORDS))
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.7)
    return bilm


class MaskedOracle:
    """p(word | both sides) of a masked character model by its equations, in NumPy and float64."""

    def __init__(self, bilm: BiLM) -> None:
        config, encoder = bilm.config, bilm.encoder
        assert isinstance(encoder, CharCNN)
        assert encoder.projection is not None
        lstm = {"n_layers": config.n_layers, "projection_dim": config.projection_dim, "dim": config.cell_dim}
        lstm |= {"cell_clip": config.cell_clip, "proj_clip": config.projection_clip}
        lstm |= {"use_skip_connections": config.residual}
        characters = {"filters": config.filters, "n_highway": config.n_highway, "activation": config.activation}
        characters |= {"max_characters_per_token": config.max_characters}
        w = {name: tensor.detach().numpy().astype(np.float64) for name, tensor in bilm.state_dict().items()}
        arrays = {"char_embed": w["encoder.embedding"][1:], "mask_vector": w["mask_vector"]}
        for i in range(len(config.filters)):
            arrays[f"CNN/W_cnn_{i}"] = w[f"encoder.convolutions.{i}.weight"].transpose(2, 1, 0)[None]
            arrays[f"CNN/b_cnn_{i}"] = w[f"encoder.convolutions.{i}.bias"]
        for i in range(config.n_highway):
            for part in ("carry", "transform"):
                arrays[f"CNN_high_{i}/W_{part}"] = w[f"encoder.highways.{i}.{part}.weight"].T
                arrays[f"CNN_high_{i}/b_{part}"] = w[f"encoder.highways.{i}.{part}.bias"]
        arrays["CNN_proj/W_proj"], arrays["CNN_proj/b_proj"] = (
            w["encoder.projection.weight"].T,
            w["encoder.projection.bias"],
        )
        for d, direction in enumerate(("forward", "backward")):
            for j in range(config.n_layers):
                theirs, ours = f"RNN_{d}/RNN/MultiRNNCell/Cell{j}/LSTMCell", f"{direction}_lstms.{j}"
                arrays[f"{theirs}/W_0"] = np.concatenate([w[f"{ours}.input_weight"], w[f"{ours}.state_weight"]])
                arrays[f"{theirs}/B"], arrays[f"{theirs}/W_P_0"] = w[f"{ours}.bias"], w[f"{ours}.projection"]
        self.oracle = Oracle({"lstm": lstm, "char_cnn": characters}, arrays, joint=config.joint)
        self.weight, self.bias, self.projection = (w[f"softmax.{name}"] for name in ("weight", "bias", "projection"))

    def log_p(self, tokens: list[str], hidden: tuple[int, ...]) -> Array:
        """log p of every word at every token, (n_tokens, n_words)."""
        top = self.oracle.layers(tokens, hidden=hidden)[0][-1, 1:-1]
        scores = (top @ self.projection) @ self.weight.T + self.bias
        scores -= scores.max(axis=1, keepdims=True)
        result: Array = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return result
