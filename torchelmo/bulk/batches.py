"""Embed batches of rows, for engines that move the data themselves: `BatchEmbedder`."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchelmo.bulk.compute import open_model, shape_function
from torchelmo.bulk.outputs import Array
from torchelmo.errors import InputError, short_repr

if TYPE_CHECKING:
    from torchelmo.elmo import Elmo


class BatchEmbedder:
    """Embed one column of a batch of rows. The model is loaded at the first call, once in each process.

    Use it in `Dataset.map` of Hugging Face datasets, `Dataset.map_batches` of Ray, or a function for the partitions of
    Spark and Dask. A pickled copy holds the name of the model, not its weights.

    Args:
        model: Anything that `torchelmo.load` accepts, or an `Elmo`. Default: the model in the package.
        column: The column with the texts, or with lists of tokens.
        layers: As in `Elmo.embed`, except "mix".
        pool: "mean" or "max" over the tokens of each row; None for a vector of each token.
        precision: The type of the weights in the computation.
        batch_tokens: The number of tokens that run at once.
        lang: The language of the texts. Default: that of the model, or else English.
        device: "auto", "cpu", "cuda", "cuda:1" and so on. Ignored if `model` is an `Elmo`.
        threads: The CPU threads of PyTorch in this process. Default: as they are.

    Example:
        >>> from torchelmo.bulk import BatchEmbedder
        >>> embed = BatchEmbedder(layers="top", pool="mean")
        >>> embed({"text": ["I took a bow.", "Bow and arrow"]})["vector"].shape
        (2, 384)
    """

    def __init__(
        self,
        model: "str | Path | Elmo | None" = None,
        *,
        column: str = "text",
        layers: str | int = "average",
        pool: Literal["mean", "max"] | None = "mean",
        precision: Literal["float32", "float16", "int8"] = "float32",
        batch_tokens: int = 2048,
        lang: str | None = None,
        device: str = "auto",
        threads: int | None = None,
    ) -> None:
        self.model, self.column, self.threads, self.device = model, column, threads, device
        self.layers = int(layers) if str(layers).isdecimal() else layers
        self.settings: dict[str, Any] = {
            "pool": pool,
            "precision": precision,
            "batch_tokens": batch_tokens,
            "lang": lang,
        }
        self._elmo: Elmo | None = None

    @property
    def elmo(self) -> "Elmo":
        """The model, which is loaded now if it was not."""
        if self._elmo is None:
            if self.threads is not None:
                import torch

                torch.set_num_threads(self.threads)
            self._elmo = open_model(self.model, self.device)[0]
        return self._elmo

    @property
    def dim(self) -> int:
        """The width of a vector."""
        n_layers, dim = self.elmo.bilm.config.n_layers + 1, self.elmo.bilm.config.dim
        return n_layers * dim if self.layers == "concat" else dim

    @property
    def names(self) -> list[str]:
        """The names of the new columns: vector or vectors, or layer_0, layer_1, … for all layers."""
        if self.layers == "all":
            return [f"layer_{layer}" for layer in range(self.elmo.bilm.config.n_layers + 1)]
        return ["vector" if self.settings["pool"] else "vectors"]

    def fingerprint(self, data: str = "") -> str:
        """Return a hash of the model and the settings, and of a fingerprint of the data if it is given.

        It is the same in every process and on every machine, and changes when the vectors would.
        """
        key = [data, self.elmo.bilm.fingerprint(), self.column, str(self.layers), self.settings]
        return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]

    def __call__(self, batch: Any) -> Any:
        """Return the new columns of a dict of columns, or a pyarrow Table with the new columns."""
        if isinstance(batch, Mapping):
            return dict(zip(self.names, self._columns(batch[self.column])))
        from torchelmo.bulk.parquet import vector_columns, vector_fields

        texts = batch.column(self.column).to_pylist()
        shape = shape_function(self.elmo, str(self.layers), self.settings["pool"])
        fields = vector_fields(shape, np.dtype(np.float32))
        for (name, kind), column in zip(fields, vector_columns(self._embed(texts), shape, np.dtype(np.float32))):
            batch = batch.append_column(name, column.cast(kind))
        return batch

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"column": self.column, "layers": self.layers, "device": self.device, "threads": self.threads}
        return _rebuild, (self.model, {**options, **self.settings})

    def _embed(self, texts: Sequence[Any]) -> list[Array]:
        for number, text in enumerate(texts):
            if not isinstance(text, (str, list, tuple, np.ndarray)):
                raise InputError(
                    f"Column {self.column!r}, row {number} of the batch: expected a string or a list of tokens, found "
                    f"{short_repr(text)}. Replace missing values by empty strings."
                )
        texts = [text if isinstance(text, str) else list(text) for text in texts]
        return list(self.elmo.embed(texts, self.layers, **self.settings))  # type: ignore[arg-type]

    def _columns(self, texts: Sequence[Any]) -> list[Any]:
        arrays = self._embed(texts)
        columns: list[list[Array]] = [arrays]
        if self.layers == "all":
            columns = [[array[layer] for array in arrays] for layer in range(len(self.names))]
        return [np.stack(column) if self.settings["pool"] and len(column) else column for column in columns]


def _rebuild(model: Any, options: dict[str, Any]) -> BatchEmbedder:
    return BatchEmbedder(model, **options)
