"""The shape of a biLM. The defaults are the paper's "original" model."""

from dataclasses import dataclass
from typing import Annotated, Literal

from torchelmo.config import Config, LayerCount, Range, Width
from torchelmo.errors import ConfigError

# The upper limits are far beyond every published model. They bound what a damaged or malicious file can make us build.
_Words = Annotated[int, Range(min=0, max=10**8)]
_Clip = Annotated[float, Range(min=0, max=1e9)]
_MAX_FILTERS = 100

Filters = tuple[tuple[int, Width], ...]

PAPER_FILTERS: Filters = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True)
class BiLMConfig(Config):
    """The shape of a biLM.

    Args:
        input: "characters" reads the UTF-8 bytes of a word, "words" whole words, "characters+words" Unicode characters
            and whole words, as the models of ELMoForManyLangs do.
        n_words: The number of words that a model with word input reads; 0 for character input.
        n_characters: The number of character ids: 256 bytes, five marks, and 0 for padding. If the input is both, the
            symbols of the model, and 0.
        max_characters: The number of ids of a token, its two marks included. Longer tokens are cut: 50 leaves 48
            bytes of UTF-8.
        char_dim: The width of a character embedding.
        filters: The (width, count) of each convolution.
        activation: The activation of the convolutions.
        n_highway: The number of highway layers.
        char_projection: Whether the filters are projected to `projection_dim`. Without it the two must be equal.
        projection_dim: The width of token vectors and LSTM outputs.
        cell_dim: The width of LSTM cells.
        n_layers: The number of LSTM layers.
        cell_clip: The limit of cell values; None or 0 for no limit.
        projection_clip: The limit of output values; None or 0 for no limit.
        residual: Whether every layer but the first adds its input.
        direction: Which language models there are.
        softmax_words: The number of words of the softmax of the language model; 0 for none.
        tied_softmax: Whether a model with word input uses its embedding as softmax weights.
        objective: The training objective: "bilm" predicts the next word in each direction, "masked" a hidden word from
            the words on both sides. A masked model has a vector that replaces the token vector of a hidden word.
        joint: Whether every layer but the first reads both directions of the layer below, not only one of them. Only
            for objective = "masked": a layer of another model would read the word that it predicts.

    Raises:
        ConfigError: A number is out of range, or two settings contradict each other.

    Example:
        >>> from torchelmo import BiLMConfig
        >>> BiLMConfig(cell_dim=1024, projection_dim=128, n_highway=1).dim
        256
    """

    input: Literal["characters", "words", "characters+words"] = "characters"
    n_words: _Words = 0
    n_characters: Width = 262
    max_characters: Annotated[int, Range(min=3, max=1000)] = 50
    char_dim: Width = 16
    filters: Filters = PAPER_FILTERS
    activation: Literal["relu", "tanh"] = "relu"
    n_highway: Annotated[int, Range(min=0, max=100)] = 2
    char_projection: bool = True
    projection_dim: Width = 512
    cell_dim: Width = 4096
    n_layers: LayerCount = 2
    cell_clip: _Clip | None = 3.0
    projection_clip: _Clip | None = 3.0
    residual: bool = True
    direction: Literal["both", "forward", "backward"] = "both"
    softmax_words: _Words = 0
    tied_softmax: bool = False
    objective: Literal["bilm", "masked"] = "bilm"
    joint: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("cell_clip", "projection_clip"):
            object.__setattr__(self, name, getattr(self, name) or None)  # TOML has no None
        if self.input != "words":
            self._check_characters()
        if self.input != "characters" and self.n_words < 1:
            raise ConfigError(f"input = {self.input!r} needs n_words, the number of words in the vocabulary.")
        if self.tied_softmax and (self.input != "words" or self.softmax_words != self.n_words):
            raise ConfigError(
                "tied_softmax needs input = 'words' and softmax_words = n_words, "
                f"got input = {self.input!r}, {self.softmax_words} and {self.n_words}."
            )
        if self.input == "words" and self.softmax_words not in (0, self.n_words):
            raise ConfigError(
                f"softmax_words: a model that reads {self.n_words} words has a softmax over the same words, or 0 for "
                f"none; got {self.softmax_words}."
            )
        if self.objective == "masked" and self.direction != "both":
            raise ConfigError(f"objective = 'masked' needs direction = 'both', got {self.direction!r}.")
        if self.joint and self.objective != "masked":
            raise ConfigError(
                "joint = true needs objective = 'masked': a layer that reads both directions would read the word that "
                f"it predicts. Got objective = {self.objective!r}."
            )

    def _check_characters(self) -> None:
        if self.input == "characters" and self.n_words:
            raise ConfigError(f"n_words = {self.n_words} belongs to input = 'words', not to characters.")
        if self.input == "characters" and self.n_characters < 262:
            raise ConfigError(f"n_characters must be at least 262 (bytes, marks, padding), got {self.n_characters}.")
        if not 1 <= len(self.filters) <= _MAX_FILTERS:
            raise ConfigError(f"filters: expected 1 to {_MAX_FILTERS} pairs (width, count), got {len(self.filters)}.")
        for width, count in self.filters:
            if not 1 <= width <= self.max_characters:
                raise ConfigError(
                    f"filters: ({width}, {count}): the width must be 1 to max_characters = {self.max_characters}."
                )
        if not self.char_projection and self.n_filters != self.projection_dim:
            raise ConfigError(
                f"char_projection = false needs as many filters as projection_dim = {self.projection_dim}, "
                f"got {self.n_filters}."
            )

    @property
    def id_shape(self) -> tuple[int, ...]:
        """The shape of the ids of one token: its characters, then its word; () for word input."""
        return {
            "characters": (self.max_characters,),
            "characters+words": (self.max_characters + 1,),
            "words": (),
        }[self.input]

    @property
    def n_filters(self) -> int:
        """The number of filters of all widths."""
        return sum(count for _, count in self.filters)

    @property
    def directions(self) -> tuple[str, ...]:
        """The names of the language models, forward first."""
        return ("forward", "backward") if self.direction == "both" else (self.direction,)

    @property
    def dim(self) -> int:
        """The width of every layer: one projection for each direction."""
        return self.projection_dim * len(self.directions)

    @property
    def predictions(self) -> tuple[str, ...]:
        """The names of the predictions of the softmax: one for each direction, or "masked"."""
        return ("masked",) if self.objective == "masked" else self.directions

    def input_dim(self, layer: int) -> int:
        """Return the width of what the LSTMs of a layer read; the first layer is 0."""
        return self.dim if self.joint and layer > 0 else self.projection_dim
