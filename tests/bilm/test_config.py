"""Shapes that cannot be, and what is said about them."""

import pytest
from facts import mentions

from torchelmo import BiLMConfig
from torchelmo.config import build_config
from torchelmo.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"projection_dim": 0}, ["projection_dim", 1, 0]),
        ({"cell_dim": -1}, ["cell_dim", 1, -1]),
        ({"n_layers": 0}, ["n_layers", 1, 0]),
        ({"char_dim": 0}, ["char_dim", 1, 0]),
        ({"n_highway": -1}, ["n_highway", -1]),
        ({"softmax_words": -1}, ["softmax_words", -1]),
        ({"cell_clip": float("nan")}, ["cell_clip", 0, "nan"]),
        ({"projection_clip": -3.0}, ["projection_clip", 0, -3.0]),
        ({"projection_clip": float("inf")}, ["projection_clip", "inf"]),
        ({"max_characters": 2}, ["max_characters", 2]),
        ({"n_characters": 261}, ["n_characters", 262, 261]),
        ({"filters": ()}, ["filters", "(width, count)"]),
        ({"filters": ((0, 3),)}, [(0, 3), 1, "max_characters", 50]),
        ({"filters": ((51, 3),)}, [(51, 3), 1, "max_characters", 50]),
        ({"filters": ((1, 0),)}, ["filters", 1, 0]),
        ({"char_projection": False}, ["char_projection", "filters", "projection_dim", 512, 2048]),
        ({"n_words": 5}, ["n_words", 5, "input", "'words'"]),
        ({"input": "words"}, ["input", "'words'", "n_words"]),
        ({"input": "words", "n_words": 4, "softmax_words": 6}, ["softmax_words", 4, 0, 6]),
        ({"joint": True}, ["joint", "objective", "'masked'", "'bilm'"]),
        ({"objective": "masked", "direction": "backward"}, ["objective", "direction", "'both'", "'backward'"]),
        ({"tied_softmax": True}, ["tied_softmax", "input", "'words'", "softmax_words", "n_words"]),
        (
            {"input": "words", "n_words": 5, "softmax_words": 4, "tied_softmax": True},
            ["tied_softmax", "input", "'words'", 4, 5],
        ),
    ],
)
def test_shapes_that_cannot_be(changes, facts):
    with pytest.raises(ConfigError, match=mentions(*facts)):
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
