"""AllenNLP's `Elmo` and `batch_to_ids`."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchelmo.compat.allennlp.bilm import ElmoBiLm, File
from torchelmo.compat.allennlp.scalar_mix import ScalarMix
from torchelmo.elmo import check_tokens
from torchelmo.errors import ConfigError
from torchelmo.text.characters import CharacterEncoder

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
