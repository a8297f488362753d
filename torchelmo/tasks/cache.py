"""The layers of a frozen biLM in a folder that many runs share.

The columns, seeds and shares of a table of experiments run the biLM once:

FOLDER/layers/FINGERPRINT/HASH-N/  layers.bin: float32 (n_layers, n_tokens, dim) of N sentences
                                   index.safetensors: for each sentence a hash of its tokens, their number, a checksum
FOLDER/models/FINGERPRINT/         the biLM; the folders of runs hold links to its files instead of copies
"""

import contextlib
import hashlib
import logging
import os
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torchelmo.bilm.model import BiLM
from torchelmo.errors import BusyError, OutputError, TorchelmoError, WeightsError
from torchelmo.files import atomic_write, hold_lock, make_folders, os_errors_as_output_error
from torchelmo.tensors import read_tensors, save_tensors

log = logging.getLogger(__name__)
Layers: TypeAlias = npt.NDArray[np.float32]  # of a sentence: (n_layers, n_tokens, dim)

_BLOCK_TOKENS = 100_000  # a killed run loses at most the layers of this many tokens
_WAIT_SECONDS = 0.2
_HASH_BYTES = 16


class SharedLayers:
    """The biLM layers of sentences in a folder that many runs share, also at the same time.

    A file is complete when it appears, and its content is checked against its checksums. Every file holds all layers,
    so that runs with one layer and runs with a mix share it.

    Args:
        folder: The folder. It is created if needed.
        fingerprint: `BiLM.fingerprint()` of the biLM.
        shape: The number of layers and their width.
        max_bytes: The size limit of all layers in the folder. Those that were used least recently are deleted.

    Raises:
        OutputError: The folder cannot be written.
    """

    def __init__(self, folder: Path, fingerprint: str, shape: tuple[int, int], *, max_bytes: int) -> None:
        self.folder, self.shape, self.max_bytes = folder, shape, max_bytes
        self._blocks = folder / "layers" / fingerprint
        self._entries: dict[bytes, _SharedEntry] = {}
        self._read: set[Path] = set()

    def get(self, sentence: Sequence[str]) -> Layers | None:
        """Return the layers of a sentence, or None if they are not there."""
        entry = self._entries.get(_hash(sentence))
        if entry is None:
            return None
        n_layers, dim = self.shape
        end = entry.start + n_layers * len(sentence) * dim
        return entry.values[entry.start : end].reshape(n_layers, len(sentence), dim)

    def missing(self, sentences: Iterable[Sequence[str]]) -> list[Sequence[str]]:
        """Read the folder again, and return the distinct sentences with at least one token that it does not hold."""
        for block in sorted(self._blocks.iterdir()) if self._blocks.is_dir() else []:
            if block not in self._read and not block.name.startswith("."):
                self._read.add(block)
                self._read_block(block)
        distinct = {_hash(sentence): sentence for sentence in sentences if len(sentence)}
        return [sentence for key, sentence in distinct.items() if key not in self._entries]

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other run adds layers of this biLM, and keep others from it in the meantime."""
        with os_errors_as_output_error(self._blocks):
            make_folders(self._blocks)
        waiting = False
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(hold_lock(self._blocks.with_suffix(".lock"), str(self.folder)))
                except BusyError as error:
                    if not waiting:
                        log.info("%s Waiting for its layers.", str(error).split(". ")[0] + ".")
                    waiting = True
                else:
                    yield
                    return
            time.sleep(_WAIT_SECONDS)

    def add(self, sentences: Sequence[Sequence[str]], layers: Iterable[Layers]) -> Iterator[Sequence[str]]:
        """Write the layers of sentences, block by block, and yield each sentence when its layers are computed.

        Sentences that do not fit into the size limit are not written.
        """
        waiting: list[tuple[Sequence[str], Layers]] = []
        n_tokens = 0
        for sentence, values in zip(sentences, layers):
            waiting.append((sentence, values))
            n_tokens += len(sentence)
            yield sentence
            if n_tokens >= _BLOCK_TOKENS:
                self._write_block(waiting)
                waiting, n_tokens = [], 0
        if waiting:
            self._write_block(waiting)

    def _write_block(self, items: Sequence[tuple[Sequence[str], Layers]]) -> None:
        arrays = [np.ascontiguousarray(values, dtype=np.float32) for _, values in items]
        size = sum(array.nbytes for array in arrays)
        if size > self.max_bytes or not self._make_space(size):
            log.warning(
                "%s: the layers of %d sentences do not fit into %.0f MB. They are computed again when they are needed.",
                *(self.folder, len(items), self.max_bytes / 1e6),
            )
            return
        hashes = [_hash(sentence) for sentence, _ in items]
        index = {
            "hashes": torch.frombuffer(bytearray(b"".join(hashes)), dtype=torch.uint8).view(-1, _HASH_BYTES),
            "n_tokens": torch.tensor([len(sentence) for sentence, _ in items]),
            "checksums": torch.tensor([zlib.crc32(array.data.cast("B")) for array in arrays]),
        }
        block = self._blocks / _block_name(b"".join(hashes))
        with atomic_write(block) as temporary:
            temporary.mkdir()
            with (temporary / "layers.bin").open("wb") as stream:
                for array in arrays:
                    stream.write(array.data.cast("B"))
            save_tensors(temporary / "index.safetensors", index)
        self._read.add(block)
        self._read_block(block)

    def _read_block(self, block: Path) -> None:
        """Add the sentences of a block. A damaged block is deleted, and its sentences are computed again."""
        file, index = block / "layers.bin", block / "index.safetensors"
        n_layers, dim = self.shape
        try:
            n = int(block.name.partition("-")[2])
            expected = {"hashes": (n, _HASH_BYTES), "n_tokens": (n,), "checksums": (n,)}
            found = read_tensors(
                index, expected, what="an index of biLM layers", dtypes=("U8", "I64"), dtype=torch.int64
            )
            lengths = found["n_tokens"].numpy()
            ends = np.cumsum(lengths * n_layers * dim)
            keys = found["hashes"].to(torch.uint8).numpy()
            if _block_name(keys.tobytes()) != block.name:
                raise WeightsError(f"{index}: the hashes do not match the name of the folder.")
            if (lengths <= 0).any() or file.stat().st_size != 4 * int(ends[-1]):
                raise WeightsError(f"{file}: the size does not match the index.")
            values = np.memmap(file, dtype=np.float32, mode="r")
            starts = ends - lengths * n_layers * dim
            for start, end, checksum in zip(starts, ends, found["checksums"].tolist()):
                if zlib.crc32(values[start:end].data.cast("B")) != checksum:
                    raise WeightsError(f"{file}: a checksum is wrong.")
            os.utime(block)  # the time of the last use
        except (TorchelmoError, OSError, ValueError, IndexError) as error:
            log.warning("%s The cached layers in %s are deleted and computed again.", error, block)
            shutil.rmtree(block, ignore_errors=True)
            return
        for key, start in zip(keys, starts.tolist()):
            self._entries.setdefault(key.tobytes(), _SharedEntry(values, start))

    def _make_space(self, size: int) -> bool:
        """Delete the blocks of any biLM that were used least recently, until `size` more bytes fit."""
        blocks = sorted((self.folder / "layers").glob("*/*/layers.bin"), key=lambda file: file.parent.stat().st_mtime)
        sizes = {file.parent: file.stat().st_size for file in blocks}
        total = sum(sizes.values())
        for block, taken in sizes.items():
            if total + size <= self.max_bytes:
                break
            if block in self._read:  # this run needs it
                continue
            shutil.rmtree(block, ignore_errors=True)  # runs that have mapped it keep their view of it
            total -= taken
        return total + size <= self.max_bytes


def link_bilm(bilm: BiLM, shared: Path, folder: Path) -> None:
    """Save a biLM once in a shared folder, and fill `folder` with links to its files, or copies where links fail."""
    source = shared / "models" / bilm.fingerprint()
    if not (source / "config.json").exists():
        try:
            bilm.save(source)
        except OutputError:
            if not (source / "config.json").exists():  # else another run has just saved it
                raise
    with os_errors_as_output_error(folder):
        folder.mkdir(exist_ok=True)
        for file in source.iterdir():
            if file.is_file() and not file.name.startswith("."):
                target = folder / file.name
                target.unlink(missing_ok=True)
                try:
                    os.link(file, target)
                except OSError:
                    shutil.copyfile(file, target)


class _SharedEntry(NamedTuple):
    values: npt.NDArray[np.float32]  # of the whole block
    start: int


def _block_name(hashes: bytes) -> str:
    return f"{hashlib.sha256(hashes).hexdigest()[:16]}-{len(hashes) // _HASH_BYTES}"


def _hash(sentence: Sequence[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=_HASH_BYTES)
    for token in sentence:
        encoded = token.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()
