"""④ The biLM and its mixes as one module: text or ids in, deep contextual vectors out."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor, nn

from torchelmo.bilm.fast.encoder import TokenVectorCache
from torchelmo.bilm.fast.products import Kernels, Precision
from torchelmo.bilm.model import BiLM
from torchelmo.config import config_to_dict
from torchelmo.embedder import (
    Embedder,
    EmbedSettings,
    Layers,
    Sentence,
    Vectors,
    check_sentences,
    settings_as_arguments,
    split_text,
)
from torchelmo.errors import ConfigError, InputError, short_repr
from torchelmo.formats.load import load
from torchelmo.mix import ScalarMix
from torchelmo.text.characters import check_tokens
from torchelmo.text.tokenize import Token, align, find_tokens, place_tokens

_UNITS = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


class ElmoOutput(NamedTuple):
    """What `Elmo` returns."""

    mixes: list[Tensor]  # n_mixes tensors (..., tokens, dim), 0 at padded positions
    mask: Tensor  # (..., tokens), true at real tokens


class Embedded(NamedTuple):
    """What `Elmo.embed` returns with `return_tokens=True`."""

    vectors: list[Vectors]  # one array for each sentence
    tokens: list[list[Token]]  # the tokens of each sentence, with their character offsets


class Elmo(nn.Module):
    """Deep contextual word vectors from a biLM, for use in a PyTorch model or as NumPy arrays.

    A new module is in training mode, in which `forward` applies dropout. Call `eval()` before inference, or use
    `embed`, which never applies dropout.

    Args:
        bilm: A biLM, or what `torchelmo.load` takes: a model folder, or the name of a model in the package. Default:
            the English model in the package.
        n_mixes: The number of mixes that `forward` returns, each with its own weights.
        dropout: The dropout of the mixes in training mode.
        layer_norm: Normalize each layer before mixing.
        freeze: Train only the mixes, not the biLM.
        keep_boundaries: Keep `<S>` and `</S>` in the output of `forward`.
        mixes: Mixes to use instead of `n_mixes` new ones; "published" for those that came with the model, as in
            AllenNLP archives and TF-Hub modules.
        cache: How many token vectors `embed` keeps between calls: a number of tokens, or a size such as "64MB". 0 keeps
            none.

    Raises:
        ConfigError: An argument has a wrong value.
        MissingFileError: There is no such model.

    Example:
        >>> from torchelmo import Elmo
        >>> elmo = Elmo("english-small", n_mixes=2).eval()
        >>> ids = elmo.encode([["I", "took", "a", "bow"], ["bow", "and", "arrow"]])
        >>> mixes, mask = elmo(ids)
        >>> mixes[0].shape, mask.sum().item()
        (torch.Size([2, 4, 384]), 7)
        >>> [vectors.shape for vectors in elmo.embed(["I took a bow.", "Bow and arrow"], layers="top")]
        [(5, 384), (3, 384)]
    """

    def __init__(
        self,
        bilm: BiLM | str | Path | None = None,
        *,
        n_mixes: int = 1,
        dropout: float = 0.5,
        layer_norm: bool = False,
        freeze: bool = True,
        keep_boundaries: bool = False,
        mixes: Sequence[ScalarMix] | Literal["published"] | None = None,
        cache: int | str = 50_000,
    ) -> None:
        super().__init__()
        self.bilm = bilm if isinstance(bilm, BiLM) else load(bilm)
        self.freeze, self.keep_boundaries = freeze, keep_boundaries
        self.bilm.requires_grad_(not freeze)
        n_layers = self.bilm.config.n_layers + 1
        if n_mixes < 1:
            raise ConfigError(f"n_mixes: expected at least 1, got {n_mixes}.")
        if mixes == "published":
            mixes = [ScalarMix(n_layers, **config_to_dict(mix)) for mix in self.bilm.mixes]
            if not mixes:
                raise ConfigError(f"mixes: {self.bilm.source} came without mixes. Leave out mixes, for new ones.")
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
        self.token_cache = TokenVectorCache(self._cache_capacity(cache))

    @property
    def dim(self) -> int:
        """The width of every vector: one projection for each direction."""
        return self.bilm.config.dim

    def encode(self, sentences: Iterable[Sequence[str]]) -> Tensor:
        """Return the ids of tokenized sentences, for `forward`.

        Args:
            sentences: Lists of tokens.

        Returns:
            Character ids (n_sentences, longest, max_characters), 0 at padded positions; word ids (n_sentences, longest)
            for a model that reads whole words.

        Raises:
            InputError: A sentence is not a list of strings.
        """
        if not isinstance(sentences, Iterable):
            raise InputError(f"encode: expected a list of sentences, got {short_repr(sentences)}.")
        sentences = list(sentences)
        for i, sentence in enumerate(sentences):
            check_tokens(sentence, i)
        return self.bilm.token_ids(sentences)

    def forward(self, ids: Tensor) -> ElmoOutput:
        """Run the biLM once and mix its layers.

        Args:
            ids: Ids (..., tokens, max_characters) from `encode`, with any number of leading dimensions.

        Returns:
            `n_mixes` mixes (..., tokens, dim), 0 at padded positions, and the mask (..., tokens).

        Raises:
            InputError: The ids do not fit the model.
        """
        if not isinstance(ids, Tensor):
            raise InputError(f"Elmo: expected a tensor of ids, got {type(ids).__name__}. Use Elmo.encode to make it.")
        n_token_dims = 1 + len(self.bilm.config.id_shape)
        leading = ids.shape[:-n_token_dims]
        flat = ids.reshape(math.prod(leading), *ids.shape[-n_token_dims:])
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze):
            out = self.bilm(flat)
        mixes, mask = self.mix_layers(out.layers, out.mask, remove_boundaries=not self.keep_boundaries)
        mixes = [mixed.reshape(*leading, *mixed.shape[1:]) for mixed in mixes]
        return ElmoOutput(mixes, mask.reshape(*leading, mask.shape[-1]))

    def mix_layers(self, layers: Tensor, mask: Tensor, *, remove_boundaries: bool = False) -> ElmoOutput:
        """Mix the layers of a biLM run, set padded positions to 0, and apply dropout in training mode.

        Args:
            layers: (n_layers + 1, batch, tokens, dim).
            mask: (batch, tokens), true at real tokens and sentence boundaries.
            remove_boundaries: Remove `<S>` and `</S>` after mixing.

        Returns:
            The mixes and their mask.
        """
        kept = mask[:, 2:] if remove_boundaries else mask  # a row of n tokens has n + 2 with its boundaries
        mixes = []
        for mix in self.mixes:
            mixed = mix(layers, mask)
            if remove_boundaries:
                mixed = mixed[:, 1:-1]  # the mask removes the </S> of shorter rows
            mixes.append(self.dropout(mixed.masked_fill(~kept.unsqueeze(-1), 0.0)))
        return ElmoOutput(mixes, kept)

    def penalty(self) -> Tensor:
        """Return Σ‖w‖² over the mixes; add λ times this to the loss of the task."""
        return torch.stack([mix.penalty() for mix in self.mixes]).sum()

    @overload
    def embed(
        self,
        sentences: Iterable[Sentence],
        layers: Layers = "all",
        *,
        batch_tokens: int = 2048,
        precision: Precision = "float32",
        kernels: Kernels = "measured",
        state: Literal["reset", "carry"] = "reset",
        lang: str | None = None,
        pool: Literal["mean", "max"] | None = None,
        progress: bool | Callable[[int], object] = False,
        return_tokens: Literal[False] = False,
    ) -> list[Vectors]: ...

    @overload
    def embed(
        self,
        sentences: Iterable[Sentence],
        layers: Layers = "all",
        *,
        batch_tokens: int = 2048,
        precision: Precision = "float32",
        kernels: Kernels = "measured",
        state: Literal["reset", "carry"] = "reset",
        lang: str | None = None,
        pool: Literal["mean", "max"] | None = None,
        progress: bool | Callable[[int], object] = False,
        return_tokens: Literal[True],
    ) -> Embedded: ...

    def embed(
        self,
        sentences: Iterable[Sentence],
        layers: Layers = "all",
        *,
        batch_tokens: int = 2048,
        precision: Precision = "float32",
        kernels: Kernels = "measured",
        state: Literal["reset", "carry"] = "reset",
        lang: str | None = None,
        pool: Literal["mean", "max"] | None = None,
        progress: bool | Callable[[int], object] = False,
        return_tokens: bool = False,
    ) -> list[Vectors] | Embedded:
        """Return one NumPy array of vectors for each sentence.

        A sentence's vectors depend on that sentence alone: batches, their order and earlier calls change nothing,
        unless `state="carry"`. Dropout is never applied.

        Args:
            sentences: Token lists or strings. A string is split into sentences and tokens by spaCy's rules; its
                sentences run separately and give one array of all its tokens.
            layers: "all"; "top"; "average", "sum" or "concat" of all layers; "mix", the first learned mix, which before
                training is the average; or the index of a layer, 0 being the token layer.
            batch_tokens: How many tokens run at once. Fewer need less memory.
            precision: "float16" stores large weights in float16: faster for large models, if the machine has kernels
                for it. "int8" stores the weights of the LSTMs in int8: the fastest for large models, on CPUs with VNNI
                instructions; vectors then have a cosine of about 0.9997 to those in float32. Where kernels are missing,
                float32 is used, and a log line says so.
            kernels: "measured" runs the kernels that are the fastest on this machine, measured at the first call for a
                shape. Kernels differ in the last digits of their results; "fixed" always uses the same ones. The
                environment variable TORCHELMO_KERNELS=fixed overrides "measured".
            state: "carry" starts each sentence from the state at the end of the previous one.
            lang: The language of strings, as a code of spaCy, such as "de". Default: the language of the model's
                training text if it is known, else "en".
            pool: "mean" or "max" over the tokens of each sentence. A sentence without tokens gives zeros.
            progress: True shows a progress bar; a function is called with the number of sentences just finished.
            return_tokens: Also return the tokens of each sentence, as `tokenize` does.

        Returns:
            For each sentence an array (n_layers + 1, n_tokens, dim) for "all", (n_tokens, (n_layers + 1) · dim) for
            "concat", else (n_tokens, dim); without the axis of tokens if they are pooled. With `return_tokens`, the
            list of these arrays and the list of the sentences' tokens.

        Raises:
            ConfigError: A setting has a wrong value.
            InputError: A sentence is neither a string nor a list of strings.
        """
        check_sentences(sentences, "embed")
        settings = EmbedSettings(
            layers,
            batch_tokens=batch_tokens,
            precision=precision,
            kernels=kernels,
            state=state,
            lang=lang,
            pool=pool,
            progress=progress,
        )
        embedder = Embedder(self.bilm, self.mixes[0], self.token_cache, settings)
        if not return_tokens:
            return list(embedder(sentences))
        sentences = list(sentences)
        vectors = list(embedder(sentences))
        return Embedded(vectors, [self.tokenize(sentence, lang=lang) for sentence in sentences])

    def tokenize(self, text: Sentence, *, lang: str | None = None) -> list[Token]:
        """Return the tokens of a text with their character offsets: one for each row of its vectors.

        Args:
            text: A string; or a list of tokens, whose offsets are then those in the tokens joined by spaces.
            lang: The language of a string, as in `embed`.

        Returns:
            The tokens of all sentences: `text[token.start : token.end]` is `token.text`.

        Raises:
            InputError: `text` is neither a string nor a list of strings.

        Example:
            >>> [tuple(token) for token in Elmo().tokenize("It's mine.")]
            [('It', 0, 2), ("'s", 2, 4), ('mine', 5, 9), ('.', 9, 10)]
        """
        if not isinstance(text, str):
            check_tokens(text, 0, expected="a string or a list of tokens")
            return place_tokens(text)
        sentences = split_text(text, 0, lang or self.bilm.lang or "en")
        return [token for sentence in align(sentences, text) for token in sentence]

    def vectors_at(
        self, text: Sentence, start: int, end: int, layers: Layers = "all", *, lang: str | None = None
    ) -> Vectors:
        """Return the vector of the characters from `start` to `end` of a text, in the context of its sentence.

        Args:
            text: A string or a list of tokens, as in `tokenize`.
            start: The position of the first character.
            end: The position after the last character.
            layers: As in `embed`.
            lang: As in `embed`.

        Returns:
            (n_layers + 1, dim) for `layers="all"`, else (dim,): the vector of the token there. If the characters belong
            to several tokens, the mean of their vectors. A part of a token gives the vector of the whole token.

        Raises:
            InputError: There is no token at these characters.

        Example:
            >>> text = "The archer bent her bow."
            >>> Elmo().vectors_at(text, 20, 23, layers="top").shape
            (384,)
        """
        tokens = self.tokenize(text, lang=lang)
        found = find_tokens(tokens, start, end)
        if not found:
            length = len(text) if isinstance(text, str) else tokens[-1].end if tokens else 0
            raise InputError(
                f"vectors_at: expected characters of a token, found none from {start} to {end} of a text of {length} "
                "characters."
            )
        vectors = self.embed([text], layers, lang=lang)[0][..., found, :]
        mean: Vectors = vectors.mean(axis=-2)
        return mean

    @settings_as_arguments(EmbedSettings)
    def stream(self, sentences: Iterable[Sentence], _settings: EmbedSettings) -> Iterator[Vectors]:
        """Yield what `embed` returns, in bounded memory, for inputs of any length.

        The arguments and errors are those of `embed`, without `return_tokens`. Wrong settings are an error at the call,
        not at the first sentence.
        """
        check_sentences(sentences, "stream")
        return Embedder(self.bilm, self.mixes[0], self.token_cache, _settings)(sentences)

    def embedder(self, settings: EmbedSettings) -> Embedder:
        """Return an embedder with a cache of its own, so that earlier calls do not change the last digits."""
        return Embedder(self.bilm, self.mixes[0], TokenVectorCache(self.token_cache.capacity), settings)

    def _cache_capacity(self, size: int | str) -> int:
        """Return the number of tokens for a number of tokens or a size such as "64MB"."""
        if isinstance(size, int) and size >= 0:
            return size
        number, unit = str(size)[:-2], str(size)[-2:].upper()
        if unit not in _UNITS or not number.strip().isdecimal():
            raise ConfigError(f"cache: expected a number of tokens, or a size such as '64MB'; got {size!r}.")
        return int(number) * _UNITS[unit] // (4 * self.bilm.config.projection_dim)
