"""The official layout: the names, shapes and orientations of the arrays of a biLM, and its options.json.

`official_layout` describes the arrays once, for reading and writing. TensorFlow checkpoints contain the same arrays
under other names, which `canonical_name` translates.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchelmo.bilm.config import BiLMConfig, Filters
from torchelmo.bilm.model import BiLM
from torchelmo.config import build_config, convert
from torchelmo.errors import ConfigError, WeightsError, short_repr
from torchelmo.formats.hdf5 import Datasets

OFFICIAL_N_CHARACTERS = 262
# In HDF5 files, in checkpoints, and in checkpoints of graphs for inference, which have rnn/ once more. TensorFlow
# before version 1.2 used the names weights and biases.
_LSTM_NAME = re.compile(
    r"(?:RNN_([01])/)?(?:RNN|rnn)/(?:(?:MultiRNNCell/Cell|multi_rnn_cell/cell_)(\d{1,4})/)?(?:rnn/)?"
    r"(?:LSTMCell|lstm_cell)/(W_0|kernel|weights|B|bias|biases|W_P_0|projection/(?:kernel|weights))"
)
_LSTM_PARTS = {
    "kernel": "W_0",
    "weights": "W_0",
    "bias": "B",
    "biases": "B",
    "projection/kernel": "W_P_0",
    "projection/weights": "W_P_0",
}
_OTHER_NAMES = re.compile(r"char_embed|embedding|CNN(?:_high_\d+|_proj)?/\w+|softmax/[Wb]")


class Dataset(NamedTuple):
    """One dataset of the HDF5 file, and our parameters that it contains."""

    name: str
    shape: tuple[int, ...]
    parameters: tuple[str, ...]
    unpack: Callable[[Tensor], tuple[Tensor, ...]]  # theirs -> ours
    pack: Callable[..., Tensor]  # ours -> theirs


def official_layout(config: BiLMConfig) -> Iterator[Dataset]:
    """Yield every dataset that a model of this shape has, with the names and orientations of the file."""
    projection, cell = config.projection_dim, config.cell_dim
    if config.input == "words":
        yield _unchanged("embedding", (config.n_words, projection), "encoder.embedding")
    else:
        yield from _encoder_layout(config)
    for d, direction in enumerate(config.directions):
        for j in range(config.n_layers):
            theirs, ours = f"RNN_{d}/RNN/MultiRNNCell/Cell{j}/LSTMCell", f"{direction}_lstms.{j}"
            yield Dataset(
                f"{theirs}/W_0",
                (2 * projection, 4 * cell),
                (f"{ours}.input_weight", f"{ours}.state_weight"),
                lambda w: (w[:projection].contiguous(), w[projection:].contiguous()),
                lambda of_input, of_state: torch.cat([of_input, of_state]),
            )
            yield _unchanged(f"{theirs}/B", (4 * cell,), f"{ours}.bias")
            yield _unchanged(f"{theirs}/W_P_0", (cell, projection), f"{ours}.projection")
    if config.softmax_words:
        # Not in the released files, and ignored by other readers; written so that nothing is lost.
        if not config.tied_softmax:
            yield _unchanged("softmax/W", (config.softmax_words, projection), "softmax.weight")
        yield _unchanged("softmax/b", (config.softmax_words,), "softmax.bias")


def config_from_options(options: dict[str, Any], found: Datasets, where: str) -> BiLMConfig:
    """Build a BiLMConfig from options.json; sizes that it omits are inferred from the HDF5 datasets."""
    shapes = {name: shape for name, (shape, _) in found.items()}
    softmax = _rows(shapes, "softmax/b", 0)
    lstm, at = _table(options, "lstm", where), f"{where}: lstm"
    both = any(name.startswith("RNN_1/") for name in shapes)  # released options do not say
    data: dict[str, Any] = {
        "projection_dim": _value(lstm, "projection_dim", int, at),
        "cell_dim": _value(lstm, "dim", int, at),
        "n_layers": _value(lstm, "n_layers", int, at, _count_layers(shapes)),
        "cell_clip": _value(lstm, "cell_clip", float | None, at, None) or None,  # 0 and null both mean none
        "projection_clip": _value(lstm, "proj_clip", float | None, at, None) or None,
        "residual": _value(lstm, "use_skip_connections", bool, at, False),
        "direction": "both" if _value(options, "bidirectional", bool, where, both) else "forward",
        "softmax_words": softmax,
    }
    if has_no_projection(found, data["projection_dim"], data["cell_dim"]):
        data["projection_clip"] = None  # TensorFlow clips only the output of a projection
    if options.get("char_cnn") is not None:
        data |= _character_settings(_table(options, "char_cnn", where), shapes, data["projection_dim"], where)
    else:
        n_words = _value(options, "n_tokens_vocab", int, where, _rows(shapes, "embedding", 0))
        data |= {
            "input": "words",
            "n_words": n_words,
            "tied_softmax": softmax > 0 and "softmax/W" not in shapes,
        }
    return build_config(BiLMConfig, data, where)


def options_from_shapes(found: Datasets, where: str) -> dict[str, Any]:
    """Return the options of a model that has none: the shapes of its arrays, and the settings of all published models.

    Args:
        found: The arrays under the names of `official_layout`.
        where: Their source, for error messages.

    Raises:
        WeightsError: An array is missing, or has another number of dimensions.
    """
    shapes = {name: shape for name, (shape, _) in found.items()}

    def shape(name: str, n_dims: int) -> tuple[int, ...]:
        if len(shapes.get(name, ())) != n_dims:
            raise WeightsError(
                f"{where}: expected the array {name} with {n_dims} dimensions, found {shapes.get(name, 'none')}."
            )
        return shapes[name]

    def count(pattern: str) -> int:
        return len({match[0] for name in shapes if (match := re.match(pattern, name))})

    rows, columns = shape("RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0", 2)
    options: dict[str, Any] = {
        "lstm": {
            "cell_clip": 3,
            "proj_clip": 3,
            "use_skip_connections": True,
            "n_layers": _count_layers(shapes),
            "projection_dim": rows // 2,
            "dim": columns // 4,
        },
        "bidirectional": any(name.startswith("RNN_1/") for name in shapes),
    }
    if "char_embed" not in shapes:
        return options | {"n_tokens_vocab": shape("embedding", 2)[0]}
    filters = [shape(f"CNN/W_cnn_{i}", 4) for i in range(count(r"CNN/W_cnn_\d+$"))]
    return options | {
        "char_cnn": {
            "embedding": {"dim": shape("char_embed", 2)[1]},
            "filters": [[width, n] for _, width, _, n in filters],
            "n_highway": count(r"CNN_high_\d+/"),
            "n_characters": OFFICIAL_N_CHARACTERS,
            "max_characters_per_token": 50,
            "activation": "relu",
        }
    }


def options_from_config(bilm: BiLM) -> dict[str, Any]:
    """Return the options as they were read, or make them for a model that does not come from official files."""
    if bilm.official_options is not None:
        return bilm.official_options
    config = bilm.config
    options: dict[str, Any] = {
        "lstm": {
            "cell_clip": config.cell_clip,
            "proj_clip": config.projection_clip,
            "use_skip_connections": config.residual,
            "n_layers": config.n_layers,
            "projection_dim": config.projection_dim,
            "dim": config.cell_dim,
        },
        "bidirectional": config.direction == "both",
    }
    if config.input == "words":
        return options | {"n_tokens_vocab": config.n_words}
    return options | {
        "char_cnn": {
            "embedding": {"dim": config.char_dim},
            "filters": [list(pair) for pair in config.filters],
            "n_highway": config.n_highway,
            "n_characters": OFFICIAL_N_CHARACTERS,
            "max_characters_per_token": config.max_characters,
            "activation": config.activation,
        }
    }


def canonical_name(name: str) -> str:
    """Return the name that an array has in `official_layout`.

    bilm-tf writes other names for models with one layer or one direction, and in its checkpoints.

    >>> canonical_name("rnn/LSTMCell/kernel")
    'RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0'
    """
    match = _LSTM_NAME.fullmatch(name)
    if match is None:
        return name
    direction, layer, part = match.groups()
    return f"RNN_{direction or 0}/RNN/MultiRNNCell/Cell{layer or 0}/LSTMCell/{_LSTM_PARTS.get(part, part)}"


def is_weight(name: str) -> bool:
    """Return whether an array has a name that bilm-tf gives to weights.

    >>> is_weight("CNN_proj/W_proj"), is_weight("global_step")
    (True, False)
    """
    return bool(_LSTM_NAME.fullmatch(name) or _OTHER_NAMES.fullmatch(name))


def canonical_names(names: Iterable[str], path: Path) -> dict[str, str]:
    """Return the name in the file by the name in `official_layout`; two arrays with the same name are an error."""
    found: dict[str, str] = {}
    for name in names:
        other = found.setdefault(canonical_name(name), name)
        if other != name:
            raise WeightsError(f"{path}: expected one array for each weight, found both {other!r} and {name!r}.")
    return found


def has_no_projection(found: Datasets, projection_dim: int, cell_dim: int) -> bool:
    """Return whether the LSTMs of the file have no projection: bilm-tf leaves it out if both widths are equal."""
    return projection_dim == cell_dim and not any(name.endswith("/W_P_0") for name in found)


def _encoder_layout(config: BiLMConfig) -> Iterator[Dataset]:
    yield Dataset(
        "char_embed",
        (config.n_characters - 1, config.char_dim),
        ("encoder.embedding",),
        lambda e: (torch.cat([e.new_zeros(1, e.shape[1]), e]),),  # we add row 0, for padded positions
        lambda e: e[1:],
    )
    for i, (width, count) in enumerate(config.filters):
        yield Dataset(
            f"CNN/W_cnn_{i}",
            (1, width, config.char_dim, count),
            (f"encoder.convolutions.{i}.weight",),
            lambda w: (w[0].permute(2, 1, 0).contiguous(),),
            lambda w: w.permute(2, 1, 0).unsqueeze(0),
        )
        yield _unchanged(f"CNN/b_cnn_{i}", (count,), f"encoder.convolutions.{i}.bias")
    dim = config.n_filters
    for i in range(config.n_highway):
        for part in ("carry", "transform"):
            yield _transposed(f"CNN_high_{i}/W_{part}", (dim, dim), f"encoder.highways.{i}.{part}.weight")
            yield _unchanged(f"CNN_high_{i}/b_{part}", (dim,), f"encoder.highways.{i}.{part}.bias")
    if config.char_projection:
        yield _transposed("CNN_proj/W_proj", (dim, config.projection_dim), "encoder.projection.weight")
        yield _unchanged("CNN_proj/b_proj", (config.projection_dim,), "encoder.projection.bias")


def _unchanged(name: str, shape: tuple[int, ...], parameter: str) -> Dataset:
    return Dataset(name, shape, (parameter,), lambda x: (x,), lambda x: x)


def _transposed(name: str, shape: tuple[int, ...], parameter: str) -> Dataset:
    return Dataset(name, shape, (parameter,), lambda x: (_transpose(x),), lambda x: x.T)


def _transpose(x: Tensor) -> Tensor:
    return x.T.contiguous()


def _character_settings(
    cnn: dict[str, Any], shapes: dict[str, tuple[int, ...]], projection_dim: int, where: str
) -> dict[str, Any]:
    at = f"{where}: char_cnn"
    n_characters = cnn.get("n_characters", OFFICIAL_N_CHARACTERS)
    if n_characters not in (261, 262):
        raise ConfigError(f"{at}: n_characters: expected 261 or 262, found {short_repr(n_characters)}.")
    filters = _value(cnn, "filters", Filters, at)
    # If the widths differ, a projection is needed: assume one, so that the error names the missing dataset.
    projected = "CNN_proj/W_proj" in shapes or sum(count for _, count in filters) != projection_dim
    return {
        "char_dim": _value(_table(cnn, "embedding", at), "dim", int, f"{at}: embedding"),
        "filters": filters,
        "n_highway": _value(cnn, "n_highway", int | None, at, None) or 0,
        "activation": _value(cnn, "activation", Literal["relu", "tanh"], at, "relu"),
        "max_characters": _value(cnn, "max_characters_per_token", int, at, 50),
        "n_characters": 263 if _rows(shapes, "char_embed", 261) == 262 else OFFICIAL_N_CHARACTERS,
        "char_projection": projected,
    }


def _count_layers(shapes: Iterable[str]) -> int:
    return len({match[0] for name in shapes if (match := re.match(r"RNN_0/RNN/MultiRNNCell/Cell\d+/", name))})


def _table(options: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = _value(options, key, Any, where)
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {key}: expected an object, found {short_repr(value)}.")
    return value


def _value(options: dict[str, Any], key: str, hint: Any, where: str, *default: Any) -> Any:
    """Return options[key] as the type `hint`; without a default the key is required."""
    if key in options:
        return convert(hint, options[key], f"{where}: {key}")
    if default:
        return default[0]
    raise ConfigError(f"{where}: the key {key!r} is missing; these are not the options of an official biLM.")


def _rows(shapes: dict[str, tuple[int, ...]], name: str, default: int) -> int:
    return (shapes.get(name) or (default,))[0]
