"""Every part of the model has operators in a profile of `embed`."""

import pytest

from benchmarks.profile import _PARTS, measure
from torchelmo import BiLM, BiLMConfig, Elmo


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_every_part_has_operators(precision):
    config = BiLMConfig(filters=((1, 8), (2, 16), (3, 8)), char_dim=4, n_highway=1, projection_dim=8, cell_dim=24)
    sentences = [["Ann", "took", "a", "bow", "."], ["No", "!"], ["It", "rains", "."]]
    parts, busy, speed = measure(Elmo(BiLM(config)), sentences, 3, precision)
    assert set(parts) == set(_PARTS)
    assert min(parts.values()) > 0
    assert sum(parts.values()) == pytest.approx(1)
    assert busy > 0
    assert speed > 0
