"""④ Text in, deep contextual vectors out: the biLM and its mixes as a module, and `embed` for people."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.bilm.fast.cache import WordVectors
from torchelmo.bilm.model import BiLM
from torchelmo.embedder import Embedding, Layers, Sentence, Vectors, check_tokens, token_ids
from torchelmo.errors import ConfigError, InputError
from torchelmo.mix import ScalarMix
from torchelmo.progress import progress as show_progress

__all__ = ["Elmo", "ElmoOutput", "Layers", "Sentence", "Vectors", "check_tokens", "token_ids"]

_UNITS = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


class ElmoOutput(NamedTuple):
    mixes: list[Tensor]  # n_mixes tensors (..., tokens, dim), 0 at padded positions
    mask: Tensor  # (..., tokens), true at real tokens


class Elmo(nn.Module):
    """ids (..., tokens, max_characters) -> `n_mixes` mixes of one biLM run, each (..., tokens, dim).

    `freeze=True` trains only the mixes. `keep_boundaries` leaves `<S>` and `</S>` in the result. `cache` is how many
    words `embed` keeps the token vectors of: a number of tokens, or a size such as "64MB"; 0 keeps none. `mixes` of
    your own take the place of `n_mixes` new ones.
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
        cache: int | str = 50_000,
    ) -> None:
        super().__init__()
        self.bilm, self.freeze, self.keep_boundaries = bilm, freeze, keep_boundaries
        bilm.requires_grad_(not freeze)
        n_layers = bilm.config.n_layers + 1
        if n_mixes < 1:
            raise ConfigError(f"n_mixes: expected at least 1, got {n_mixes}.")
        if mixes is None:
            mixes = [ScalarMix(n_layers, layer_norm=layer_norm) for _ in range(n_mixes)]
        elif not mixes or n_mixes not in (1, len(mixes)):
            expected = "at least one mix, or None for new ones" if not mixes else f"n_mixes = {n_mixes} mixes"
            raise ConfigError(f"mixes: expected {expected}, got {len(mixes)}.")
        for mix in mixes:
            if mix.n_layers != n_layers:
                raise ConfigError(f"mixes: expected mixes of {n_layers} layers, got one of {mix.n_layers}.")
        self.mixes: Sequence[ScalarMix] = nn.ModuleList(mixes)  # type: ignore[assignment]
        self.dropout = nn.Dropout(dropout)
        self.words = WordVectors(self._cache_rows(cache))

    @property
    def dim(self) -> int:
        """Width of every vector: twice the projection, for two directions."""
        return self.bilm.config.dim

    def encode(self, sentences: Iterable[Sequence[str]]) -> Tensor:
        """Lists of tokens -> the ids that `forward` takes, 0 at padded positions."""
        if not isinstance(sentences, Iterable):
            raise InputError(f"encode: expected a list of sentences, got {sentences!r}.")
        sentences = list(sentences)
        for i, sentence in enumerate(sentences):
            check_tokens(sentence, i)
        return token_ids(self.bilm, sentences)

    def forward(self, ids: Tensor) -> ElmoOutput:
        if not isinstance(ids, Tensor):
            raise InputError(f"Elmo: expected a tensor of ids, got {type(ids).__name__}. Use Elmo.encode to make it.")
        n_token_dims = 2 if self.bilm.config.input == "characters" else 1
        leading = ids.shape[:-n_token_dims]
        flat = ids.reshape(math.prod(leading), *ids.shape[-n_token_dims:])
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze):
            out = self.bilm(flat)
        mask = out.mask if self.keep_boundaries else out.mask[:, 2:]  # a row of n tokens has n + 2 with its marks
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
        if isinstance(sentences, (str, bytes)):
            raise InputError("embed: expected a list of sentences, got one string. Pass [text] for a single text.")
        if not isinstance(sentences, Iterable):
            raise InputError(f"embed: expected a list of sentences, got {sentences!r}.")
        run = Embedding(
            self.bilm,
            self.mixes[0],
            self.words,
            layers=layers,
            batch_tokens=batch_tokens,
            precision=precision,
            state=state,
            lang=lang,
        )

        def results() -> Iterator[Vectors]:
            with _counting(progress, sentences) as count:
                for vectors in run(sentences):
                    yield vectors
                    count(1)

        return results()  # a wrong setting is an error at the call, not at the first sentence

    def _cache_rows(self, size: int | str) -> int:
        """The capacity of the cache in tokens, from a number of tokens or a size such as "64MB"."""
        if isinstance(size, int) and size >= 0:
            return size
        number, unit = str(size)[:-2], str(size)[-2:].upper()
        if unit not in _UNITS or not number.strip().isdecimal():
            raise ConfigError(f"cache: expected a number of tokens, or a size such as '64MB'; got {size!r}.")
        return int(number) * _UNITS[unit] // (4 * self.bilm.config.projection_dim)


@contextlib.contextmanager
def _counting(show: bool | Callable[[int], object], sentences: Iterable[Sentence]) -> Iterator[Callable[[int], object]]:
    """A function to call with the number of finished sentences: the caller's, a progress bar's, or none."""
    if callable(show):
        yield show
    elif show:
        with show_progress("embed", len(sentences) if isinstance(sentences, Sized) else None) as advance:
            yield advance
    else:
        yield lambda n: None
