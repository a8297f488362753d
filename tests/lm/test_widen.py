"""experiments/pretrain/widen.py: a wider model that computes the same."""

import sys
from pathlib import Path

import pytest
import torch

from torchelmo import BiLM, BiLMConfig
from torchelmo.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments/pretrain"))
from widen import widen


def build() -> BiLM:
    torch.manual_seed(3)
    config = BiLMConfig(filters=((1, 4), (2, 4)), n_highway=1, projection_dim=6, cell_dim=10, softmax_words=30)
    bilm = BiLM(config)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return bilm


def test_a_wider_model_computes_the_same_and_learns_from_its_new_parts():
    narrow = build()
    narrow.lang, narrow.pretokenized = "is", True
    wide = widen(narrow, 14, 8)
    assert (wide.lang, wide.pretokenized) == ("is", True)
    ids = narrow.token_ids([["I", "took", "a", "bow"], ["bow"]])
    before, after = narrow(ids).layers, wide(ids).layers
    for old, new in zip(before.split(6, dim=-1), after.split(8, dim=-1)):
        torch.testing.assert_close(new[..., :6], old)
        assert new[..., 6:].abs().mean() > 0.01
    assert narrow.softmax is not None
    assert wide.softmax is not None
    torch.testing.assert_close(wide.softmax(after[-1, ..., :8]), narrow.softmax(before[-1, ..., :6]))
    wide.softmax(after[-1, ..., :8])[..., 3].sum().backward()
    gradient = wide.softmax.weight.grad
    assert gradient is not None
    assert gradient[:, 6:].abs().max() > 0
    assert torch.equal(widen(narrow, 14, 8).encoder.projection.weight, wide.encoder.projection.weight)


def test_a_narrower_model_is_refused():
    with pytest.raises(ConfigError, match="10"):
        widen(build(), 8, 6)


def test_models_of_other_kinds_are_refused():
    with pytest.raises(ConfigError, match="characters"):
        widen(BiLM(BiLMConfig(input="words", n_words=5, projection_dim=6, cell_dim=10)), 14, 8)
