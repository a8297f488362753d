"""Load the ELMo of an AllenNLP model: config.json + weights.th, as in its model.tar.gz.

Such an archive contains a model for a task. Its biLM and the mixes that were trained for the task are read; everything
else of the task is not.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.folder import MAX_CONFIG_BYTES, MixWeights
from torchelmo.bilm.model import BiLM
from torchelmo.config import build_config
from torchelmo.errors import ConfigError, WeightsError
from torchelmo.files import read_json
from torchelmo.formats.layout import config_from_options
from torchelmo.formats.state_dict import StateDict, convert_convolutions, convert_highways, convert_lstms
from torchelmo.runtime import release_freed_memory

WEIGHTS = ("weights.th", "best.th")  # of an archive, and of the folder of a training
_ENCODER = "_elmo_lstm._token_embedder."
_LSTMS = "_elmo_lstm._elmo_lstm."
_EMBEDDING = f"{_ENCODER}_char_embedding_weights"
_MAX_MIXES = 100


def load_allennlp(folder: str | Path) -> BiLM:
    """Load the biLM and the mixes of an AllenNLP model.

    Args:
        folder: A folder with config.json and weights.th.

    Returns:
        The biLM, in float32 on the CPU. `BiLM.mixes` has the weights of its mixes.

    Raises:
        ConfigError: config.json is damaged.
        MissingFileError: A file is missing.
        WeightsError: The weights are damaged, or contain no ELMo.
    """
    folder = Path(folder)
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), folder / WEIGHTS[0])
    settings = read_json(folder / "config.json", "the config.json of AllenNLP", max_bytes=16 * MAX_CONFIG_BYTES)
    weights = StateDict(path, "the weights of an AllenNLP model")
    weights.prefix = _find_prefix(weights)
    config = _config(weights, folder)
    with torch.device("meta"):
        bilm = BiLM(config)
    tensors = _convert_encoder(weights, config) | convert_lstms(weights, config, _LSTMS)
    bilm.assign_parameters(tensors)
    release_freed_memory()
    bilm.mixes = _read_mixes(weights, config, layer_norm=_uses_layer_norm(settings))
    bilm.origin, bilm.source = f"ELMo of the AllenNLP model {folder.name}", str(path)
    return bilm


def _find_prefix(weights: StateDict) -> str:
    """Return what the names of the ELMo start with, such as "_text_field_embedder.token_embedder_elmo._elmo."."""
    names = [name for name in weights.tensors if isinstance(name, str)]
    found = sorted(name.removesuffix(_EMBEDDING) for name in names if name.endswith(_EMBEDDING))
    if not found:
        listed = ", ".join(sorted(names)[:20]) or "none"
        raise WeightsError(
            f"{weights.path}: expected the parameters of ELMo, *{_EMBEDDING}; found {listed:.2000}. Was the model "
            "trained without ELMo?"
        )
    if len(found) > 1:
        raise WeightsError(f"{weights.path}: expected one ELMo, found several: {', '.join(found):.2000}.")
    return found[0]


def _config(weights: StateDict, folder: Path) -> BiLMConfig:
    """Return the shape of the biLM: that of its tensors, and the settings of all published models."""
    lstm = f"{_LSTMS}forward_layer_0"
    rows = {
        "char_embed": weights.shape(_EMBEDDING),
        "input": weights.shape(f"{lstm}.input_linearity.weight"),
        "projection": weights.shape(f"{lstm}.state_projection.weight"),
    }
    filters = [weights.shape(f"{_ENCODER}char_conv_{i}.weight") for i in range(_count(weights, "char_conv_{}.weight"))]
    if [len(shape) for shape in (*rows.values(), *filters)] != [2] * 3 + [3] * len(filters):
        raise WeightsError(f"{weights.path}: {weights.prefix}…: expected matrices and convolutions, found {rows}.")
    if rows["char_embed"][0] != 262:
        raise WeightsError(f"{weights.path}: {_EMBEDDING}: expected 262 rows, found {rows['char_embed'][0]}.")
    n_layers = 0
    while f"{weights.prefix}{_LSTMS}forward_layer_{n_layers}.input_linearity.weight" in weights.tensors:
        n_layers += 1
    options = _read_options(folder)
    data: dict[str, Any] = {
        "char_dim": rows["char_embed"][1],
        "filters": [(width, count) for count, _, width in filters],
        "n_highway": _count(weights, "_highways._layers.{}.weight"),
        "projection_dim": rows["projection"][0],
        "cell_dim": rows["projection"][1],
        "n_layers": n_layers,
    }
    if options is not None:  # the settings that shapes do not tell
        stated = config_from_options(options, {}, f"{folder}: options of ELMo")
        for name in ("cell_clip", "projection_clip", "residual", "activation", "max_characters"):
            data[name] = getattr(stated, name)
    return build_config(BiLMConfig, data, str(weights.path))


def _count(weights: StateDict, name: str) -> int:
    n = 0
    while weights.prefix + _ENCODER + name.format(n) in weights.tensors:
        n += 1
    return n


def _read_options(folder: Path) -> dict[str, Any] | None:
    """Return the options of ELMo, if the archive includes them."""
    files = sorted(folder.glob("*options*.json")) + sorted(folder.glob("fta/*options_file"))
    for path in files[:1]:
        options = read_json(path, "the options of ELMo", max_bytes=MAX_CONFIG_BYTES)
        if not isinstance(options, dict):
            raise ConfigError(f"{path}: expected a JSON object with the key 'lstm', found {type(options).__name__}.")
        return options
    return None


def _convert_encoder(weights: StateDict, config: BiLMConfig) -> dict[str, Tensor]:
    embedding = weights(_EMBEDDING, config.n_characters, config.char_dim).clone()
    embedding[0] = 0.0  # padded positions
    return {
        "encoder.embedding": embedding,
        "encoder.projection.weight": weights(
            f"{_ENCODER}_projection.weight", config.projection_dim, config.n_filters
        ).contiguous(),
        "encoder.projection.bias": weights(f"{_ENCODER}_projection.bias", config.projection_dim).contiguous(),
        **convert_convolutions(weights, config, _ENCODER + "char_conv_{}"),
        **convert_highways(weights, config, _ENCODER + "_highways._layers.{}"),
    }


def _read_mixes(weights: StateDict, config: BiLMConfig, *, layer_norm: bool) -> list[MixWeights]:
    """Return the mixes scalar_mix_0, scalar_mix_1, …, without those that only other parts of the task have."""
    mixes: list[MixWeights] = []
    while f"{weights.prefix}scalar_mix_{len(mixes)}.gamma" in weights.tensors and len(mixes) < _MAX_MIXES:
        name = f"scalar_mix_{len(mixes)}"
        scalars = [
            weights(f"{name}.scalar_parameters.{j}", *weights.shape(f"{name}.scalar_parameters.{j}")[:1]).sum()
            for j in range(config.n_layers + 1)
        ]
        gamma = weights(f"{name}.gamma", *weights.shape(f"{name}.gamma")[:1]).sum()
        mixes.append(MixWeights(tuple(map(float, scalars)), float(gamma), layer_norm))
    return mixes


def _uses_layer_norm(settings: Any) -> bool:
    """Return whether the settings of the ELMo ask for a layer norm before the mix."""
    level = [settings]
    for _ in range(12):
        for table in level:
            # A model that uses Elmo without a token embedder gives it no type.
            if isinstance(table, dict) and (table.get("type") == "elmo_token_embedder" or "options_file" in table):
                return table.get("do_layer_norm") in (True, "true", "True")
        level = [value for table in level if isinstance(table, dict) for value in table.values()]
    return False
