"""Sentence vectors: the token vectors of a text pooled into one, with the method names of sentence-transformers.

v = pool(h_1 … h_n)        after `fit`: v' = (v − μ) − Σ_j u_j u_jᵀ (v − μ)
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.bilm.fast.products import Precision
from torchelmo.bilm.model import BiLM
from torchelmo.config import Config, Range, build_config, config_to_dict
from torchelmo.elmo import Elmo
from torchelmo.embedder import EmbedSettings, Sentence, Vectors, check_sentences
from torchelmo.errors import ConfigError, InputError, OutputExistsError, WeightsError, short_repr
from torchelmo.files import atomic_write, read_json
from torchelmo.formats.load import load
from torchelmo.runtime import choose_device
from torchelmo.tensors import read_tensors, save_tensors

Pooling = Literal["mean", "max", "mean_sqrt_len_tokens", "lasttoken", "ends"]

FORMAT = 1
_CONFIG_FILE, _TENSOR_FILE = "sentences.json", "sentences.safetensors"
_MAX_CONFIG_BYTES = 2**16
_TOKENS_PER_TEXT = 64  # so that the default batch_size of 32 is the default batch of 2048 tokens
_LAYERS = ("top", "average", "sum", "concat")


@dataclass(frozen=True)
class SentenceConfig(Config):
    """The settings of a `SentenceEncoder`, which describes them."""

    layers: int | str = "average"
    pooling: Pooling = "mean"
    normalize: bool = False
    lang: str | None = None
    precision: Precision = "float32"


@dataclass(frozen=True)
class _Saved(Config):
    """The content of sentences.json."""

    format: int
    encoder: SentenceConfig
    fingerprint: str  # of the biLM for which the mean and the components were computed
    n_components: Annotated[int, Range(min=0, max=2**20)] | None = None  # None if `fit` was not called
    digest: str | None = None  # the SHA-256 of the numbers in sentences.safetensors


class SentenceEncoder:
    """Turn texts into one vector each, and compare them.

    The methods are those of a `SentenceTransformer`. The vector of a text does not depend on the other texts.

    Args:
        model: What `torchelmo.load` takes: a model folder, or the name of a model in the package; or a biLM or an
            `Elmo`. Default: the English model in the package.
        layers: "average", "top", "sum" or "concat" of all layers, or the index of a layer, 0 being the token layer.
        pooling: How to make one vector of the vectors of the tokens: "mean"; "max" of every number;
            "mean_sqrt_len_tokens", the sum divided by the square root of the number of tokens; "lasttoken"; or "ends",
            the forward half of the last token and the backward half of the first, which have read a whole sentence.
        normalize: Scale every vector to length 1.
        lang: The language of strings, as a code of spaCy, such as "de". Default: the language of the model's training
            text if it is known, else "en".
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "mps".
        precision: "float16" stores large weights in float16: faster for large models, if the machine has kernels for
            it.

    Raises:
        ConfigError: An argument has a wrong value.
        MissingFileError: There is no such model.

    Example:
        >>> from torchelmo import SentenceEncoder
        >>> encoder = SentenceEncoder()
        >>> vectors = encoder.encode(["The cat sat down.", "A cat was sitting.", "Prices rose."])
        >>> vectors.shape
        (3, 384)
        >>> cosines = encoder.similarity(vectors[0], vectors)
        >>> cosines.shape, bool(cosines[0, 1] > cosines[0, 2])
        (torch.Size([1, 3]), True)
    """

    similarity_fn_name = "cosine"

    def __init__(
        self,
        model: Elmo | BiLM | str | Path | None = None,
        *,
        layers: int | str = "average",
        pooling: Pooling = "mean",
        normalize: bool = False,
        lang: str | None = None,
        device: str = "auto",
        precision: Precision = "float32",
    ) -> None:
        given = {"layers": layers, "pooling": pooling, "normalize": normalize, "lang": lang, "precision": precision}
        config = build_config(SentenceConfig, given, where="SentenceEncoder")
        self._set_up(model if isinstance(model, Elmo) else Elmo(model), config, device)

    def _set_up(self, elmo: Elmo, config: SentenceConfig, device: str) -> None:
        check_layers(config.layers, elmo.bilm.config.n_layers + 1)
        self.config = config
        self.elmo = elmo.to(choose_device(device))
        self.mean: npt.NDArray[np.float32] | None = None  # (dim,), set by `fit`
        self.components: npt.NDArray[np.float32] | None = None  # (n_components, dim), orthonormal

    def __repr__(self) -> str:
        fitted = "" if self.components is None else f", without the mean and {len(self.components)} components"
        return f"SentenceEncoder({self.elmo.bilm.source}, {self.config}{fitted})"

    def get_embedding_dimension(self) -> int:
        """Return the width of the vectors."""
        config = self.elmo.bilm.config
        return config.dim * (config.n_layers + 1 if self.config.layers == "concat" else 1)

    def encode(
        self,
        inputs: str | Iterable[Sentence],
        *,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: Literal["sentence_embedding", "token_embeddings"] = "sentence_embedding",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool | None = None,
    ) -> Any:
        """Return the vector of every text.

        Args:
            inputs: A string; or a list of strings, or of token lists. Strings are split into sentences and tokens by
                spaCy's rules, token lists are used unchanged. The length of a text is not limited.
            batch_size: The size of a batch, in texts of 64 tokens: at most 64 · `batch_size` tokens run at once. The
                vectors do not depend on it.
            show_progress_bar: Show a progress bar.
            output_value: "token_embeddings" returns the vectors of the tokens, without pooling, scaling or the change
                that `fit` makes.
            convert_to_numpy: Return a NumPy array. Otherwise the result is a list of tensors.
            convert_to_tensor: Return a tensor, whatever `convert_to_numpy` is.
            device: Move the model to this device first.
            normalize_embeddings: Scale every vector to length 1, or do not; default: `normalize` of the encoder.

        Returns:
            An array or tensor (n_texts, dim), or (dim,) for one string. The vector of a text without tokens is 0. For
            "token_embeddings" a list of arrays or tensors (n_tokens, dim), or one of them for one string.

        Raises:
            ConfigError: An argument has a wrong value.
            InputError: An input is neither a string nor a list of strings.
        """
        if output_value not in ("sentence_embedding", "token_embeddings"):
            raise ConfigError(
                f"output_value: expected 'sentence_embedding' or 'token_embeddings', got {short_repr(output_value)}."
            )
        if device is not None:
            self.elmo.to(choose_device(device))
        texts = [inputs] if isinstance(inputs, str) else inputs
        check_sentences(texts, "encode")
        stream = self._token_vectors(texts, batch_size, progress=bool(show_progress_bar))
        if output_value == "token_embeddings":
            found: list[Any] = list(stream)
            if convert_to_tensor or not convert_to_numpy:
                found = [torch.from_numpy(vectors) for vectors in found]
            return found[0] if isinstance(inputs, str) else found
        vectors = self._pool_all(
            stream, self.config.normalize if normalize_embeddings is None else normalize_embeddings
        )
        result = vectors[0] if isinstance(inputs, str) else vectors
        if convert_to_tensor:
            return torch.from_numpy(result)
        if convert_to_numpy:
            return result
        return torch.from_numpy(result) if isinstance(inputs, str) else list(torch.from_numpy(result))

    encode_query = encode_document = encode

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the cosines of all pairs of vectors.

        Args:
            embeddings1: An array or tensor (n, dim), or one vector (dim,).
            embeddings2: An array or tensor (m, dim), or one vector (dim,).

        Returns:
            A tensor (n, m). The cosine with a zero vector is 0.

        Raises:
            InputError: The arguments are not vectors of the same width.
        """
        first, second = _unit_vectors(embeddings1, embeddings2)
        return first @ second.T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the cosine of each vector with the one at the same place in the other list.

        Args:
            embeddings1: An array or tensor (n, dim), or one vector (dim,).
            embeddings2: An array or tensor of the same shape.

        Returns:
            A tensor (n,).

        Raises:
            InputError: The arguments are not equally many vectors of the same width.
        """
        first, second = _unit_vectors(embeddings1, embeddings2)
        if len(first) != len(second):
            raise InputError(f"similarity_pairwise: expected equally many vectors, got {len(first)} and {len(second)}.")
        return (first * second).sum(dim=-1)

    def fit(
        self,
        texts: Iterable[Sentence],
        *,
        remove_components: int = 1,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
    ) -> "SentenceEncoder":
        """Learn what the vectors of all texts have in common, which `encode` then removes.

        The raw vectors of any two texts have a high cosine, because they share a large mean and vary most in a few
        directions. Removing the mean and the first principal components leaves what distinguishes the texts. The memory
        does not depend on the number of texts. A second call replaces the result of the first.

        Args:
            texts: Texts like those that will be compared, as many as possible: strings or token lists.
            remove_components: How many principal components to remove; 0 removes the mean alone.
            batch_size: As for `encode`.
            show_progress_bar: Show a progress bar.

        Returns:
            The encoder itself.

        Raises:
            ConfigError: `remove_components` is not between 0 and the width of the vectors.
            InputError: There are fewer than two texts with tokens, or fewer texts than components.
        """
        dim = self.get_embedding_dimension()
        if isinstance(remove_components, bool) or not isinstance(remove_components, (int, np.integer)):
            raise ConfigError(f"remove_components: expected a whole number, got {short_repr(remove_components)}.")
        if not 0 <= remove_components < dim:
            raise ConfigError(f"remove_components: expected 0 to {dim - 1}, got {remove_components}.")
        check_sentences(texts, "fit")
        stream = self._token_vectors(texts, batch_size, progress=bool(show_progress_bar))
        pooled = (self._pool(vectors) for vectors in stream if len(vectors))
        self.mean, self.components = find_common(pooled, dim, int(remove_components))
        return self

    def save(self, folder: str | Path) -> None:
        """Write the encoder and its biLM to a new folder: all files or none.

        `SentenceEncoder.load` reads the folder; `torchelmo.load` reads the biLM in it.

        Args:
            folder: The folder, which must not exist, or must be empty.

        Raises:
            OutputExistsError: The folder contains files.
            OutputError: The folder cannot be written.
        """
        folder = Path(folder)
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise OutputExistsError(f"{folder}: expected a new or an empty folder, found files. Choose another name.")
        n_components = None if self.components is None else len(self.components)
        saved = _Saved(FORMAT, self.config, self.elmo.bilm.fingerprint(), n_components, self._digest())
        with atomic_write(folder) as temporary:
            self.elmo.bilm.save(temporary)
            content = json.dumps(config_to_dict(saved), indent=2) + "\n"
            (temporary / _CONFIG_FILE).write_text(content, encoding="utf-8")
            if self.mean is not None and self.components is not None:
                tensors = {"mean": torch.from_numpy(self.mean), "components": torch.from_numpy(self.components)}
                save_tensors(temporary / _TENSOR_FILE, tensors)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto") -> "SentenceEncoder":
        """Load an encoder that `save` wrote.

        Args:
            folder: The folder.
            device: As for a new encoder.

        Returns:
            The encoder.

        Raises:
            ConfigError: A setting has a wrong value.
            MissingFileError: A file is missing.
            WeightsError: A file is damaged, or the biLM in the folder was replaced by another one.
        """
        path = Path(folder) / _CONFIG_FILE
        content = read_json(path, "the settings of a sentence encoder", max_bytes=_MAX_CONFIG_BYTES)
        saved = build_config(_Saved, content, where=str(path))
        if saved.format != FORMAT:
            raise ConfigError(f"{path}: expected format {FORMAT}, found {saved.format}. Update torchelmo to read it.")
        bilm = load(Path(folder).absolute())  # a path with a slash: never the name of a model in the package
        if bilm.fingerprint() != saved.fingerprint:
            raise WeightsError(
                f"{folder}: expected the biLM that the encoder was saved with, found another one. Save the encoder "
                "again, in a new folder."
            )
        encoder = cls.__new__(cls)
        try:
            encoder._set_up(Elmo(bilm), saved.encoder, device)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        if saved.n_components is not None:
            dim = encoder.get_embedding_dimension()
            tensors = read_tensors(
                Path(folder) / _TENSOR_FILE,
                {"mean": (dim,), "components": (saved.n_components, dim)},
                what="what a sentence encoder removes",
            )
            encoder.mean, encoder.components = tensors["mean"].numpy(), tensors["components"].numpy()
        if encoder._digest() != saved.digest:
            raise WeightsError(
                f"{folder}: expected the numbers in {_TENSOR_FILE} that {_CONFIG_FILE} describes, found others. "
                "Copy both files again."
            )
        return encoder

    def _digest(self) -> str | None:
        if self.mean is None or self.components is None:
            return None
        return hashlib.sha256(self.mean.tobytes() + self.components.tobytes()).hexdigest()

    def _pool_all(self, token_vectors: Iterable[Vectors], normalize: bool) -> Vectors:
        """Pool and finish the vectors of every text: (n_tokens, dim) each -> (n_texts, dim)."""
        pooled = [self._pool(vectors) for vectors in token_vectors]
        result: Vectors = np.stack(pooled) if pooled else np.zeros((0, self.get_embedding_dimension()), np.float32)
        if self.mean is not None and self.components is not None:
            result = remove_common(result, self.mean, self.components)
        if normalize:
            lengths = np.linalg.norm(result, axis=1, keepdims=True)
            result /= np.where(lengths == 0, 1, lengths)
        return result

    def _pool(self, vectors: Vectors) -> Vectors:
        config = self.elmo.bilm.config
        n_layers = config.n_layers + 1 if self.config.layers == "concat" else 1
        return pool_tokens(vectors, self.config.pooling, n_layers, config.directions)

    def _token_vectors(
        self, texts: Iterable[Sentence], batch_size: int, *, progress: bool | Callable[[int], object]
    ) -> Iterator[Vectors]:
        if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
            raise ConfigError(f"batch_size: expected a whole number of at least 1, got {short_repr(batch_size)}.")
        return self.elmo.stream(
            texts,
            layers=self.config.layers,  # type: ignore[arg-type]  # checked when the encoder was built
            batch_tokens=_TOKENS_PER_TEXT * int(batch_size),
            precision=self.config.precision,
            lang=self.config.lang,
            progress=progress,
        )


def check_layers(layers: int | str, n_layers: int) -> None:
    """Raise a ConfigError if `layers` does not give one vector per token in a model with this many layers."""
    if isinstance(layers, str) and layers not in _LAYERS:
        names = ", ".join(map(repr, _LAYERS))
        raise ConfigError(f"layers: expected {names} or the index of a layer, got {short_repr(layers)}.")
    EmbedSettings(layers).check_layers(n_layers)  # type: ignore[arg-type]


def pool_tokens(vectors: Vectors, pooling: Pooling, n_layers: int, directions: Sequence[str]) -> Vectors:
    """Pool the vectors of the tokens of a text: (n_tokens, dim) -> (dim,); 0 without tokens.

    Args:
        vectors: The vectors of the tokens.
        pooling: What `SentenceEncoder` takes.
        n_layers: The number of layers that are concatenated in a vector.
        directions: The directions that are concatenated in each layer, "forward" first.

    >>> pool_tokens(np.array([[1, 2], [3, 4]], dtype=np.float32), "ends", 1, ("forward", "backward")).tolist()
    [3.0, 2.0]
    """
    if not len(vectors):
        return np.zeros(vectors.shape[-1], dtype=np.float32)
    result: Vectors
    if pooling == "mean":
        result = vectors.mean(axis=0)
    elif pooling == "max":
        result = vectors.max(axis=0)
    elif pooling == "mean_sqrt_len_tokens":
        result = vectors.sum(axis=0) / np.float32(math.sqrt(len(vectors)))
    elif pooling == "lasttoken":
        result = vectors[-1].copy()  # a view would keep all tokens in memory
    else:
        halves = vectors[[0, -1]].reshape(2, n_layers, len(directions), -1)
        ends = [halves[1 if direction == "forward" else 0, :, i] for i, direction in enumerate(directions)]
        result = np.stack(ends, axis=1).reshape(-1)
    return result


def find_common(vectors: Iterable[Vectors], dim: int, n_components: int) -> tuple[Vectors, Vectors]:
    """Return the mean (dim,) and the first principal components (n_components, dim) of vectors (dim,).

    Raises:
        InputError: There are too few vectors.
    """
    n, total, products = 0, np.zeros(dim), np.zeros((dim, dim))
    for vector in vectors:
        exact = vector.astype(np.float64)
        n += 1
        total += exact
        products += np.outer(exact, exact)
    if n < max(2, n_components + 1):
        raise InputError(
            f"fit: expected at least {max(2, n_components + 1)} texts with tokens to find the mean and "
            f"{n_components} components, got {n}."
        )
    mean = total / n
    _, directions = np.linalg.eigh(products / n - np.outer(mean, mean))  # in ascending order of variance
    components = np.ascontiguousarray(directions[:, ::-1][:, :n_components].T, dtype=np.float32)
    return mean.astype(np.float32), components


def remove_common(vectors: Vectors, mean: Vectors, components: Vectors) -> Vectors:
    """Remove a mean and components from vectors (n, dim). Zero vectors, of texts without tokens, stay zero."""
    result: Vectors = vectors - mean
    result -= (result @ components.T) @ components
    result[~vectors.any(axis=1)] = 0.0
    return result


def _unit_vectors(first: Any, second: Any) -> tuple[Tensor, Tensor]:
    """Return two lists of vectors as float tensors (n, dim) of unit vectors on the CPU; zero vectors stay zero."""
    tensors = []
    for vectors in (first, second):
        try:
            tensor = torch.as_tensor(vectors if isinstance(vectors, Tensor) else np.asarray(vectors)).float().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"similarity: expected arrays of vectors, got {short_repr(vectors)}.") from error
        tensors.append(tensor.unsqueeze(0) if tensor.dim() == 1 else tensor)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if any(len(shape) != 2 for shape in shapes) or shapes[0][1] != shapes[1][1]:
        raise InputError(f"similarity: expected arrays (n, dim) of the same width, got {shapes[0]} and {shapes[1]}.")
    return tuple(torch.nn.functional.normalize(tensor, dim=-1) for tensor in tensors)  # type: ignore[return-value]
