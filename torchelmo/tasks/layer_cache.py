"""Frozen biLM outputs, kept by sentence: in memory up to a number of tokens, then in a file, then not at all."""

import logging
import math
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torchelmo.errors import OutputError
from torchelmo.files import explaining

log = logging.getLogger(__name__)

Layers: TypeAlias = npt.NDArray[np.float32]  # (n_layers, n_tokens, dim)


class Place(NamedTuple):
    offset: int  # in the file, in bytes
    shape: tuple[int, ...]


class LayerCache:
    """A sentence's layers by its tokens. The file has no name, so nothing is left behind when the process ends.

    >>> cache = LayerCache(memory_tokens=3, disk_tokens=0)
    >>> cache.add(["a", "bow"], np.zeros((3, 2, 4), dtype=np.float32))
    >>> cache.add(["wide", "bow"], np.ones((3, 2, 4), dtype=np.float32))
    >>> len(cache), cache.get(["a", "bow"]).shape, cache.get(["wide", "bow"])
    (1, (3, 2, 4), None)
    """

    def __init__(self, *, memory_tokens: int, disk_tokens: int, folder: Path | None = None) -> None:
        self.memory_tokens, self.disk_tokens, self.folder = memory_tokens, disk_tokens, folder
        self._kept: dict[tuple[str, ...], Layers | Place] = {}
        self._in_memory = self._on_disk = 0  # tokens
        self._file: IO[bytes] | None = None
        self._end = 0  # of the file

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, sentence: Sequence[str]) -> Layers | None:
        found = self._kept.get(tuple(sentence))
        if not isinstance(found, Place):
            return found
        assert self._file is not None
        self._file.seek(found.offset)
        n_values = math.prod(found.shape)
        return np.frombuffer(self._file.read(4 * n_values), dtype=np.float32).reshape(found.shape)

    def missing(self, sentences: Iterable[Sequence[str]]) -> list[Sequence[str]]:
        """Those that are not kept, each once."""
        return list({tuple(sentence): sentence for sentence in sentences if tuple(sentence) not in self._kept}.values())

    def add(self, sentence: Sequence[str], layers: Layers) -> None:
        """Keep the layers where there is room for them."""
        n_tokens = len(sentence)
        if self._in_memory + n_tokens <= self.memory_tokens:
            self._kept[tuple(sentence)] = layers
            self._in_memory += n_tokens
        elif n_tokens and self._on_disk + n_tokens <= self.disk_tokens:
            try:
                self._kept[tuple(sentence)] = self._write(layers)
            except OutputError as error:
                self.disk_tokens = self._on_disk
                log.warning("%s What found no place is computed in every epoch: slower, but the same numbers.", error)
            else:
                self._on_disk += n_tokens

    def fitting(self, sentences: Iterable[Sequence[str]]) -> list[Sequence[str]]:
        """The missing ones that there is room for, in the order in which `add` would take them."""
        left = [self.memory_tokens - self._in_memory, self.disk_tokens - self._on_disk]
        chosen = []
        for sentence in self.missing(sentences):
            place = next((i for i, room in enumerate(left) if 0 < len(sentence) <= room), None)
            if place is not None:
                left[place] -= len(sentence)
                chosen.append(sentence)
        return chosen

    def _write(self, layers: Layers) -> Place:
        folder = self.folder or Path(tempfile.gettempdir())
        left = np.ascontiguousarray(layers, dtype=np.float32).data.cast("B")
        place = Place(self._end, layers.shape)
        with explaining(folder / "cached biLM layers"):
            if self._file is None:
                # Without a buffer: what a full disk refused would come up again when the file is closed.
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (it lives with the cache)
                weakref.finalize(self, self._file.close)
            self._file.seek(place.offset)
            while left:
                left = left[self._file.write(left) :]
        self._end += layers.nbytes
        return place
