"""④ Text in, deep contextual vectors out: the biLM and its mixes as a module, and `embed` for people."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from torchelmo.bilm.model import BiLM
from torchelmo.errors import InputError
from torchelmo.mix import ScalarMix
from torchelmo.text.characters import CharacterEncoder

Sentence = Sequence[str] | str
Layers = Literal["all", "top", "average", "mix"] | int
Vectors = npt.NDArray[np.float32]


class ElmoOutput(NamedTuple):
    mixes: list[Tensor]  # n_mixes tensors (..., tokens, dim), 0 at padded positions
    mask: Tensor  # (..., tokens), true at real tokens


class Elmo(nn.Module):
    """ids (..., tokens, max_characters) -> `n_mixes` mixes of one biLM run, each (..., tokens, dim).

    `freeze=True` trains only the mixes. `keep_boundaries` leaves `<S>` and `</S>` in the result.
    """

    def __init__(
        self,
        bilm: BiLM,
        *,
        n_mixes: int = 1,
        dropout: float = 0.5,
        layer_norm: bool = False,
        freeze: bool = True,
        keep_boundaries: bool = False,
        mixes: Sequence[ScalarMix] | None = None,
    ) -> None:
        super().__init__()
        self.bilm, self.freeze, self.keep_boundaries = bilm, freeze, keep_boundaries
        bilm.requires_grad_(not freeze)
        n_layers = bilm.config.n_layers + 1
        built = mixes or [ScalarMix(n_layers, layer_norm=layer_norm) for _ in range(n_mixes)]
        self.mixes: Sequence[ScalarMix] = nn.ModuleList(built)  # type: ignore[assignment]
        self.dropout = nn.Dropout(dropout)

    @property
    def dim(self) -> int:
        """Width of every vector: twice the projection, for two directions."""
        return self.bilm.config.dim

    def encode(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Lists of tokens -> the ids that `forward` takes, 0 at padded positions."""
        for i, sentence in enumerate(sentences):
            check_tokens(sentence, i)
        device = next(self.bilm.parameters()).device
        if self.bilm.config.input == "characters":
            encoder = CharacterEncoder(self.bilm.config.max_characters)
            return torch.from_numpy(encoder.batch(sentences)).to(device)
        return word_ids(self.bilm, sentences).to(device)

    def forward(self, ids: Tensor) -> ElmoOutput:
        n_token_dims = 2 if self.bilm.config.input == "characters" else 1
        leading = ids.shape[:-n_token_dims]
        flat = ids.reshape(-1, *ids.shape[-n_token_dims:])
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze):
            out = self.bilm(flat)
        mask = out.mask if self.keep_boundaries else self.bilm.mask_of(flat)
        mixes = []
        for mix in self.mixes:
            mixed = mix(out.layers, out.mask)
            if not self.keep_boundaries:
                mixed = mixed[:, 1:-1]  # shorter rows lose their </S> by the mask
            mixed = self.dropout(mixed.masked_fill(~mask.unsqueeze(-1), 0.0))
            mixes.append(mixed.reshape(*leading, *mixed.shape[1:]))
        return ElmoOutput(mixes, mask.reshape(*leading, mask.shape[-1]))

    def penalty(self) -> Tensor:
        """Σ‖w‖² over the mixes: add λ times this to the task's loss."""
        return torch.stack([mix.penalty() for mix in self.mixes]).sum()

    def embed(
        self,
        sentences: Iterable[Sentence],
        layers: Layers = "all",
        *,
        batch_tokens: int = 2048,
        precision: Literal["float32", "float16"] = "float32",
        state: Literal["reset", "carry"] = "reset",
        lang: str = "en",
        progress: bool | Callable[[int], object] = False,
    ) -> list[Vectors]:
        """One array for each sentence: (n_layers + 1, n_tokens, dim) for "all", else (n_tokens, dim).

        A sentence is a list of tokens, or a string for spaCy's rules of `lang`; a string of several sentences
        is run sentence by sentence and gives one array of all its tokens. Batches, their order and earlier
        calls change nothing; only `state="carry"` lets a sentence start from where the one before it ended.
        """
        return list(
            self.stream(
                sentences,
                layers,
                batch_tokens=batch_tokens,
                precision=precision,
                state=state,
                lang=lang,
                progress=progress,
            )
        )

    def stream(
        self,
        sentences: Iterable[Sentence],
        layers: Layers = "all",
        *,
        batch_tokens: int = 2048,
        precision: Literal["float32", "float16"] = "float32",
        state: Literal["reset", "carry"] = "reset",
        lang: str = "en",
        progress: bool | Callable[[int], object] = False,
    ) -> Iterator[Vectors]:
        """`embed` for iterables of any length: arrays come in order while the input is read, in bounded memory."""
        raise NotImplementedError


def check_tokens(sentence: Sequence[str], position: int) -> None:
    """A list of strings, or an error that says which sentence is not one."""
    if isinstance(sentence, str):
        raise InputError(
            f"Sentence {position}: expected a list of tokens, got the string {sentence[:40]!r}. "
            "Split it into tokens, or pass strings to embed()."
        )
    for i, token in enumerate(sentence):
        if not isinstance(token, str):
            raise InputError(f"Sentence {position}, token {i}: expected a string, got {token!r}.")


def word_ids(bilm: BiLM, sentences: Sequence[Sequence[str]]) -> Tensor:
    """(n_sentences, longest): word i of the vocabulary as i + 1, 0 at padded positions."""
    if bilm.vocabulary is None:
        raise InputError(
            "This model reads whole words but has no vocabulary: give load_official its vocabulary file, "
            "or put a vocab.txt into the model folder."
        )
    ids = torch.zeros(len(sentences), max(map(len, sentences), default=0), dtype=torch.int64)
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence)] = torch.from_numpy(bilm.vocabulary.ids(sentence) + 1)
    return ids
