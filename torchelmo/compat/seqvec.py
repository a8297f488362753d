"""SeqVec, the ELMo for proteins, with the class of bio_embeddings."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torchelmo.elmo import Elmo
from torchelmo.errors import ConfigError, InputError, short_repr
from torchelmo.formats.load import load
from torchelmo.formats.official import load_official
from torchelmo.runtime import choose_device

Vectors = npt.NDArray[np.float32]
log = logging.getLogger(__name__)


class SeqVecEmbedder:
    """Embed proteins, one vector for each residue and layer.

    Every protein starts from zero state, so its vectors depend on nothing else. bio_embeddings runs some proteins
    first, to warm up the state that AllenNLP keeps.

    Args:
        warmup_rounds: Ignored.
        weights_file: The path of weights.hdf5.
        options_file: The path of options.json.
        model_directory: The folder with both, instead of their paths. The files may have bio_embeddings' names,
            `weights_file` and `options_file`. Anything else that `torchelmo.load` takes works, too.
        device: The device; default: a GPU if there is one.
        max_amino_acids: Ignored: see `embed_many`.

    Attributes:
        embedding_dimension: The width of a vector, 1024 for SeqVec.
        number_of_layers: The number of layers, 3 for SeqVec.

    Raises:
        ConfigError: There are neither both files nor a directory.
        MissingFileError: A file is missing.

    Example:
        >>> embedder = SeqVecEmbedder(model_directory="english-small")
        >>> embedding = embedder.embed("MALWMRLLPL")
        >>> embedding.shape, embedder.reduce_per_protein(embedding).shape
        ((3, 10, 384), (384,))
    """

    name = "seqvec"

    def __init__(
        self,
        warmup_rounds: int = 4,
        *,
        weights_file: str | Path | None = None,
        options_file: str | Path | None = None,
        model_directory: str | Path | None = None,
        device: Any = None,
        max_amino_acids: int | None = None,
    ) -> None:
        if model_directory is not None:
            folder = Path(model_directory)
            if (folder / "weights_file").is_file() and (folder / "options_file").is_file():
                weights_file, options_file = folder / "weights_file", folder / "options_file"
        if weights_file is not None and options_file is not None:
            bilm = load_official(options_file, weights_file)
        elif model_directory is not None:
            bilm = load(model_directory)
        else:
            raise ConfigError(
                "SeqVecEmbedder: expected weights_file and options_file, or model_directory. Nothing is downloaded: "
                "get the two files of SeqVec first."
            )
        self.elmo = Elmo(bilm.to(choose_device("auto" if device is None else str(device)))).eval()
        self.embedding_dimension, self.number_of_layers = bilm.config.dim, bilm.config.n_layers + 1
        self.warmup_rounds = warmup_rounds

    def embed(self, sequence: str) -> Vectors:
        """Return the vectors (number_of_layers, residues, embedding_dimension) of a protein."""
        return next(self.embed_batch([sequence]))

    def embed_batch(self, batch: Sequence[str]) -> Iterator[Vectors]:
        """Yield what `embed` returns for each protein."""
        return self.embed_many(batch)

    def embed_many(self, sequences: Iterable[str], batch_size: int | None = None) -> Iterator[Vectors]:
        """Yield what `embed` returns for any number of proteins, in bounded memory.

        Args:
            sequences: The proteins, as strings of residues.
            batch_size: The number of residues that run at once; default 2048. The vectors do not depend on it.

        Raises:
            InputError: A protein is not a string.
        """
        return self.elmo.stream(map(_residues, sequences), "all", batch_tokens=batch_size or 2048)

    @staticmethod
    def reduce_per_protein(embedding: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return one vector for a protein: the sum over the layers, then the mean over the residues."""
        reduced: npt.NDArray[Any] = np.asarray(embedding).sum(axis=0).mean(axis=0)
        return reduced


def _residues(sequence: str) -> list[str]:
    if not isinstance(sequence, str):
        raise InputError(f"SeqVecEmbedder: expected a protein as a string of residues, got {short_repr(sequence)}.")
    return list(sequence)
