"""Where ELMo enters a task: mixes of the biLM's layers, from a cache where the biLM is frozen.

An epoch then costs the task model only: the biLM runs once over every sentence, not once per epoch.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchelmo.bilm.model import BiLM
from torchelmo.elmo import Elmo
from torchelmo.errors import ConfigError
from torchelmo.mix import ScalarMix
from torchelmo.progress import progress
from torchelmo.tasks.layer_cache import LayerCache, Layers
from torchelmo.train.signals import Stop

LAYERS = ("all", "top", "average")
N_MIXES = {"none": 0, "input": 1, "output": 1, "both": 2}


@dataclass(frozen=True)
class ElmoConfig:
    """[elmo]: where the biLM enters the task model, and which of its layers."""

    place: Literal["none", "input", "output", "both"] = "none"
    model: str = ""  # anything torchelmo.load takes; empty for the model inside the package
    layers: str = "all"  # learns their weights; "top", "average" or the index of one, such as "1"
    l2: float = 0.001  # λ of the penalty λ‖w‖² on the learned weights
    layer_norm: bool = False
    dropout: float = 0.5
    unfreeze: bool = False  # train the biLM with the task; there is no cache then
    memory_mb: float = 1000.0  # keep layers in so much memory,
    disk_mb: float = 20_000.0  # more of them in a temporary file, and run the biLM again for the rest

    def __post_init__(self) -> None:
        if self.layers not in LAYERS and not re.fullmatch("[0-9]+", self.layers):
            raise ConfigError(f"layers: expected {', '.join(LAYERS)} or the index of a layer, got {self.layers!r}.")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and below 1, got {self.dropout}.")
        for name in ("l2", "memory_mb", "disk_mb"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}.")


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
                    if stop is not None and stop.asked:
                        return
        self.elmo.words.closed = True  # a step, or the same step of a resumed run, then gives the same bits

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
