"""AllenNLP's `ElmoEmbedder`, which AllenNLP had up to version 0.9: sentences → NumPy arrays, or a file → HDF5."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from torchelmo.compat.allennlp.bilm import ElmoBiLm, File
from torchelmo.compat.allennlp.elmo import batch_to_ids
from torchelmo.embedder import Vectors
from torchelmo.errors import ConfigError, InputError
from torchelmo.files import atomic_write, create_hdf5, read_lines
from torchelmo.text.batching import windows

DEFAULT_BATCH_SIZE = 64
log = logging.getLogger(__name__)


class ElmoEmbedder:
    """Compute every layer of every token.

    As in AllenNLP, a call starts from the state at the end of the call before, unless `stateful=False`.

    Args:
        options_file: The path of options.json; None, together with `weight_file`, for the model in the package.
        weight_file: The path of weights.hdf5.
        cuda_device: The number of the GPU; -1 for the CPU.
        stateful: Whether calls continue from the state of the call before.

    Raises:
        ConfigError: There is no such GPU.
    """

    def __init__(
        self,
        options_file: File | None = None,
        weight_file: File | None = None,
        cuda_device: int = -1,
        *,
        stateful: bool = True,
    ) -> None:
        if cuda_device >= torch.cuda.device_count():
            raise ConfigError(
                f"cuda_device: expected -1 for the CPU or the number of a GPU, got {cuda_device}, but PyTorch finds "
                f"{torch.cuda.device_count()} GPUs."
            )
        if options_file is None and weight_file is None:
            log.warning(
                "ElmoEmbedder: no files were given. AllenNLP would use the original model; this is the model in the "
                "package. For the original, give the paths of its options.json and weights.hdf5."
            )
        self.cuda_device = cuda_device
        self.elmo_bilm = ElmoBiLm(options_file, weight_file, stateful=stateful)
        if cuda_device >= 0:
            self.elmo_bilm = self.elmo_bilm.cuda(cuda_device)

    def reset_states(self) -> None:
        """Reset the state to zero."""
        self.elmo_bilm.reset_states()

    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return layers (batch, n_layers + 1, tokens, dim), 0 at padded positions, and the mask (batch, tokens)."""
        out: dict[str, Any] = self.elmo_bilm(batch_to_ids(batch).to(next(self.elmo_bilm.parameters()).device))
        mask = out["mask"][:, 2:]
        layers = torch.stack(out["activations"], dim=1)[:, :, 1:-1]
        return layers.masked_fill(~mask[:, None, :, None], 0.0), mask

    def embed_sentence(self, sentence: Sequence[str]) -> Vectors:
        """Return the layers (n_layers + 1, n_tokens, dim) of one tokenized sentence."""
        return self.embed_batch([sentence])[0]

    @torch.no_grad()
    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Vectors]:
        """Return an array (n_layers + 1, n_tokens, dim) for each tokenized sentence."""
        if not any(len(sentence) for sentence in batch):  # without tokens the state does not change
            empty = (self.elmo_bilm.num_layers, 0, self.elmo_bilm.get_output_dim())
            return [np.zeros(empty, dtype=np.float32) for _ in batch]
        layers, _ = self.batch_to_embeddings(batch)
        array = layers.cpu().numpy()
        # Copies, not views: a sentence that is kept should not keep its whole padded batch in memory.
        return [of_one[:, : len(sentence)].copy() for of_one, sentence in zip(array, batch)]

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[Vectors]:
        """Yield what `embed_batch` returns, for any number of sentences, `batch_size` of them at once."""
        if batch_size < 1:
            raise ConfigError(f"batch_size: expected at least 1 sentence, got {batch_size}.")
        for batch in windows(sentences, batch_size):
            yield from self.embed_batch(batch)

    def embed_file(
        self,
        input_file: IO[str] | str | Path,
        output_file_path: str | Path,
        output_format: str = "all",
        batch_size: int = DEFAULT_BATCH_SIZE,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Write the vectors of a text file to an HDF5 file.

        Args:
            input_file: A text file, open or by its path, with one sentence per line and spaces between tokens. An open
                file is closed, as AllenNLP does.
            output_file_path: The HDF5 file. Its datasets are named by line number, counted from 0.
            output_format: "all", "top" or "average".
            batch_size: The number of sentences that run at once.
            forget_sentences: Do not write `sentence_to_index`, which maps sentences to line numbers.
            use_sentence_keys: Name the datasets by their sentences instead.

        Raises:
            ConfigError: `output_format` or `batch_size` has a wrong value.
            InputError: A line is blank, or cannot be the name of a dataset.
        """
        import h5py

        if output_format not in _FORMATS:
            raise ConfigError(
                f"output_format: expected one of {', '.join(map(repr, _FORMATS))}, got {output_format!r}."
            )
        if isinstance(input_file, (str, Path)):
            sentences = [line.strip() for line in read_lines(input_file)]
        else:
            with input_file:
                sentences = [line.strip() for line in input_file]
        _check_sentences(sentences, unique=use_sentence_keys)
        keys = sentences if use_sentence_keys else [str(number) for number in range(len(sentences))]
        arrays = self.embed_sentences((sentence.split() for sentence in sentences), batch_size)
        with atomic_write(output_file_path) as temporary, create_hdf5(temporary) as file:
            for key, array in zip(keys, arrays):
                file.create_dataset(key, data=_FORMATS[output_format](array), dtype="float32")
            if not (forget_sentences or use_sentence_keys):
                index = json.dumps(dict(zip(sentences, keys)))
                file.create_dataset("sentence_to_index", data=[index], dtype=h5py.string_dtype())


def _average(layers: Vectors) -> Vectors:
    average: Vectors = layers.mean(axis=0)
    return average


_FORMATS: dict[str, Callable[[Vectors], Vectors]] = {
    "all": lambda layers: layers,
    "top": lambda layers: layers[-1],
    "average": _average,
}


def _check_sentences(sentences: Sequence[str], *, unique: bool) -> None:
    seen: set[str] = set()
    for number, sentence in enumerate(sentences, 1):
        if not sentence:
            raise InputError(f"embed_file: line {number}: expected a sentence, found a blank line. Remove it.")
        if not unique:
            continue
        if sentence in seen:
            raise InputError(
                f"embed_file: line {number}: the sentence {sentence[:40]!r} appears twice, so it cannot "
                "be the name of a dataset. Leave out use_sentence_keys."
            )
        if "/" in sentence or sentence == ".":
            raise InputError(
                f"embed_file: line {number}: {sentence[:40]!r} cannot be the name of a dataset, "
                "because HDF5 reads '/' and '.' as paths. Leave out use_sentence_keys."
            )
        seen.add(sentence)
