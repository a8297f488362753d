"""The token encoder: characters, or whole words → one context-independent vector per token.

y_f = act(max_p (b_f + Σ_k W_fk · e(c_{p+k})))     one value per filter, over all positions p
highway(y) = g ⊙ relu(W_t y + b_t) + (1 − g) ⊙ y    with g = σ(W_c y + b_c)
x = W_p · highway(… highway(y)) + b_p
"""

import math

import torch
from torch import Tensor, nn

from torchelmo.bilm.config import BiLMConfig
from torchelmo.errors import InputError
from torchelmo.text.characters import CharacterEncoder, SymbolEncoder, Symbols


def normal_(tensor: Tensor, std: float) -> None:
    """Initialize from N(0, std²), but not on the meta device: PyTorch would load its compiler, which takes seconds."""
    if not tensor.is_meta:
        nn.init.normal_(tensor, 0.0, std)


def build_encoder(config: BiLMConfig, symbols: Symbols | None = None) -> "CharCNN | WordEmbedding":
    """Return a new encoder for the input of a model; `symbols` are those of a model that reads characters and words."""
    if config.input == "words":
        return WordEmbedding(config)
    if config.input == "characters":
        return CharCNN(config)
    if symbols is None:
        raise InputError(
            "BiLM: input = 'characters+words' needs the symbols of the model. Such models can be loaded, but "
            "torchelmo does not train them as language models."
        )
    if (len(symbols.characters), len(symbols.words)) != (config.n_characters - 1, config.n_words):
        raise InputError(
            f"BiLM: expected {config.n_characters - 1} characters and {config.n_words} words, found "
            f"{len(symbols.characters)} and {len(symbols.words)}."
        )
    return CharWordCNN(config, symbols)


class CharCNN(nn.Module):
    """The character encoder: ids (..., max_characters) -> (..., projection_dim).

    Args:
        config: The shape of the model.
    """

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.config = config
        self.characters = CharacterEncoder(config.max_characters)  # makes the ids of tokens
        self.embedding = nn.Parameter(torch.empty(config.n_characters, config.char_dim))
        self.convolutions = nn.ModuleList(nn.Conv1d(config.char_dim, count, width) for width, count in config.filters)
        self.highways = nn.ModuleList(Highway(config.n_filters) for _ in range(config.n_highway))
        self.projection = nn.Linear(config.n_filters, config.projection_dim) if config.char_projection else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize as published."""
        nn.init.uniform_(self.embedding, -1.0, 1.0)
        with torch.no_grad():
            self.embedding[0].zero_()  # padded positions
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            if self.config.activation == "relu":
                nn.init.uniform_(convolution.weight, -0.05, 0.05)
            else:
                fan_in = convolution.kernel_size[0] * convolution.in_channels
                normal_(convolution.weight, math.sqrt(1.0 / fan_in))
            if convolution.bias is not None:
                nn.init.zeros_(convolution.bias)
        if self.projection is not None:
            normal_(self.projection.weight, math.sqrt(1.0 / self.config.n_filters))
            nn.init.zeros_(self.projection.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """(..., max_characters) -> (..., projection_dim)."""
        flat = ids.reshape(-1, ids.shape[-1])
        return self.combine(self.convolve(flat)).view(*ids.shape[:-1], self.config.projection_dim)

    def convolve(self, ids: Tensor) -> Tensor:
        """(n, max_characters) -> (n, n_filters): convolutions over all characters, including padding."""
        embedded = nn.functional.embedding(ids, self.embedding).transpose(1, 2)
        pooled = torch.cat([conv(embedded).amax(dim=-1) for conv in self.convolutions], dim=-1)
        return torch.relu(pooled) if self.config.activation == "relu" else torch.tanh(pooled)

    def conv_layers(self) -> list[nn.Conv1d]:
        """Return the convolutions, in the order of `config.filters`."""
        return list(self.convolutions)  # type: ignore[arg-type]

    def highway_layers(self) -> "list[Highway]":
        """Return the highway layers, first layer first."""
        return list(self.highways)  # type: ignore[arg-type]

    def combine(self, features: Tensor) -> Tensor:
        """(n, n_filters) -> (n, projection_dim): highways, then the projection."""
        for highway in self.highways:
            features = highway(features)
        return features if self.projection is None else self.projection(features)


class CharWordCNN(CharCNN):
    """The encoder of ELMoForManyLangs, which adds a vector for each known word.

    The last id of a token is that of its word: ids (..., max_characters + 1) -> (..., projection_dim).

    Args:
        config: The shape of the model.
        symbols: The characters and words that it knows.
    """

    def __init__(self, config: BiLMConfig, symbols: Symbols) -> None:
        super().__init__(config)
        self.characters = SymbolEncoder(config.max_characters, symbols)
        self.word_vectors = nn.Parameter(torch.empty(config.n_words, config.projection_dim))
        nn.init.zeros_(self.word_vectors)

    def forward(self, ids: Tensor) -> Tensor:
        """(..., max_characters + 1) -> (..., projection_dim)."""
        return super().forward(ids[..., :-1]) + nn.functional.embedding(
            (ids[..., -1] - 1).clamp_min(0), self.word_vectors
        )


class Highway(nn.Module):
    """A gate between the input and a transformation of it: (..., dim) -> (..., dim)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.carry = nn.Linear(dim, dim)
        self.transform = nn.Linear(dim, dim)
        for linear in (self.carry, self.transform):
            normal_(linear.weight, math.sqrt(1.0 / dim))
        nn.init.constant_(self.carry.bias, -2.0)  # initially most of the input passes through
        nn.init.zeros_(self.transform.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) -> (..., dim)."""
        gate = torch.sigmoid(self.carry(x))
        return gate * torch.relu(self.transform(x)) + (1.0 - gate) * x


class WordEmbedding(nn.Module):
    """The encoder of whole words: ids (...) -> (..., projection_dim).

    Id 0 is padding, and word i of the vocabulary is i + 1.

    Args:
        config: The shape of the model.
    """

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.n_words, config.projection_dim))
        nn.init.uniform_(self.embedding, -1.0, 1.0)

    def forward(self, ids: Tensor) -> Tensor:
        """(...) -> (..., projection_dim)."""
        vectors = nn.functional.embedding((ids - 1).clamp_min(0), self.embedding)
        return vectors.masked_fill((ids == 0).unsqueeze(-1), 0.0)
