"""Where ELMo enters a task: mixes of the biLM's layers, from a cache where the biLM is frozen.

An epoch then costs the task model only: the biLM runs once over every sentence, not once per epoch.
"""

import logging
import math
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from torchelmo.bilm.model import BiLM
from torchelmo.elmo import Elmo
from torchelmo.errors import ConfigError, OutputError
from torchelmo.files import os_errors_as_output_error
from torchelmo.mix import ScalarMix
from torchelmo.progress import progress
from torchelmo.runs.resume import Stop
from torchelmo.tasks.config import ElmoConfig

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
        with os_errors_as_output_error(folder / "cached biLM layers"):
            if self._file is None:
                # Without a buffer: what a full disk refused would come up again when the file is closed.
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (it lives with the cache)
                weakref.finalize(self, self._file.close)
            self._file.seek(place.offset)
            while left:
                left = left[self._file.write(left) :]
        self._end += layers.nbytes
        return place


N_MIXES = {"none": 0, "input": 1, "output": 1, "both": 2}


class ElmoVectors(NamedTuple):
    mixes: list[Tensor]  # one or two, (batch, tokens, dim) each, 0 at padded positions
    mask: Tensor  # (batch, tokens), true at real tokens


class ElmoLayers(nn.Module):
    """Sentences -> one mix of the biLM's layers for each place that ELMo enters at."""

    def __init__(self, bilm: BiLM, config: ElmoConfig, *, folder: Path | None = None) -> None:
        super().__init__()
        if config.place == "none":
            raise ConfigError("elmo.place: expected input, output or both, got none.")
        self.config = config
        mixes = [_build_mix(bilm.config.n_layers + 1, config) for _ in range(N_MIXES[config.place])]
        self.elmo = Elmo(bilm, mixes=mixes, dropout=config.dropout, freeze=not config.unfreeze)
        if bilm.softmax is not None:  # no task predicts words: it would only be saved with every checkpoint
            for parameter in bilm.softmax.parameters():
                if parameter is not bilm.encoder.embedding:  # a tied one reads words, too
                    parameter.requires_grad_(False)
        token = self._n_kept * self.dim * np.dtype(np.float32).itemsize
        free = shutil.disk_usage(folder or tempfile.gettempdir()).free  # half of it: checkpoints need room, too
        rooms = round(config.memory_mb * 1e6), round(min(config.disk_mb * 1e6, free / 2))
        memory_tokens, disk_tokens = (room // token for room in rooms)
        self.cache = LayerCache(memory_tokens=memory_tokens, disk_tokens=disk_tokens, folder=folder)

    @property
    def bilm(self) -> BiLM:
        return self.elmo.bilm

    @property
    def dim(self) -> int:
        return self.elmo.dim

    @property
    def mixes(self) -> Sequence[ScalarMix]:
        return self.elmo.mixes

    def train(self, mode: bool = True) -> "ElmoLayers":
        super().train(mode)
        if not self.config.unfreeze:
            self.bilm.eval()
        return self

    def penalty(self) -> Tensor:
        """λ Σ‖w‖², to be added to the task's loss."""
        return self.config.l2 * self.elmo.penalty()

    def fill(self, sentences: Iterable[Sequence[str]], stop: Stop | None = None) -> None:
        """Run the frozen biLM once over every sentence that there is room for, showing how far it is."""
        if self.config.unfreeze:
            return
        wanted = self.cache.fitting(sentences)
        if wanted:
            with progress("biLM", len(wanted)) as advance:
                for sentence, layers in zip(wanted, self.elmo.stream(wanted, layers=self._kept)):
                    self.cache.add(sentence, self._shaped(layers))
                    advance(1)
                    if stop is not None and stop.requested:
                        return
        self.elmo.token_cache.frozen = True  # a step, or the same step of a resumed run, then gives the same bits

    def forward(self, sentences: Sequence[Sequence[str]]) -> ElmoVectors:
        layers, mask = self._trained(sentences) if self.config.unfreeze else self._frozen(sentences)
        # A layer norm has shifted the zeros of padded positions.
        mixed = (mix(layers, mask).masked_fill(~mask.unsqueeze(-1), 0.0) for mix in self.mixes)
        return ElmoVectors([self.elmo.dropout(vectors) for vectors in mixed], mask)

    def _frozen(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """(n_layers, batch, tokens, dim) without sentence marks, and the mask."""
        fresh: dict[tuple[str, ...], Layers] = {}
        missing = self.cache.missing(sentences)
        for sentence, vectors in zip(missing, self.elmo.embed(missing, layers=self._kept)):
            fresh[tuple(sentence)] = self._shaped(vectors)
            self.cache.add(sentence, fresh[tuple(sentence)])
        lengths = [len(sentence) for sentence in sentences]
        padded = np.zeros((self._n_kept, len(sentences), max(lengths, default=0), self.dim), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            found = self.cache.get(sentence)
            padded[:, row, : len(sentence)] = fresh[tuple(sentence)] if found is None else found
        mask = np.arange(padded.shape[2]) < np.array(lengths, dtype=np.int64).reshape(-1, 1)
        device = self.mixes[0].scalars.device
        # A single kept layer stands for all: the mix looks at that one only.
        layers = torch.from_numpy(padded).to(device).expand(self.mixes[0].n_layers, -1, -1, -1)
        return layers, torch.from_numpy(mask).to(device)

    def _trained(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        out = self.bilm(self.elmo.encode(sentences))
        return out.layers[:, :, 1:-1], out.mask[:, 2:]  # a row of n tokens has n + 2 with its marks

    @property
    def _kept(self) -> Literal["all"] | int:
        """What of the biLM the cache holds."""
        layer = self.mixes[0].layer
        return "all" if layer is None else layer

    @property
    def _n_kept(self) -> int:
        return 1 if isinstance(self._kept, int) else self.mixes[0].n_layers

    def _shaped(self, vectors: Layers) -> Layers:
        return vectors[np.newaxis] if vectors.ndim == 2 else vectors


def _build_mix(n_layers: int, config: ElmoConfig) -> ScalarMix:
    if config.layers == "all":
        return ScalarMix(n_layers, layer_norm=config.layer_norm)
    if config.layers == "average":
        return ScalarMix(n_layers, layer_norm=config.layer_norm, trainable=False)
    layer = n_layers - 1 if config.layers == "top" else int(config.layers)
    if layer >= n_layers:
        raise ConfigError(f"elmo.layers: expected a layer from 0 to {n_layers - 1} of this biLM, got {layer}.")
    return ScalarMix(n_layers, layer_norm=config.layer_norm, layer=layer)
