"""What the analyses share: sentences beside their vectors, the layers that were asked for, and cosines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import tee
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from torchelmo.elmo import Elmo, Vectors
from torchelmo.errors import ConfigError

T = TypeVar("T")
Array: TypeAlias = npt.NDArray[np.floating[Any]]
Count: TypeAlias = Callable[[int], object]  # called with the number of sentences that were just finished


def with_vectors(
    elmo: Elmo,
    items: Iterable[T],
    tokens_of: Callable[[T], Sequence[str]],
    *,
    batch_tokens: int = 2048,
    progress: Count | None = None,
) -> Iterator[tuple[T, Vectors]]:
    """Every item beside the vectors of its tokens, (n_layers + 1, n_tokens, dim); items are read as they are needed."""
    read, kept = tee(items)  # which holds only those that the biLM has read and not yet given back
    stream = elmo.stream(map(tokens_of, read), batch_tokens=batch_tokens, progress=progress or False)
    return ((item, vectors) for vectors, item in zip(stream, kept))


def choose_layers(elmo: Elmo, layers: Sequence[int | str]) -> list[int]:
    """Indices, "top" or "all" -> indices in rising order, each once."""
    n_layers = elmo.bilm.config.n_layers + 1
    chosen: set[int] = set()
    for layer in layers:
        if layer == "all":
            chosen.update(range(n_layers))
        elif layer == "top":
            chosen.add(n_layers - 1)
        elif str(layer).isdecimal() and int(layer) < n_layers:
            chosen.add(int(layer))
        else:
            raise ConfigError(
                f"layers: expected 'all', 'top' or an index from 0 (the token layer) to {n_layers - 1}, got {layer!r}."
            )
    if not chosen:
        raise ConfigError("layers: expected at least one, got none.")
    return sorted(chosen)


def unit(vectors: Array) -> Array:
    """(…, dim), each with length 1, so that products are cosines; a vector of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths).astype(vectors.dtype)
