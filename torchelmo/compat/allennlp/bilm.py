"""AllenNLP's `_ElmoBiLm`: ids -> the activations of every layer, sentence marks included."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import torchelmo
from torchelmo.bilm.model import BiLM
from torchelmo.compat.allennlp.character_encoder import ElmoCharacterEncoder, add_marks
from torchelmo.compat.allennlp.lstm import ElmoLstm
from torchelmo.errors import ConfigError, InputError, MissingFileError
from torchelmo.text.batching import windows
from torchelmo.text.characters import CharacterEncoder

log = logging.getLogger(__name__)

File = str | Path
_WORDS_AT_ONCE = 1024


class ElmoBiLm(nn.Module):
    """ids (batch, tokens, 50) -> {"activations": n_layers + 1 tensors (batch, tokens + 2, dim), "mask"}."""

    def __init__(
        self,
        options_file: File | None,
        weight_file: File | None,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        bilm = load_files(options_file, weight_file)
        self._requires_grad = requires_grad
        self._token_embedder = ElmoCharacterEncoder(bilm, requires_grad=requires_grad)
        self._word_embedding: nn.Embedding | None = None
        if vocab_to_cache:
            if requires_grad:
                log.warning("The vectors of cached words and the character encoder are trained apart from each other.")
            self.create_cached_cnn_embeddings(vocab_to_cache)
        self._elmo_lstm = ElmoLstm(bilm, requires_grad=requires_grad, stateful=stateful)
        self.num_layers = bilm.config.n_layers + 1

    def get_output_dim(self) -> int:
        return 2 * self._token_embedder.get_output_dim()

    def reset_states(self) -> None:
        self._elmo_lstm.reset_states()

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Tensor | list[Tensor]]:
        """`word_inputs` (batch, tokens) are places in `vocab_to_cache`, 0 at padded positions."""
        if self._word_embedding is not None and word_inputs is not None:
            vectors, mask = self._look_up(self._word_embedding, inputs, word_inputs)
        else:
            encoded = self._token_embedder(inputs)
            vectors, mask = encoded["token_embedding"], encoded["mask"]
        return {"activations": list(self._elmo_lstm.all_layers(vectors, mask)), "mask": mask}

    def create_cached_cnn_embeddings(self, tokens: Sequence[str]) -> None:
        """Encode `tokens` now; forward then finds their vectors by their place in this list.

        Place 0 belongs to padding, as in AllenNLP's vocabularies: its vector is 0.
        """
        encoder, device = CharacterEncoder(), next(self.parameters()).device
        parts = []
        with torch.no_grad():
            for words in windows(tokens, _WORDS_AT_ONCE):
                ids = torch.from_numpy(encoder.encode(words)).to(device).unsqueeze(0)
                parts.append(self._token_embedder.encode(ids, torch.ones_like(ids[..., 0], dtype=torch.bool))[0])
        vectors = torch.cat(parts)
        vectors[0] = 0.0
        self._word_embedding = nn.Embedding(len(vectors), vectors.shape[1], padding_idx=0, _weight=vectors)
        self._word_embedding.requires_grad_(self._requires_grad)

    def _look_up(self, cached: nn.Embedding, inputs: Tensor, word_inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Token vectors with their marks, and their mask; words outside the cache are spelled."""
        known = (word_inputs >= 0) & (word_inputs < cached.num_embeddings)
        mask = word_inputs > 0
        vectors = cached(word_inputs.masked_fill(~known, 0))
        if not bool(known.all()):
            if inputs.shape[:-1] != word_inputs.shape:
                raise InputError(
                    "word_inputs: words outside vocab_to_cache are read by their characters: expected inputs "
                    f"of shape {(*word_inputs.shape, 50)}, got {tuple(inputs.shape)}."
                )
            mask = torch.where(known, mask, self._token_embedder.core.mask_of(inputs))
            spelled = self._token_embedder.encode(inputs, mask & ~known)
            vectors = torch.where(known.unsqueeze(-1), vectors, spelled)
        if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise InputError("word_inputs: padding (id 0) must stand after the tokens of a row, not between them.")
        vectors = vectors.masked_fill(~mask.unsqueeze(-1), 0.0)
        return add_marks(vectors, mask, *self._token_embedder.encode_marks())


def load_files(options_file: File | None, weight_file: File | None) -> BiLM:
    """The official files at two local paths; with neither, the model that comes with the package."""
    if options_file is None and weight_file is None:
        bilm = torchelmo.load()
    elif options_file is None or weight_file is None:
        missing = "options_file" if options_file is None else "weight_file"
        raise ConfigError(
            f"{missing}: expected a path, got None. The two files belong together: give both, or neither for "
            "the model that comes with the package."
        )
    else:
        for name, file in (("options_file", options_file), ("weight_file", weight_file)):
            if "://" in str(file):
                raise MissingFileError(
                    f"{name}: expected the path of a local file, got the address {file}. "
                    "Nothing is downloaded here: download the file first and give its path."
                )
        bilm = torchelmo.load_official(options_file, weight_file)
    if bilm.config.input != "characters" or bilm.config.direction != "both":
        raise ConfigError(
            "AllenNLP's ELMo reads characters in both directions, but this model has input = "
            f"{bilm.config.input!r} and direction = {bilm.config.direction!r}. Use torchelmo.Elmo for it."
        )
    return bilm
