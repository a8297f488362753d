"""The token vectors of a task model: [word vector; character CNN; ELMo], each of them optional."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.errors import ConfigError
from torchelmo.tasks.config import CharactersConfig, WordsConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.layers.basic import lengths_mask, pad_ids
from torchelmo.tasks.words import VectorFile, WordEmbedding, read_vectors
from torchelmo.text.characters import PADDING, CharacterEncoder


class TokenVectors(NamedTuple):
    """What `TokenInput` returns for a batch of sentences."""

    vectors: Tensor  # (batch, tokens, dim), 0 at padded positions
    mask: Tensor  # (batch, tokens), true at real tokens
    output: Tensor | None  # (batch, tokens, output_dim): the ELMo mix to add to the output of the task's encoder


class TokenInput(nn.Module):
    """Tokenized sentences -> `TokenVectors`. `output_dim` is 0 unless ELMo enters at the output."""

    def __init__(
        self,
        words: WordEmbedding | None = None,
        characters: "TokenCharCNN | None" = None,
        elmo: ElmoLayers | None = None,
    ) -> None:
        super().__init__()
        self.words, self.characters, self.elmo = words, characters, elmo
        places = elmo.config.places if elmo is not None else ()
        self._elmo_at_input = "input" in places
        at_input = elmo if self._elmo_at_input else None
        self.dim = sum(part.dim for part in (words, characters, at_input) if part is not None)
        self.output_dim = elmo.dim if elmo is not None and "output" in places else 0
        if not self.dim:
            raise ConfigError(
                "The task model needs an input: word vectors ([words] dim or vectors), characters "
                "([characters] n_filters), or ELMo at the input (elmo.place)."
            )
        self._encoder = CharacterEncoder()

    def forward(self, sentences: Sequence[Sequence[str]]) -> TokenVectors:
        device = next(self.parameters()).device
        mask = lengths_mask([len(sentence) for sentence in sentences], device=device)
        parts = []
        if self.words is not None:
            parts.append(self.words(pad_ids([self.words.ids(sentence) for sentence in sentences], device=device)))
        if self.characters is not None:
            parts.append(self._character_vectors(self.characters, sentences, mask))
        mixes: list[Tensor] = []
        if self.elmo is not None:
            mixes = self.elmo(sentences).mixes
        if self._elmo_at_input:
            parts.append(mixes[0])
        vectors = torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
        return TokenVectors(vectors, mask, mixes[-1] if self.output_dim else None)

    def _character_vectors(self, cnn: "TokenCharCNN", sentences: Sequence[Sequence[str]], mask: Tensor) -> Tensor:
        """Run the CNN once on every distinct word of the batch."""
        rows = {word: i for i, word in enumerate(dict.fromkeys(word for sentence in sentences for word in sentence))}
        vectors = cnn(torch.from_numpy(self._encoder.encode(list(rows))).to(mask.device))
        indices = pad_ids([[rows[word] for word in sentence] for sentence in sentences], device=mask.device)
        gathered: Tensor = vectors[indices] if rows else vectors.new_zeros(*mask.shape, cnn.dim)
        return gathered.masked_fill(~mask.unsqueeze(-1), 0.0)


class TokenCharCNN(nn.Module):
    """Character ids (n_words, n_characters) of `CharacterEncoder` -> (n_words, n_filters), trained with the task.

    Words are padded with zeros at both ends, so that any width works for any word and padding changes nothing.
    """

    def __init__(self, *, char_dim: int = 16, n_filters: int = 128, width: int = 3) -> None:
        super().__init__()
        self.dim, self.width = n_filters, width
        self.embedding = nn.Parameter(torch.empty(PADDING + 1, char_dim))
        self.filters = nn.Linear(width * char_dim, n_filters)
        bound = math.sqrt(3.0 / char_dim)
        nn.init.uniform_(self.embedding, -bound, bound)
        nn.init.xavier_uniform_(self.filters.weight, gain=nn.init.calculate_gain("relu"))
        nn.init.zeros_(self.filters.bias)

    def forward(self, char_ids: Tensor) -> Tensor:
        real = (char_ids != 0) & (char_ids != PADDING)
        left = (self.width - 1) // 2
        padded = F.pad(char_ids.masked_fill(~real, 0), (left, self.width - 1 - left))
        # Compute only the windows around real characters: most words are far shorter than the longest.
        windows = padded.unfold(1, self.width, 1)[real]  # (n_windows, width)
        embedded = F.embedding(windows, self.embedding) * (windows != 0).unsqueeze(2)
        values = torch.relu(self.filters(embedded.flatten(1)))
        words = real.nonzero()[:, :1].expand_as(values)
        return values.new_zeros(len(char_ids), self.dim).scatter_reduce(0, words, values, "amax")


def build_characters(config: CharactersConfig) -> TokenCharCNN | None:
    """Return the character CNN of [characters], or None if it has no filters."""
    if not config.n_filters:
        return None
    return TokenCharCNN(char_dim=config.char_dim, n_filters=config.n_filters, width=config.width)


def build_words(config: WordsConfig, sentences: Iterable[Sequence[str]]) -> WordEmbedding | None:
    """Return the word vectors of [words]: from a file, learned from random values, or None.

    Args:
        config: The settings.
        sentences: The training sentences, which decide which words are frequent and which vectors are trained.

    Raises:
        ConfigError: No word is frequent enough, or `dim` is not the width of the vectors in the file.
        InputError: The file is malformed.
    """
    if config.vectors is None:
        if not config.dim:
            return None
        frequent = _frequent(_count(sentences), config.min_count)
        if not frequent:
            raise ConfigError(
                f"words.min_count: expected words that occur {config.min_count} times in distinct training examples, "
                "found none. Set a smaller number, or words.dim = 0 for no word vectors."
            )
        return WordEmbedding(frequent, dim=config.dim)
    file = read_vectors(config.vectors)
    if config.dim not in (0, file.vectors.shape[1]):
        raise ConfigError(
            f"words.dim: expected {file.vectors.shape[1]}, the width of the vectors in {config.vectors}, or nothing; "
            f"got {config.dim}."
        )
    if not config.trainable:
        return WordEmbedding(file.words, file.vectors, n_fixed=len(file.words))
    return _trainable_words(file, _count(sentences), config.min_count)


def _trainable_words(file: VectorFile, counts: Counter[str], min_count: int) -> WordEmbedding:
    """Train the vectors of words in the training data. The others get no gradient: they are fixed, and saved once."""
    known = set(file.words)
    seen = {word if word in known else word.lower() for word in counts}
    more = [word for word in _frequent(counts, min_count) if word not in known and word.lower() not in known]
    extra = torch.randn(len(more), file.vectors.shape[1]) * file.vectors.std()
    learned = [row for row, word in enumerate(file.words) if word in seen]
    fixed = [row for row, word in enumerate(file.words) if word not in seen]
    words = [*(file.words[row] for row in learned), *more, *(file.words[row] for row in fixed)]
    vectors = torch.cat([file.vectors[learned], extra, file.vectors[fixed]])
    return WordEmbedding(words, vectors, n_fixed=len(fixed))


def _count(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    return Counter(word for sentence in sentences for word in sentence)


def _frequent(counts: Counter[str], min_count: int) -> list[str]:
    return sorted(word for word, count in counts.items() if count >= min_count)
