"""AllenNLP's `_token_embedder`: characters -> one context-free vector per token, sentence marks included."""

from collections.abc import Iterator

import torch
from torch import Tensor

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.model import BiLM
from torchelmo.compat.allennlp.borrowed import Borrowed, Renamed, plain


class ElmoCharacterEncoder(Borrowed):
    """ids (batch, tokens, 50) -> {"token_embedding": (batch, tokens + 2, projection_dim), "mask"}."""

    def __init__(self, bilm: BiLM, *, requires_grad: bool = False) -> None:
        super().__init__(bilm, list(_table(bilm.config)), trainable=requires_grad)
        self.output_dim = bilm.config.projection_dim

    def get_output_dim(self) -> int:
        return self.output_dim

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        mask = self.core.mask_of(inputs)
        begin, end = self.core.boundary_ids(inputs.device)
        ids, mask = add_marks(inputs, mask, begin, end)
        return {"mask": mask, "token_embedding": self.encode(ids, mask)}

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(batch, tokens, 50) -> (batch, tokens, projection_dim), 0 where `mask` is false."""
        vectors: Tensor = self.run("encode_tokens", ids, mask)
        return vectors

    def encode_marks(self) -> tuple[Tensor, Tensor]:
        """The vectors of `<S>` and `</S>`."""
        marks = torch.stack(self.core.boundary_ids(next(self.parameters()).device)).unsqueeze(0)
        begin, end = self.encode(marks, torch.ones_like(marks[..., 0], dtype=torch.bool))[0]
        return begin, end


def add_marks(rows: Tensor, mask: Tensor, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, tokens, dim) -> (batch, tokens + 2, dim), ids or vectors, and the mask of the result.

    As in AllenNLP a row of padding only gets its two marks too: they run through the LSTMs.
    """
    batch, tokens = mask.shape
    lengths = mask.sum(dim=1)
    marked = rows.new_zeros(batch, tokens + 2, rows.shape[-1])
    marked[:, 1:-1] = rows
    marked[:, 0] = begin
    marked[torch.arange(batch, device=rows.device), lengths + 1] = end
    return marked, torch.arange(tokens + 2, device=rows.device) < (lengths + 2).unsqueeze(1)


def _table(config: BiLMConfig) -> Iterator[Renamed]:
    yield plain("_char_embedding_weights", "encoder.embedding")
    for i in range(len(config.filters)):
        for part in ("weight", "bias"):
            yield plain(f"char_conv_{i}.{part}", f"encoder.convolutions.{i}.{part}")
    for i in range(config.n_highway):
        for part in ("weight", "bias"):
            ours = (f"encoder.highways.{i}.transform.{part}", f"encoder.highways.{i}.carry.{part}")
            yield Renamed(f"_highways._layers.{i}.{part}", ours, _highway_to_ours, _highway_to_theirs)
    if config.char_projection:
        for part in ("weight", "bias"):
            yield plain(f"_projection.{part}", f"encoder.projection.{part}")


def _highway_to_theirs(transform: Tensor, carry: Tensor) -> Tensor:
    """One matrix for both. AllenNLP's gate lets the input through, ours the transformed: 1 − σ(x) = σ(−x)."""
    return torch.cat([transform, -carry])


def _highway_to_ours(joined: Tensor) -> tuple[Tensor, ...]:
    transform, carry = joined.chunk(2)
    return transform, -carry
