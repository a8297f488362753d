"""The shape of a biLM. The defaults are the paper's "original" model."""

import math
from dataclasses import dataclass
from typing import Literal

from torchelmo.errors import ConfigError

Filters = tuple[tuple[int, int], ...]

PAPER_FILTERS: Filters = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True)
class BiLMConfig:
    """
    >>> BiLMConfig(cell_dim=1024, projection_dim=128, n_highway=1).dim
    256
    """

    input: Literal["characters", "words"] = "characters"
    n_words: int = 0  # rows of the embedding of a word-input model; 0 for character input
    n_characters: int = 262  # rows of the character table: 256 bytes, five marks, and row 0 for padding
    max_characters: int = 50  # per token, the two word marks included
    char_dim: int = 16
    filters: Filters = PAPER_FILTERS  # (width, count) of each convolution
    activation: Literal["relu", "tanh"] = "relu"
    n_highway: int = 2
    char_projection: bool = True  # from the filters to projection_dim; without it the two must be equal
    projection_dim: int = 512
    cell_dim: int = 4096
    n_layers: int = 2
    cell_clip: float | None = 3.0  # None, or 0, for no clipping
    projection_clip: float | None = 3.0
    residual: bool = True  # every layer but the first adds its input
    direction: Literal["both", "forward", "backward"] = "both"
    softmax_words: int = 0  # vocabulary of the language model's softmax; 0 where there is none
    tied_softmax: bool = False  # a word-input model may use its embedding as the softmax weights

    def __post_init__(self) -> None:
        for name in ("char_dim", "projection_dim", "cell_dim", "n_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("n_highway", "softmax_words", "n_words"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}.")
        for name in ("cell_clip", "projection_clip"):
            clip = getattr(self, name)
            if clip is not None and not (clip >= 0 and math.isfinite(clip)):
                raise ConfigError(f"{name} must be positive, or 0 for no clipping; got {clip}.")
            object.__setattr__(self, name, clip or None)  # TOML cannot say None
        if self.input == "characters":
            self._check_characters()
        elif self.n_words < 1:
            raise ConfigError("input = 'words' needs n_words, the number of words in the vocabulary.")
        if self.tied_softmax and (self.input != "words" or self.softmax_words != self.n_words):
            raise ConfigError(
                "tied_softmax needs input = 'words' and softmax_words = n_words, "
                f"got input = {self.input!r}, {self.softmax_words} and {self.n_words}."
            )
        if self.input == "words" and self.softmax_words not in (0, self.n_words):
            raise ConfigError(
                f"softmax_words: a model that reads {self.n_words} words has a softmax over the same, or none (0); "
                f"got {self.softmax_words}."
            )

    def _check_characters(self) -> None:
        if self.n_words:
            raise ConfigError(f"n_words = {self.n_words} belongs to input = 'words', not to characters.")
        if self.max_characters < 3:
            raise ConfigError(f"max_characters must hold two marks and a byte, got {self.max_characters}.")
        if self.n_characters < 262:
            raise ConfigError(f"n_characters must be at least 262 (bytes, marks, padding), got {self.n_characters}.")
        if not self.filters:
            raise ConfigError("filters must have at least one (width, count).")
        for width, count in self.filters:
            if width < 1 or count < 1 or width > self.max_characters:
                raise ConfigError(
                    f"filter ({width}, {count}): the width must be 1 to max_characters = "
                    f"{self.max_characters} and the count at least 1."
                )
        if not self.char_projection and self.n_filters != self.projection_dim:
            raise ConfigError(
                f"char_projection = false needs as many filters as projection_dim = {self.projection_dim}, "
                f"got {self.n_filters}."
            )

    @property
    def n_filters(self) -> int:
        return sum(count for _, count in self.filters)

    @property
    def directions(self) -> tuple[str, ...]:
        return ("forward", "backward") if self.direction == "both" else (self.direction,)

    @property
    def dim(self) -> int:
        """Width of every layer: one projection per direction."""
        return self.projection_dim * len(self.directions)
