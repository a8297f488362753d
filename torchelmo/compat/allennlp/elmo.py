"""AllenNLP's `Elmo`, `ElmoTokenEmbedder`, `ScalarMix` and `batch_to_ids`."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchelmo.compat.allennlp.bilm import ElmoBiLm, File
from torchelmo.errors import ConfigError
from torchelmo.mix import ScalarMix as CoreMix
from torchelmo.text.characters import CharacterEncoder, check_tokens

log = logging.getLogger(__name__)


class ScalarMix(nn.Module):
    """A weighted average of tensors, gamma · Σ softmax(scalar_parameters)_j tensor_j.

    Args:
        mixture_size: The number of tensors.
        do_layer_norm: Normalize each tensor over all tokens of the batch.
        initial_scalar_parameters: The weights before the softmax; default: all 0.
        trainable: Train the weights and gamma.
    """

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        self.mixture_size, self.do_layer_norm = mixture_size, do_layer_norm
        initial = [0.0] * mixture_size if initial_scalar_parameters is None else initial_scalar_parameters
        if len(initial) != mixture_size:
            raise ConfigError(
                f"ScalarMix: expected {mixture_size} initial_scalar_parameters, one per tensor, got {len(initial)}."
            )
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(value)]), requires_grad=trainable) for value in initial
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)
        with torch.device("meta"):  # without weights, and in a tuple so that nn.Module does not register it
            self._core = (CoreMix(mixture_size, layer_norm=do_layer_norm, norm_over="batch"),)

    def forward(self, tensors: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Mix tensors (..., dim). `mask` (...), true at real tokens, is used by the layer norm only."""
        own = {"scalars": torch.cat(list(self.scalar_parameters)), "gamma": self.gamma}
        mixed: Tensor = functional_call(self._core[0], own, (tensors, mask))
        return mixed


class Elmo(nn.Module):
    """ELMo representations: ids (..., tokens, 50) -> {"elmo_representations", "mask"}.

    The representations are `num_output_representations` tensors (..., tokens, dim).

    Args:
        options_file: The path of options.json; None, together with `weight_file`, for the model in the package.
        weight_file: The path of weights.hdf5.
        num_output_representations: The number of mixes.
        requires_grad: Train the biLM.
        do_layer_norm: Normalize each layer before mixing.
        dropout: The dropout of the representations in training mode.
        vocab_to_cache: Words whose token vectors are computed once.
        keep_sentence_boundaries: Keep the sentence marks.
        scalar_mix_parameters: Fixed weights of the mixes before the softmax; default: trained weights.
        module: A module to use instead of the files.
        stateful: Start a call from the state at the end of the call before, as AllenNLP does.

    Raises:
        ConfigError: The arguments contradict each other.
    """

    def __init__(
        self,
        options_file: File | None,
        weight_file: File | None,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        module: nn.Module | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        if module is not None and (options_file is not None or weight_file is not None):
            raise ConfigError(
                f"Elmo: expected either files or a module, got options_file = {options_file!r} and "
                f"weight_file = {weight_file!r}. Give either the files or a module."
            )
        bilm: Any = (
            ElmoBiLm(options_file, weight_file, requires_grad, vocab_to_cache, stateful=stateful)
            if module is None
            else module
        )
        self._elmo_lstm = bilm
        self._has_cached_vocab = vocab_to_cache is not None
        self._keep_sentence_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(p=dropout)
        self._scalar_mixes: list[ScalarMix] = []
        for k in range(num_output_representations):
            mix = ScalarMix(
                bilm.num_layers,
                do_layer_norm=do_layer_norm,
                initial_scalar_parameters=scalar_mix_parameters,
                trainable=scalar_mix_parameters is None,
            )
            self.add_module(f"scalar_mix_{k}", mix)
            self._scalar_mixes.append(mix)

    def get_output_dim(self) -> int:
        """Return the width of a representation."""
        dim: int = self._elmo_lstm.get_output_dim()
        return dim

    def reset_states(self) -> None:
        """Reset the state to zero."""
        if hasattr(self._elmo_lstm, "reset_states"):  # the user's own module may have no state
            self._elmo_lstm.reset_states()

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """Run the biLM and mix its layers.

        Args:
            inputs: Character ids (..., tokens, 50).
            word_inputs: Positions (..., tokens) in `vocab_to_cache`; other words are read from `inputs`.

        Returns:
            "elmo_representations", a list of tensors (..., tokens, dim), and "mask" (..., tokens).
        """
        if word_inputs is not None and not self._has_cached_vocab:
            log.warning("Elmo: word_inputs are ignored, because it was built without vocab_to_cache.")
            word_inputs = None
        leading = inputs.shape[:-2] if word_inputs is None else word_inputs.shape[:-1]
        if inputs.dim() > 3:
            inputs = inputs.reshape(-1, *inputs.shape[-2:])
        if word_inputs is not None:
            word_inputs = word_inputs.reshape(-1, word_inputs.shape[-1])
        out = self._elmo_lstm(inputs, word_inputs)
        mask = out["mask"] if self._keep_sentence_boundaries else out["mask"][:, 2:]
        representations = []
        for mix in self._scalar_mixes:
            mixed = mix(out["activations"], out["mask"])
            if not self._keep_sentence_boundaries:
                mixed = mixed[:, 1:-1].masked_fill(~mask.unsqueeze(-1), 0.0)  # removes the </S> of shorter rows
            representations.append(self._dropout(mixed).reshape(*leading, *mixed.shape[1:]))
        return {"elmo_representations": representations, "mask": mask.reshape(*leading, mask.shape[-1])}


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """Return the character ids (batch, tokens, 50) of tokenized sentences, 0 at padded positions.

    >>> batch_to_ids([["a", "bow"], ["yes"]])[..., :5].tolist()
    [[[259, 98, 260, 261, 261], [259, 99, 112, 120, 260]], [[259, 122, 102, 116, 260], [0, 0, 0, 0, 0]]]
    """
    sentences = [list(sentence) for sentence in batch]
    if any(isinstance(sentence, str) for sentence in batch):
        log.warning("batch_to_ids got a string. As in AllenNLP, each character becomes a token. Pass lists of tokens.")
    for position, sentence in enumerate(sentences):
        check_tokens(sentence, position)
    return torch.from_numpy(CharacterEncoder().batch(sentences))


class ElmoTokenEmbedder(nn.Module):
    """One ELMo representation, optionally projected: ids (..., tokens, 50) -> (..., tokens, dim).

    Args:
        options_file: As in `Elmo`.
        weight_file: As in `Elmo`.
        do_layer_norm: As in `Elmo`.
        dropout: As in `Elmo`.
        requires_grad: As in `Elmo`.
        projection_dim: The width of a projection of the representation; None for no projection.
        vocab_to_cache: As in `Elmo`.
        scalar_mix_parameters: As in `Elmo`.
        stateful: As in `Elmo`.
    """

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
        """Return the width of the output."""
        return self.output_dim

    def reset_states(self) -> None:
        """Reset the state to zero."""
        self._elmo.reset_states()

    def forward(self, elmo_tokens: Tensor, word_inputs: Tensor | None = None) -> Tensor:
        """Return the representation of ids (..., tokens, 50)."""
        vectors: Tensor = self._elmo(elmo_tokens, word_inputs)["elmo_representations"][0]
        return vectors if self._projection is None else self._projection(vectors)
