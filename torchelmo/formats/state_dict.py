"""Read the state_dicts of ELMoForManyLangs and AllenNLP, which lay out LSTMs, convolutions and highways alike.

They differ from official files: the highway gates are inverted, the LSTM gates are in the order i, f, j, o, and the
forget bias is part of the bias. Files are read as tensors only; no code in them is run.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchelmo.bilm.config import BiLMConfig
from torchelmo.errors import WeightsError
from torchelmo.files import require_file
from torchelmo.formats.hdf5 import check_download
from torchelmo.tensors import check_finite

_PARALLEL = "module."  # what DataParallel adds to all names


class StateDict:
    """The tensors of a file that `torch.save` wrote.

    Args:
        path: The file.
        what: A description of the expected file, for error messages.
        prefix: The start of the names of the wanted tensors.

    Raises:
        MissingFileError: There is no such file.
        WeightsError: The file is damaged, or contains something else than tensors.
    """

    def __init__(self, path: Path, what: str, prefix: str = "") -> None:
        self.path, self.prefix = require_file(path, what, regular=True), prefix
        check_download(path)
        try:
            _check_zip(path)
            tensors: Any = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(tensors, dict):
                raise TypeError(f"found {type(tensors).__name__}")
        except Exception as error:  # pickle and zip files are damaged in many ways
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise WeightsError(
                f"{path}: expected a state_dict with tensors only, but the file is damaged or of another kind "
                f"({reason:.200}). Download or copy it again."
            ) from error
        if tensors and all(isinstance(name, str) and name.startswith(_PARALLEL) for name in tensors):
            tensors = {name.removeprefix(_PARALLEL): tensor for name, tensor in tensors.items()}
        self.tensors: Mapping[str, Any] = tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self._find(name).shape)

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Return a tensor as float32, after a check of its shape and values."""
        tensor = self._find(name)
        if (
            tuple(tensor.shape) != shape
            or not tensor.dtype.is_floating_point
            or tensor.layout != torch.strided
            or tensor.device.type != "cpu"
            or tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size()  # the file lies
        ):
            raise WeightsError(
                f"{self.path}: {self.prefix}{name}: expected float32 numbers of shape {shape}, as the configuration "
                f"requires, found {tensor.dtype} of shape {tuple(tensor.shape)}."
            )
        tensor = tensor.detach().to(torch.float32)
        check_finite(tensor, f"{self.path}: {self.prefix}{name}")
        return tensor

    def _find(self, name: str) -> Tensor:
        tensor = self.tensors.get(self.prefix + name)
        if not isinstance(tensor, Tensor):
            raise WeightsError(
                f"{self.path}: expected the tensor {self.prefix + name!r}, as the configuration requires; it is "
                "missing."
            )
        return tensor


def convert_convolutions(weights: StateDict, config: BiLMConfig, name: str) -> dict[str, Tensor]:
    """Return our parameters of the convolutions, which are called `name` with a number in place of {}."""
    tensors = {}
    for i, (width, count) in enumerate(config.filters):
        theirs, ours = name.format(i), f"encoder.convolutions.{i}"
        tensors[f"{ours}.weight"] = weights(f"{theirs}.weight", count, config.char_dim, width).contiguous()
        tensors[f"{ours}.bias"] = weights(f"{theirs}.bias", count).contiguous()
    return tensors


def convert_highways(weights: StateDict, config: BiLMConfig, name: str) -> dict[str, Tensor]:
    """Return our parameters of the highway layers, which are called `name` with a number in place of {}."""
    tensors, dim = {}, config.n_filters
    for i in range(config.n_highway):
        for part, columns in (("weight", [dim]), ("bias", [])):
            transform, gate = weights(f"{name.format(i)}.{part}", 2 * dim, *columns).chunk(2)
            tensors[f"encoder.highways.{i}.transform.{part}"] = transform.contiguous()
            tensors[f"encoder.highways.{i}.carry.{part}"] = -gate  # 1 − σ(x) = σ(−x)
    return tensors


def convert_lstms(weights: StateDict, config: BiLMConfig, prefix: str = "") -> dict[str, Tensor]:
    """Return our parameters of all LSTMs."""
    cell, projection = config.cell_dim, config.projection_dim
    tensors = {}
    for direction in config.directions:
        for j in range(config.n_layers):
            theirs, ours = f"{prefix}{direction}_layer_{j}", f"{direction}_lstms.{j}"
            of_input = weights(f"{theirs}.input_linearity.weight", 4 * cell, projection)
            of_state = weights(f"{theirs}.state_linearity.weight", 4 * cell, projection)
            bias = _reorder_gates(weights(f"{theirs}.state_linearity.bias", 4 * cell))
            bias[2 * cell : 3 * cell] -= 1.0  # our LSTM adds it
            tensors[f"{ours}.input_weight"] = _reorder_gates(of_input).T.contiguous()
            tensors[f"{ours}.state_weight"] = _reorder_gates(of_state).T.contiguous()
            tensors[f"{ours}.bias"] = bias
            of_output = weights(f"{theirs}.state_projection.weight", projection, cell)
            tensors[f"{ours}.projection"] = of_output.T.contiguous()
    return tensors


def _reorder_gates(tensor: Tensor) -> Tensor:
    """Return a copy with the gates i, f, j, o in the order i, j, f, o."""
    i, f, j, o = tensor.chunk(4)
    return torch.cat([i, j, f, o])


def _check_zip(path: Path) -> None:
    """Raise a ValueError if a zip file, the form of newer files, would expand to more than its size."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                raise ValueError("its records are compressed, which PyTorch does not do")
