"""AllenNLP's `ElmoTokenEmbedder`: one mix, as a token embedder for the input of a model."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchelmo.compat.allennlp.bilm import ElmoBiLm, File
from torchelmo.elmo import check_tokens
from torchelmo.errors import ConfigError
from torchelmo.mix import ScalarMix as CoreMix
from torchelmo.text.characters import CharacterEncoder


class ScalarMix(nn.Module):
    """`mixture_size` tensors (..., dim) -> (..., dim): gamma · Σ softmax(scalar_parameters)_j tensor_j."""

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
                f"ScalarMix: expected {mixture_size} initial_scalar_parameters, one for each layer, got {len(initial)}."
            )
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(value)]), requires_grad=trainable) for value in initial
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)
        with torch.device("meta"):  # and in a tuple: it has no weights of its own
            self._core = (CoreMix(mixture_size, layer_norm=do_layer_norm, norm_over="batch"),)

    def forward(self, tensors: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """`mask` (...) tells the layer norm which tokens are real; without layer norm it is not used."""
        own = {"scalars": torch.cat(list(self.scalar_parameters)), "gamma": self.gamma}
        mixed: Tensor = functional_call(self._core[0], own, (tensors, mask))
        return mixed


log = logging.getLogger(__name__)


class Elmo(nn.Module):
    """ids (..., tokens, 50) -> {"elmo_representations": [(..., tokens, dim), …], "mask": (..., tokens)}.

    The arguments are AllenNLP's. `options_file` and `weight_file` are local paths, or both None for the model
    that comes with the package. `stateful=False` lets every call start from zero.
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
                f"Elmo: expected no files beside module, got options_file = {options_file!r} and "
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
        dim: int = self._elmo_lstm.get_output_dim()
        return dim

    def reset_states(self) -> None:
        """Let the next call start from zero."""
        if hasattr(self._elmo_lstm, "reset_states"):  # a module of one's own may hold no state
            self._elmo_lstm.reset_states()

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """`word_inputs` (..., tokens) are places in `vocab_to_cache`; other words are read from `inputs`."""
        if word_inputs is not None and not self._has_cached_vocab:
            log.warning("Elmo got word_inputs but was built without vocab_to_cache: the characters are used.")
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
                mixed = mixed[:, 1:-1].masked_fill(~mask.unsqueeze(-1), 0.0)  # a shorter row loses its </S> here
            representations.append(self._dropout(mixed).reshape(*leading, *mixed.shape[1:]))
        return {"elmo_representations": representations, "mask": mask.reshape(*leading, mask.shape[-1])}


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """Lists of tokens -> character ids (batch, tokens, 50), 0 at padded positions.

    >>> batch_to_ids([["a", "bow"], ["yes"]])[..., :5].tolist()
    [[[259, 98, 260, 261, 261], [259, 99, 112, 120, 260]], [[259, 122, 102, 116, 260], [0, 0, 0, 0, 0]]]
    """
    sentences = [list(sentence) for sentence in batch]
    if any(isinstance(sentence, str) for sentence in batch):
        log.warning("batch_to_ids got a string: as in AllenNLP each character becomes a token. Pass lists of tokens.")
    for position, sentence in enumerate(sentences):
        check_tokens(sentence, position)
    return torch.from_numpy(CharacterEncoder().batch(sentences))


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
