"""A small biLM for tests of model folders."""

import torch
from official_files import WORDS

from torchelmo import BiLM, BiLMConfig
from torchelmo.text.vocabulary import Vocabulary

SHAPE = {"char_dim": 2, "filters": ((1, 2), (2, 3)), "max_characters": 6, "projection_dim": 4, "cell_dim": 5}


def folder_bilm() -> BiLM:
    """Return a biLM with a softmax and a vocabulary."""
    return BiLM(BiLMConfig(**SHAPE, softmax_words=len(WORDS)), Vocabulary(WORDS))


def assert_same(one: BiLM, two: BiLM) -> None:
    """Check that two models have the same settings, words and weights."""
    assert one.config == two.config
    assert one.vocabulary == two.vocabulary
    assert one.official_options == two.official_options
    first, second = one.state_dict(), two.state_dict()
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert second[name].dtype == tensor.dtype
        assert torch.equal(second[name], tensor), name
