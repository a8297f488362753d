"""Read models of ELMoForManyLangs: config.json, char.dic, word.dic, token_embedder.pkl and encoder.pkl.

They differ from official files: tokens are Unicode characters and a word, the highway gates are inverted, the LSTM
gates are in the order i, f, j, o, and the forget bias is part of the bias. The .pkl files are read as tensors only; no
code in them is run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchelmo.bilm.config import PAPER_FILTERS, BiLMConfig
from torchelmo.bilm.folder import MAX_CONFIG_BYTES
from torchelmo.bilm.model import BiLM
from torchelmo.config import build_config
from torchelmo.errors import ConfigError, InputError, TorchelmoError, WeightsError
from torchelmo.files import read_json, read_lines, require_file
from torchelmo.formats.hdf5 import check_download
from torchelmo.runtime import release_freed_memory
from torchelmo.tensors import check_finite
from torchelmo.text.characters import Symbols

_MAX_SYMBOLS = 10**7
_DEFAULT_SHAPE: dict[str, dict[str, Any]] = {  # of all published models
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": list(map(list, PAPER_FILTERS)),
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
}


def load_efml(folder: str | Path) -> BiLM:
    """Load a model of ELMoForManyLangs.

    Args:
        folder: The folder of the model.

    Returns:
        The model, in float32 on the CPU. It saves as an ordinary model folder.

    Raises:
        ConfigError: The configuration has a wrong value, or is of a kind that was never published.
        InputError: char.dic or word.dic is damaged.
        MissingFileError: A file is missing.
        WeightsError: A .pkl file is damaged, or does not match the configuration.
    """
    folder = Path(folder)
    shape, where = _read_shape(folder)
    symbols = Symbols(_read_symbols(folder / "char.dic"), _read_symbols(folder / "word.dic"))
    config, word_dim = _config(shape, symbols, str(where))
    with torch.device("meta"):
        bilm = BiLM(config, symbols=symbols)
    tensors = _convert_encoder(_Weights(folder / "token_embedder.pkl"), config, word_dim)
    tensors |= _convert_lstms(_Weights(folder / "encoder.pkl"), config)
    bilm.assign_parameters(tensors)
    release_freed_memory()
    bilm.origin, bilm.source = f"ELMoForManyLangs model {folder.name}", str(folder)
    return bilm


def _read_shape(folder: Path) -> tuple[dict[str, Any], Path]:
    """Read the file that config.json names, in the same folder. Default: the shape of all published models."""
    arguments = read_json(folder / "config.json", "the config.json of ELMoForManyLangs", max_bytes=MAX_CONFIG_BYTES)
    named = arguments.get("config_path") if isinstance(arguments, dict) else None
    if not isinstance(named, str):
        raise ConfigError(f"{folder / 'config.json'}: expected the key 'config_path', as ELMoForManyLangs writes it.")
    path = folder / (named.replace("\\", "/").rsplit("/", 1)[-1] or "none")  # never a file of another folder
    if not path.is_file():
        return _DEFAULT_SHAPE, folder / "config.json"
    shape = read_json(path, "the shape of a model", max_bytes=MAX_CONFIG_BYTES)
    for key, name in (("encoder", "elmo"), ("token_embedder", "cnn")):
        table = shape.get(key) if isinstance(shape, dict) else None
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: expected an object with the key {key!r}.")
        if str(table.get("name")).lower() != name:
            raise ConfigError(f"{path}: {key}: name: expected {name!r}, found {table.get('name')!r:.60}.")
    return shape, path


def _config(shape: dict[str, Any], symbols: Symbols, where: str) -> tuple[BiLMConfig, int]:
    """Return the shape of the model, and the width of its word vectors."""
    encoder, embedder = shape["encoder"], shape["token_embedder"]
    word_dim = embedder.get("word_dim", 0)
    if not isinstance(word_dim, int) or not 0 <= word_dim <= 2**20:
        raise ConfigError(f"{where}: token_embedder: word_dim: expected a whole number, found {word_dim!r:.60}.")
    names = {
        "encoder": {
            "projection_dim": "projection_dim",
            "dim": "cell_dim",
            "n_layers": "n_layers",
            "cell_clip": "cell_clip",
            "proj_clip": "projection_clip",
        },
        "token_embedder": {
            "char_dim": "char_dim",
            "filters": "filters",
            "n_highway": "n_highway",
            "activation": "activation",
            "max_characters_per_token": "max_characters",
        },
    }
    data: dict[str, Any] = {
        "input": "characters+words",
        "n_words": len(symbols.words),
        "n_characters": len(symbols.characters) + 1,
    }
    for key, table in (("encoder", encoder), ("token_embedder", embedder)):
        for theirs, ours in names[key].items():
            if theirs not in table:
                raise ConfigError(f"{where}: {key}: the key {theirs!r} is missing.")
            data[ours] = table[theirs]
    return build_config(BiLMConfig, data, where), word_dim


def _read_symbols(path: Path) -> list[str]:
    """Read lines `symbol TAB index`, and return the symbols by index; "" for an index without a symbol."""
    found: dict[str, int] = {}
    largest = -1
    for number, line in enumerate(read_lines(path), 1):
        parts = line.strip().split("\t")
        symbol, index = ("\u3000", parts[0]) if len(parts) == 1 else (parts[0], parts[-1])  # strip removes U+3000
        if len(parts) > 2 or not index.isascii() or not index.isdecimal() or not int(index[:9]) < _MAX_SYMBOLS:
            raise InputError(f"{path}: line {number}: expected a symbol, a tab and a number, found {line!r:.60}.")
        found[symbol] = int(index[:9])
        largest = max(largest, found[symbol])
    if largest >= 2 * len(found) + 1000:
        raise InputError(f"{path}: expected the numbers from 0 to about {len(found)}, found {largest}.")
    symbols = [""] * (largest + 1)
    for symbol, place in found.items():
        symbols[place] = symbol
    return symbols


class _Weights:
    """The tensors of a .pkl file, each of which is used once."""

    def __init__(self, path: Path) -> None:
        self.path = require_file(path, "the weights of ELMoForManyLangs")
        check_download(path)
        try:
            self.tensors: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(self.tensors, dict):
                raise TypeError(f"found {type(self.tensors).__name__}")
        except TorchelmoError:
            raise
        except Exception as error:  # pickle and zip files are damaged in many ways
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise WeightsError(
                f"{path}: expected a state_dict with tensors only, but the file is damaged or of another kind "
                f"({reason:.200}). Download or copy it again."
            ) from error

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Return a tensor as float32, after a check of its shape and values."""
        tensor = self.tensors.get(name)
        if not isinstance(tensor, Tensor):
            raise WeightsError(f"{self.path}: expected the tensor {name!r}, as the shape requires; it is missing.")
        if tuple(tensor.shape) != shape or not tensor.dtype.is_floating_point or tensor.layout != torch.strided:
            raise WeightsError(
                f"{self.path}: {name}: expected float32 numbers of shape {shape}, as the configuration requires, found "
                f"{tensor.dtype} of shape {tuple(tensor.shape)}."
            )
        tensor = tensor.detach().to(torch.float32)
        check_finite(tensor, f"{self.path}: {name}")
        return tensor


def _convert_encoder(weights: _Weights, config: BiLMConfig, word_dim: int) -> dict[str, Tensor]:
    characters = weights("char_emb_layer.embedding.weight", config.n_characters - 1, config.char_dim)
    tensors = {"encoder.embedding": torch.cat([characters.new_zeros(1, config.char_dim), characters])}
    for i, (width, count) in enumerate(config.filters):
        weight = weights(f"convolutions.{i}.weight", count, config.char_dim, width)
        tensors[f"encoder.convolutions.{i}.weight"] = weight.contiguous()
        tensors[f"encoder.convolutions.{i}.bias"] = weights(f"convolutions.{i}.bias", count)
    dim = config.n_filters
    for i in range(config.n_highway):
        for part, columns in (("weight", [dim]), ("bias", [])):
            transform, gate = weights(f"highways._layers.{i}.{part}", 2 * dim, *columns).chunk(2)
            tensors[f"encoder.highways.{i}.transform.{part}"] = transform.contiguous()
            tensors[f"encoder.highways.{i}.carry.{part}"] = -gate  # 1 − σ(x) = σ(−x)
    projection = weights("projection.weight", config.projection_dim, word_dim + dim)
    of_word, of_characters = projection.split([word_dim, dim], dim=1)
    tensors["encoder.projection.weight"] = of_characters.contiguous()
    tensors["encoder.projection.bias"] = weights("projection.bias", config.projection_dim)
    tensors["encoder.word_vectors"] = torch.zeros(config.n_words, config.projection_dim)
    if word_dim:  # the projection of a word does not depend on its characters
        words = weights("word_emb_layer.embedding.weight", config.n_words, word_dim)
        tensors["encoder.word_vectors"] = words @ of_word.T
    return tensors


def _convert_lstms(weights: _Weights, config: BiLMConfig) -> dict[str, Tensor]:
    cell, projection = config.cell_dim, config.projection_dim
    tensors = {}
    for direction in config.directions:
        for j in range(config.n_layers):
            theirs, ours = f"{direction}_layer_{j}", f"{direction}_lstms.{j}"
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
