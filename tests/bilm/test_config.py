"""Shapes that cannot be, and what is said about them."""

import pytest

from torchelmo import BiLMConfig
from torchelmo.bilm.softmax import AdaptiveSoftmax
from torchelmo.config import build_config
from torchelmo.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"projection_dim": 0}, r"projection_dim must be at least 1, got 0"),
        ({"cell_dim": -1}, r"cell_dim must be at least 1, got -1"),
        ({"n_layers": 0}, r"n_layers must be at least 1, got 0"),
        ({"char_dim": 0}, r"char_dim must be at least 1, got 0"),
        ({"n_highway": -1}, r"n_highway must not be negative, got -1"),
        ({"softmax_words": -1}, r"softmax_words must not be negative, got -1"),
        ({"cell_clip": float("nan")}, r"cell_clip must be positive, or 0 for no clipping; got nan"),
        ({"projection_clip": -3.0}, r"projection_clip must be positive, or 0 for no clipping; got -3.0"),
        ({"projection_clip": float("inf")}, r"projection_clip must be positive"),
        ({"max_characters": 2}, r"max_characters must hold two marks and a byte, got 2"),
        ({"n_characters": 261}, r"n_characters must be at least 262 \(bytes, marks, padding\), got 261"),
        ({"filters": ()}, r"filters must have at least one \(width, count\)"),
        ({"filters": ((0, 3),)}, r"filter \(0, 3\): the width must be 1 to max_characters = 50"),
        ({"filters": ((51, 3),)}, r"filter \(51, 3\): the width must be 1 to max_characters = 50"),
        ({"filters": ((1, 0),)}, r"filter \(1, 0\): .* and the count at least 1"),
        ({"char_projection": False}, r"needs as many filters as projection_dim = 512, got 2048"),
        ({"n_words": 5}, r"n_words = 5 belongs to input = 'words', not to characters"),
        ({"input": "words"}, r"input = 'words' needs n_words, the number of words in the vocabulary"),
        (
            {"input": "words", "n_words": 4, "softmax_words": 6},
            r"softmax_words: a model that reads 4 words has a softmax over the same, or none \(0\); got 6",
        ),
        ({"softmax_words": 9, "softmax_cutoffs": (5, 2)}, r"softmax_cutoffs must be positive and rise, got \[5, 2\]"),
        ({"softmax_words": 9, "softmax_cutoffs": (0, 2)}, r"softmax_cutoffs must be positive and rise, got \[0, 2\]"),
        ({"softmax_cutoffs": (2,)}, r"softmax_cutoffs needs softmax_words, and cannot be joined with tied_softmax"),
        ({"tied_softmax": True}, r"tied_softmax needs input = 'words' and softmax_words = n_words"),
        (
            {"input": "words", "n_words": 5, "softmax_words": 4, "tied_softmax": True},
            r"tied_softmax needs .* got input = 'words', 4 and 5",
        ),
    ],
)
def test_shapes_that_cannot_be(changes, words):
    with pytest.raises(ConfigError, match=words):
        BiLMConfig(**changes)


def test_no_clipping_can_be_said_in_toml():
    config = build_config(BiLMConfig, {"cell_clip": 0, "projection_clip": 0.0})
    assert (config.cell_clip, config.projection_clip) == (None, None)
    assert config == BiLMConfig(cell_clip=None, projection_clip=None)


def test_widths():
    config = BiLMConfig(filters=((1, 3), (2, 4)), projection_dim=5)
    assert config.n_filters == 7
    assert config.dim == 10
    assert config.directions == ("forward", "backward")
    one = BiLMConfig(direction="backward")
    assert one.dim == 512
    assert one.directions == ("backward",)


def test_cutoffs_beyond_the_words():
    with pytest.raises(ConfigError, match=r"softmax_cutoffs must be below softmax_words = 5, got \[5\]"):
        AdaptiveSoftmax(5, 4, [5])
