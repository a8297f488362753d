"""AllenNLP's `ElmoTokenEmbedder`: one mix, as a token embedder for the input of a model."""

from collections.abc import Sequence

from torch import Tensor, nn

from torchelmo.compat.allennlp.bilm import File
from torchelmo.compat.allennlp.elmo import Elmo


class ElmoTokenEmbedder(nn.Module):
    """ids (..., tokens, 50) -> (..., tokens, dim), or `projection_dim` wide. The arguments are AllenNLP's."""

    def __init__(
        self,
        options_file: File | None = None,
        weight_file: File | None = None,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        requires_grad: bool = False,
        projection_dim: int | None = None,
        vocab_to_cache: Sequence[str] | None = None,
        scalar_mix_parameters: Sequence[float] | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        self._elmo = Elmo(
            options_file,
            weight_file,
            1,
            requires_grad=requires_grad,
            do_layer_norm=do_layer_norm,
            dropout=dropout,
            vocab_to_cache=vocab_to_cache,
            scalar_mix_parameters=scalar_mix_parameters,
            stateful=stateful,
        )
        dim = self._elmo.get_output_dim()
        self._projection = nn.Linear(dim, projection_dim) if projection_dim else None
        self.output_dim = projection_dim or dim

    def get_output_dim(self) -> int:
        return self.output_dim

    def reset_states(self) -> None:
        """Let the next call start from zero."""
        self._elmo.reset_states()

    def forward(self, elmo_tokens: Tensor, word_inputs: Tensor | None = None) -> Tensor:
        vectors: Tensor = self._elmo(elmo_tokens, word_inputs)["elmo_representations"][0]
        return vectors if self._projection is None else self._projection(vectors)
