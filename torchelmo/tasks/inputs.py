"""What every task model sees of a token: [word vector; character CNN; ELMo], each where it is wanted."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.errors import ConfigError
from torchelmo.tasks.elmo_layers import ElmoLayers
from torchelmo.tasks.layers.characters import TokenCharCNN
from torchelmo.tasks.layers.padding import lengths_mask, pad_ids
from torchelmo.tasks.layers.word_vectors import WordEmbedding
from torchelmo.text.characters import CharacterEncoder


class TokenVectors(NamedTuple):
    vectors: Tensor  # (batch, tokens, dim), 0 at padded positions
    mask: Tensor  # (batch, tokens), true at real tokens
    output: Tensor | None  # (batch, tokens, output_dim): the ELMo mix for the output of the task's encoder


class TokenInput(nn.Module):
    """Sentences as token lists -> `TokenVectors`. `output_dim` is 0 where ELMo does not enter at the output."""

    def __init__(
        self,
        words: WordEmbedding | None = None,
        characters: TokenCharCNN | None = None,
        elmo: ElmoLayers | None = None,
    ) -> None:
        super().__init__()
        self.words, self.characters, self.elmo = words, characters, elmo
        at_input = elmo is not None and elmo.config.place in ("input", "both")
        at_output = elmo is not None and elmo.config.place in ("output", "both")
        self._elmo_at_input = at_input
        self.dim = sum(part.dim for part in (words, characters, elmo if at_input else None) if part is not None)
        self.output_dim = elmo.dim if elmo is not None and at_output else 0
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

    def _character_vectors(self, cnn: TokenCharCNN, sentences: Sequence[Sequence[str]], mask: Tensor) -> Tensor:
        """Every distinct word of the batch goes through the CNN once."""
        places = {word: i for i, word in enumerate(dict.fromkeys(word for row in sentences for word in row))}
        vectors = cnn(torch.from_numpy(self._encoder.encode(list(places))).to(mask.device))
        indices = pad_ids([[places[word] for word in row] for row in sentences], device=mask.device)
        gathered: Tensor = vectors[indices] if len(places) else vectors.new_zeros(*mask.shape, cnn.dim)
        return gathered.masked_fill(~mask.unsqueeze(-1), 0.0)
