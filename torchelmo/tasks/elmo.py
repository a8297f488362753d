"""ELMo in a task model: mixes of the biLM's layers, which are cached if the biLM is frozen.

With the cache the biLM runs once over every sentence, not once per epoch: an epoch costs only the task model.
"""

import logging
import math
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from torchelmo.bilm.model import BiLM
from torchelmo.elmo import Elmo, ElmoOutput
from torchelmo.errors import ConfigError, OutputError
from torchelmo.files import os_errors_as_output_error
from torchelmo.mix import ScalarMix
from torchelmo.progress import progress
from torchelmo.runs.resume import Stop
from torchelmo.tasks.config import ElmoConfig

if TYPE_CHECKING:
    from torchelmo.tasks.cache import SharedLayers

log = logging.getLogger(__name__)
SentenceLayers: TypeAlias = npt.NDArray[np.float32]  # (n_layers, n_tokens, dim)


class ElmoLayers(nn.Module):
    """Tokenized sentences -> one mix of the biLM's layers for each place where ELMo enters the task model.

    Args:
        bilm: The biLM.
        config: The settings; `place` must not be "none".
        folder: A folder for the temporary file of the cache. Default: the system's temporary folder.

    Raises:
        ConfigError: `config.place` is "none", or the biLM has no layer `config.layers`.
    """

    def __init__(self, bilm: BiLM, config: ElmoConfig, *, folder: Path | None = None) -> None:
        super().__init__()
        if config.place == "none":
            raise ConfigError("elmo.place: expected input, output or both, got none.")
        self.config = config
        mixes = [_build_mix(bilm.config.n_layers + 1, config) for _ in config.places]
        self.elmo = Elmo(bilm, mixes=mixes, dropout=config.dropout, freeze=not config.unfreeze)
        for name, parameter in bilm.named_parameters():
            # No task uses them: training them would only make checkpoints larger. Named parameters are distinct, so a
            # tied softmax, which is also the input embedding, is trained.
            if name == "mask_vector" or name.startswith("softmax."):
                parameter.requires_grad_(False)
        token_bytes = self._n_cached * self.dim * np.dtype(np.float32).itemsize
        folder = folder or Path(tempfile.gettempdir())
        free = shutil.disk_usage(folder).free  # use at most half of it, to leave space for checkpoints
        memory, disk = round(config.memory_mb * 1e6), round(min(config.disk_mb * 1e6, free / 2))
        self.cache = LayerCache(memory_tokens=memory // token_bytes, disk_tokens=disk // token_bytes, folder=folder)
        self.shared = _open_shared_layers(bilm, config)

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
        """Set training mode. A frozen biLM stays in evaluation mode."""
        super().train(mode)
        if not self.config.unfreeze:
            self.bilm.eval()
        return self

    def penalty(self) -> Tensor:
        """Return λ Σ‖w‖², to be added to the task's loss."""
        return self.config.l2 * self.elmo.penalty()

    def precompute(self, sentences: Iterable[Sequence[str]], stop: Stop | None = None) -> None:
        """Fill the cache: run the frozen biLM once over every sentence that the cache has space for.

        With `config.cache`, only sentences that no run has added to that folder need the biLM.

        Args:
            sentences: The sentences; duplicates run once.
            stop: Ends the work early when it is asked to stop.
        """
        if self.config.unfreeze:
            return
        sentences = list(sentences)
        if self.shared is not None:
            with self.shared.lock():
                missing = self.shared.missing(sentences)
                added = self.shared.add(missing, self.elmo.stream(missing, layers="all", kernels="fixed"))
                if not _consume(added, len(missing), stop):
                    return
            sentences = [sentence for sentence in sentences if self.shared.get(sentence) is None]
        missing = self.cache.fitting(sentences)
        if not _consume(self._add_to_cache(missing), len(missing), stop):
            return
        # From here on the token vectors are the same in every step, so that a resumed run gives the same bits.
        self.elmo.token_cache.frozen = True

    def _add_to_cache(self, sentences: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
        for sentence, layers in zip(
            sentences, self.elmo.stream(sentences, layers=self._cached_layers, kernels="fixed")
        ):
            self.cache.add(sentence, self._with_layer_axis(layers))
            yield sentence

    def forward(self, sentences: Sequence[Sequence[str]]) -> ElmoOutput:
        layers, mask = self._trained(sentences) if self.config.unfreeze else self._frozen(sentences)
        return self.elmo.mix_layers(layers, mask)

    def _trained(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Run the biLM with gradients: (n_layers, batch, tokens, dim) without sentence marks, and the mask."""
        out = self.bilm(self.elmo.encode(sentences))
        return out.layers[:, :, 1:-1], out.mask[:, 2:]  # a row of n tokens has n + 2 with its marks

    def _frozen(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return the same as `_trained`, from the cache as far as possible, and without gradients."""
        computed: dict[tuple[str, ...], SentenceLayers] = {}
        missing = self.cache.missing(sentence for sentence in sentences if self._shared_layers(sentence) is None)
        for sentence, layers in zip(missing, self.elmo.embed(missing, layers=self._cached_layers, kernels="fixed")):
            computed[tuple(sentence)] = self._with_layer_axis(layers)
            self.cache.add(sentence, computed[tuple(sentence)])
        lengths = [len(sentence) for sentence in sentences]
        padded = np.zeros((self._n_cached, len(sentences), max(lengths, default=0), self.dim), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            cached = self._shared_layers(sentence)
            if cached is None:
                cached = self.cache.get(sentence)
            padded[:, row, : len(sentence)] = computed[tuple(sentence)] if cached is None else cached
        mask = np.arange(padded.shape[2]) < np.array(lengths, dtype=np.int64).reshape(-1, 1)
        device = self.mixes[0].scalars.device
        # If only one layer is cached, the mix uses only that layer, so it can be repeated for all.
        stacked = torch.from_numpy(padded).to(device).expand(self.mixes[0].n_layers, -1, -1, -1)
        return stacked, torch.from_numpy(mask).to(device)

    def _shared_layers(self, sentence: Sequence[str]) -> SentenceLayers | None:
        layers = self.shared.get(sentence) if self.shared is not None else None
        if layers is None or isinstance(self._cached_layers, str):
            return layers
        return layers[self._cached_layers : self._cached_layers + 1]

    @property
    def _cached_layers(self) -> Literal["all"] | int:
        layer = self.mixes[0].layer
        return "all" if layer is None else layer

    @property
    def _n_cached(self) -> int:
        return 1 if isinstance(self._cached_layers, int) else self.mixes[0].n_layers

    def _with_layer_axis(self, vectors: SentenceLayers) -> SentenceLayers:
        return vectors[np.newaxis] if vectors.ndim == 2 else vectors


class LayerCache:
    """The biLM layers of sentences, by their tokens: first in memory, then in a temporary file without a name.

    Args:
        memory_tokens: How many tokens are kept in memory.
        disk_tokens: How many more are kept in the file.
        folder: The folder of the file. The file is removed when the process ends, however it ends.

    >>> cache = LayerCache(memory_tokens=3, disk_tokens=0)
    >>> cache.add(["a", "bow"], np.zeros((3, 2, 4), dtype=np.float32))
    >>> cache.add(["wide", "bow"], np.ones((3, 2, 4), dtype=np.float32))
    >>> len(cache), cache.get(["a", "bow"]).shape, cache.get(["wide", "bow"])
    (1, (3, 2, 4), None)
    """

    def __init__(self, *, memory_tokens: int, disk_tokens: int, folder: Path | None = None) -> None:
        self.memory_tokens, self.disk_tokens = memory_tokens, disk_tokens
        self.folder = folder or Path(tempfile.gettempdir())
        self._entries: dict[tuple[str, ...], SentenceLayers | _FileEntry] = {}
        self._tokens_in_memory = self._tokens_on_disk = 0
        self._file: IO[bytes] | None = None
        self._file_size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, sentence: Sequence[str]) -> SentenceLayers | None:
        """Return the layers of a sentence, or None if they are not cached."""
        entry = self._entries.get(tuple(sentence))
        if not isinstance(entry, _FileEntry):
            return entry
        assert self._file is not None
        self._file.seek(entry.offset)
        n_values = math.prod(entry.shape)
        return np.frombuffer(self._file.read(4 * n_values), dtype=np.float32).reshape(entry.shape)

    def missing(self, sentences: Iterable[Sequence[str]]) -> list[Sequence[str]]:
        """Return the distinct sentences that are not cached."""
        distinct = {tuple(sentence): sentence for sentence in sentences}
        return [sentence for key, sentence in distinct.items() if key not in self._entries]

    def fitting(self, sentences: Iterable[Sequence[str]]) -> list[Sequence[str]]:
        """Return the missing sentences that `add` has space for, if they are added in this order."""
        free = [self.memory_tokens - self._tokens_in_memory, self.disk_tokens - self._tokens_on_disk]
        chosen = []
        for sentence in self.missing(sentences):
            store = next((i for i, tokens in enumerate(free) if 0 < len(sentence) <= tokens), None)
            if store is not None:
                free[store] -= len(sentence)
                chosen.append(sentence)
        return chosen

    def add(self, sentence: Sequence[str], layers: SentenceLayers) -> None:
        """Cache the layers of a sentence if there is space for them."""
        n_tokens = len(sentence)
        if self._tokens_in_memory + n_tokens <= self.memory_tokens:
            self._entries[tuple(sentence)] = layers
            self._tokens_in_memory += n_tokens
        elif n_tokens and self._tokens_on_disk + n_tokens <= self.disk_tokens:
            try:
                self._entries[tuple(sentence)] = self._write(layers)
            except OutputError as error:
                self.disk_tokens = self._tokens_on_disk
                log.warning(
                    "%s Sentences that are not cached are computed in every epoch: slower, same results.", error
                )
            else:
                self._tokens_on_disk += n_tokens

    def _write(self, layers: SentenceLayers) -> "_FileEntry":
        remaining = np.ascontiguousarray(layers, dtype=np.float32).data.cast("B")
        entry = _FileEntry(self._file_size, layers.shape)
        with os_errors_as_output_error(self.folder / "cached biLM layers"):
            if self._file is None:
                # Unbuffered: buffered data that did not fit on the disk would raise again when the file is closed.
                self._file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115 (closed by finalize)
                weakref.finalize(self, self._file.close)
            self._file.seek(entry.offset)
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
        self._file_size += layers.nbytes
        return entry


class _FileEntry(NamedTuple):
    offset: int  # in bytes
    shape: tuple[int, ...]


def _open_shared_layers(bilm: BiLM, config: ElmoConfig) -> "SharedLayers | None":
    if config.cache is None or config.unfreeze:
        return None
    from torchelmo.tasks.cache import SharedLayers

    shape = (bilm.config.n_layers + 1, bilm.config.dim)
    return SharedLayers(config.cache, bilm.fingerprint(), shape, max_bytes=round(config.cache_mb * 1e6))


def _consume(items: Iterable[object], n_items: int, stop: Stop | None) -> bool:
    """Iterate over items with a progress bar; return False if `stop` was requested before the end."""
    if not n_items:
        return True
    with progress("biLM", n_items) as advance:
        for _ in items:
            advance(1)
            if stop is not None and stop.requested:
                return False
    return True


def _build_mix(n_layers: int, config: ElmoConfig) -> ScalarMix:
    if config.layers == "all":
        mix = ScalarMix(n_layers, layer_norm=config.layer_norm)
        mix.gamma.requires_grad_(config.gamma == "learned")
        return mix
    if config.layers == "average":
        return ScalarMix(n_layers, layer_norm=config.layer_norm, trainable=False)
    layer = n_layers - 1 if config.layers == "top" else int(config.layers)
    if layer >= n_layers:
        raise ConfigError(f"elmo.layers: expected a layer from 0 to {n_layers - 1} of this biLM, got {layer}.")
    return ScalarMix(n_layers, layer_norm=config.layer_norm, layer=layer)
