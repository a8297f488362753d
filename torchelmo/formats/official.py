"""Read and write official files, options.json + weights.hdf5, without loss.

`official_layout` describes the format once, for both directions.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchelmo.bilm.config import BiLMConfig, Filters
from torchelmo.bilm.folder import MAX_CONFIG_BYTES
from torchelmo.bilm.model import BiLM
from torchelmo.config import build_config, convert
from torchelmo.errors import ConfigError, OutputError, WeightsError
from torchelmo.files import atomic_write, create_hdf5, read_json, write_json
from torchelmo.formats.hdf5 import Datasets, list_datasets, open_hdf5, read_dataset
from torchelmo.runtime import release_freed_memory
from torchelmo.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)
OFFICIAL_N_CHARACTERS = 262


class Dataset(NamedTuple):
    """One dataset of the HDF5 file, and our parameters that it contains."""

    name: str
    shape: tuple[int, ...]
    parameters: tuple[str, ...]
    unpack: Callable[[Tensor], tuple[Tensor, ...]]  # theirs -> ours
    pack: Callable[..., Tensor]  # ours -> theirs


def load_official(options: str | Path, weights: str | Path, vocabulary: str | Path | None = None) -> BiLM:
    """Load official files, as published with the paper.

    Args:
        options: options.json, with the shape of the model.
        weights: weights.hdf5.
        vocabulary: The words of the model, one per line. Default: vocab.txt in the folder of the weights, if there is
            one with as many words as the model.

    Returns:
        The model, in float32 on the CPU.

    Raises:
        ConfigError: The options have a wrong value.
        MissingFileError: A file is missing.
        WeightsError: The weights are damaged, or do not match the options.
    """
    options, weights = Path(options), Path(weights)
    raw = _read_options(options)
    with open_hdf5(weights) as file:
        found = list_datasets(file, weights)
        config = config_from_options(raw, found, str(options))
        layout = _check_datasets(found, official_layout(config), weights, options)
        words = _read_vocabulary(config, weights.parent / "vocab.txt", vocabulary)
        with torch.device("meta"):
            bilm = BiLM(config, words)
        tensors: dict[str, Tensor] = {}
        for dataset in layout:
            theirs = read_dataset(file, dataset.name, weights)
            tensors.update(zip(dataset.parameters, dataset.unpack(theirs)))
    bilm.assign_parameters(tensors)
    release_freed_memory()
    bilm.origin, bilm.source = f"official files {options.name} + {weights.name}", str(weights)
    bilm.official_options = raw
    return bilm


def save_official(bilm: BiLM, options: str | Path, weights: str | Path) -> None:
    """Write official files, and vocab.txt in the folder of the weights if the model has a vocabulary.

    Args:
        bilm: The model.
        options: The options.json to write.
        weights: The weights.hdf5 to write. It also contains the softmax, which other readers ignore.

    Raises:
        OutputError: The format cannot store this model, or a file cannot be written.
    """
    if bilm.config.direction == "backward":
        raise OutputError("The official format has no backward-only models. Save a model folder instead.")
    if bilm.config.n_characters > OFFICIAL_N_CHARACTERS + 1:
        raise OutputError(
            f"The official format has at most {OFFICIAL_N_CHARACTERS + 1} characters, this model has "
            f"{bilm.config.n_characters}. Save a model folder instead."
        )
    ours = bilm.own_tensors()
    with atomic_write(weights) as temporary, create_hdf5(temporary) as file:
        for dataset in official_layout(bilm.config):
            tensors = [ours[name].detach().to("cpu", torch.float32) for name in dataset.parameters]
            file.create_dataset(dataset.name, data=dataset.pack(*tensors).contiguous().numpy())
    words = Path(weights).parent / "vocab.txt"
    if bilm.vocabulary is not None:
        bilm.vocabulary.write(words)
    else:
        words.unlink(missing_ok=True)  # of an older model
    write_json(options, options_from_config(bilm), indent=None)


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
    data: dict[str, Any] = {
        "projection_dim": _value(lstm, "projection_dim", int, at),
        "cell_dim": _value(lstm, "dim", int, at),
        "n_layers": _value(lstm, "n_layers", int, at),
        "cell_clip": _value(lstm, "cell_clip", float | None, at, None) or None,  # 0 and null both mean none
        "projection_clip": _value(lstm, "proj_clip", float | None, at, None) or None,
        "residual": _value(lstm, "use_skip_connections", bool, at, False),
        "direction": "both" if _value(options, "bidirectional", bool, where, True) else "forward",
        "softmax_words": softmax,
    }
    if "char_cnn" in options:
        data |= _character_settings(_table(options, "char_cnn", where), shapes, data["projection_dim"], where)
    else:
        n_words = _value(options, "n_tokens_vocab", int, where, _rows(shapes, "embedding", 0))
        data |= {
            "input": "words",
            "n_words": n_words,
            "tied_softmax": softmax > 0 and "softmax/W" not in shapes,
        }
    return build_config(BiLMConfig, data, where)


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
        raise ConfigError(f"{at}: n_characters: expected 261 or 262, found {n_characters!r}.")
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


def _read_vocabulary(config: BiLMConfig, beside: Path, given: str | Path | None) -> Vocabulary | None:
    """Read the vocabulary that was given, or the one beside the weights."""
    if given is not None:
        return Vocabulary.read(given)
    if not beside.exists():
        return None
    words, needed = Vocabulary.read(beside), config.softmax_words or config.n_words
    if needed and len(words) != needed:
        log.warning("%s: ignored, because it has %d words and the model has %d.", beside, len(words), needed)
        return None
    return words


def _read_options(path: Path) -> dict[str, Any]:
    options = read_json(path, "an official options.json", max_bytes=MAX_CONFIG_BYTES)
    if not isinstance(options, dict):
        raise ConfigError(f"{path}: expected a JSON object with the key 'lstm', found {type(options).__name__}.")
    return options


def _table(options: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = _value(options, key, Any, where)
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {key}: expected an object, found {value!r}.")
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


def _check_datasets(
    found: Datasets,
    layout: Iterable[Dataset],
    path: Path,
    options: Path,
) -> list[Dataset]:
    """Check names, shapes and dtypes before anything is allocated, and return the layout as a list."""
    checked: list[Dataset] = []
    for dataset in layout:
        if dataset.name not in found:
            raise WeightsError(
                f"{path}: expected the dataset {dataset.name!r}, as {options.name} requires; it is missing."
            )
        shape, dtype = found[dataset.name]
        if shape != dataset.shape:
            raise WeightsError(
                f"{path}: {dataset.name}: expected shape {dataset.shape}, as {options.name} requires, found {shape}. "
                "Do the options belong to another model?"
            )
        if dtype.kind != "f":
            raise WeightsError(f"{path}: {dataset.name}: expected float32 numbers, found {dtype}.")
        checked.append(dataset)
    extra = sorted(found.keys() - {dataset.name for dataset in checked})
    if extra:
        raise WeightsError(
            f"{path}: found the dataset {extra[0]!r}, which {options.name} does not describe"
            f"{f' (and {len(extra) - 1} more)' if len(extra) > 1 else ''}. Do the options belong to another model?"
        )
    return checked
