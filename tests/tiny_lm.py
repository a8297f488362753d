"""A tiny biLM with a softmax over a few words and random weights."""

import torch

from torchelmo import BiLM, BiLMConfig
from torchelmo.text.vocabulary import Vocabulary

WORDS = ["<S>", "</S>", "<UNK>", "the", "bow", "and", "arrow", "rose", "."]
SHAPE = {"filters": ((1, 3), (2, 4)), "char_dim": 4, "n_highway": 1, "projection_dim": 6, "cell_dim": 10}


def tiny_lm(direction: str = "both") -> BiLM:
    torch.manual_seed(5)
    bilm = BiLM(BiLMConfig(**SHAPE, softmax_words=len(WORDS), direction=direction), Vocabulary(WORDS))
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.7)
    return bilm
