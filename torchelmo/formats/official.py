"""Read and write official files, options.json + weights.hdf5, without loss.

`build_official` also builds the models of other files that contain the same arrays, such as TensorFlow checkpoints.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.folder import MAX_CONFIG_BYTES
from torchelmo.bilm.model import BiLM
from torchelmo.errors import ConfigError, InputError, MissingFileError, OutputError, TorchelmoError, WeightsError
from torchelmo.files import atomic_write, create_hdf5, flush_to_disk, read_json, read_lines, write_json
from torchelmo.formats.hdf5 import (
    Datasets,
    check_download,
    list_datasets,
    open_hdf5,
    read_dataset,
    unfinished_download,
)
from torchelmo.formats.layout import (
    OFFICIAL_N_CHARACTERS,
    Dataset,
    canonical_names,
    config_from_options,
    has_no_projection,
    official_layout,
    options_from_config,
)
from torchelmo.runtime import release_freed_memory
from torchelmo.text.vocabulary import NOT_A_WORD, Vocabulary

log = logging.getLogger(__name__)
_VOCABULARIES = ("vocab.txt", "vocab.txt.gz")


class Source(NamedTuple):
    """The arrays of a file under the names of `official_layout`."""

    path: Path
    datasets: Datasets
    read: Callable[[str], Tensor]


def load_official(
    options: str | Path,
    weights: str | Path,
    vocabulary: str | Path | None = None,
    softmax: str | Path | None = None,
) -> BiLM:
    """Load official files, as published with the paper.

    Args:
        options: options.json, with the shape of the model.
        weights: weights.hdf5.
        vocabulary: The words of the model, one per line; may be compressed. Default: vocab.txt or vocab.txt.gz in the
            folder of the weights, if it has as many words as the model.
        softmax: A second HDF5 file, with the softmax of the language model: softmax/W and softmax/b.

    Returns:
        The model, in float32 on the CPU.

    Raises:
        ConfigError: The options have a wrong value.
        InputError: The model needs the vocabulary, but it is damaged or that of another model.
        MissingFileError: A file is missing.
        WeightsError: The weights are damaged, or do not match the options.
    """
    options, weights = Path(options), Path(weights)
    raw = read_options(options)
    with contextlib.ExitStack() as files:
        source = _open_source(weights, files)
        if softmax is not None:
            source = _add_softmax(source, _open_source(Path(softmax), files))
        bilm = build_official(raw, source, options, vocabulary)
    bilm.origin = f"official files {options.name} + {weights.name}"
    if softmax is not None:
        bilm.origin += f" + {Path(softmax).name}"
    return bilm


def build_official(raw: dict[str, Any], source: Source, options: Path, vocabulary: str | Path | None = None) -> BiLM:
    """Build a model from the arrays of a file.

    Args:
        raw: The content of options.json.
        source: The arrays.
        options: The path of options.json, for error messages.
        vocabulary: The words of the model. Default: the vocabulary in the folder of `source`, if there is one.

    Returns:
        The model, in float32 on the CPU.

    Raises:
        ConfigError: The options have a wrong value.
        InputError: The model needs the vocabulary, but it is damaged or that of another model.
        WeightsError: The arrays do not match the options.
    """
    config = config_from_options(raw, source.datasets, str(options))
    layout = list(_check_datasets(source, _layout_of_file(config, source.datasets), options))
    words = _read_vocabulary(config, source.path.parent, vocabulary)
    with torch.device("meta"):
        bilm = BiLM(config, words)
    tensors = _unpack(layout, source)
    bilm.official_options = raw
    if has_no_projection(source.datasets, config.projection_dim, config.cell_dim):
        for name in bilm.own_tensors():
            if name.endswith(".projection"):
                tensors[name] = torch.eye(config.cell_dim)
        bilm.official_options = raw | {"lstm": raw["lstm"] | {"proj_clip": None}}  # save_official writes a projection
    bilm.assign_parameters(tensors)
    release_freed_memory()
    bilm.source = str(source.path)
    return bilm


def read_parameters(config: BiLMConfig, source: Source, options: Path) -> dict[str, Tensor]:
    """Return the arrays of a file by the names of our parameters.

    Args:
        config: The shape of the model.
        source: The arrays. An identity projection, which the file does not have, is left out.
        options: The path of options.json, for error messages.

    Raises:
        WeightsError: The arrays do not match the shape.
    """
    return _unpack(list(_check_datasets(source, _layout_of_file(config, source.datasets), options)), source)


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
    if bilm.config.objective == "masked":
        raise OutputError("The official format has no masked models. Save a model folder instead.")
    if bilm.config.input == "characters+words":
        raise OutputError("The official format has no models that read characters and words. Save a folder instead.")
    if bilm.config.n_characters > OFFICIAL_N_CHARACTERS + 1:
        raise OutputError(
            f"The official format has at most {OFFICIAL_N_CHARACTERS + 1} characters, this model has "
            f"{bilm.config.n_characters}. Save a model folder instead."
        )
    ours = bilm.dequantized().own_tensors()
    with atomic_write(weights) as temporary:
        with create_hdf5(temporary) as file:
            for dataset in official_layout(bilm.config):
                tensors = [ours[name].detach().to("cpu", torch.float32) for name in dataset.parameters]
                file.create_dataset(dataset.name, data=dataset.pack(*tensors).contiguous().numpy())
        flush_to_disk(temporary)
        # A process that is killed from here on leaves no mixture of two models that can be loaded.
        Path(options).unlink(missing_ok=True)
    words = Path(weights).parent / "vocab.txt"
    if bilm.vocabulary is not None:
        bilm.vocabulary.write(words)
    else:
        words.unlink(missing_ok=True)  # of an older model
    write_json(options, options_from_config(bilm), indent=None)


def _open_source(path: Path, files: contextlib.ExitStack) -> Source:
    file = files.enter_context(open_hdf5(path))
    found = list_datasets(file, path)
    names = canonical_names(found, path)
    return Source(
        path, {ours: found[name] for ours, name in names.items()}, lambda ours: read_dataset(file, names[ours], path)
    )


def _add_softmax(weights: Source, softmax: Source) -> Source:
    for name in softmax.datasets:
        if name not in ("softmax/W", "softmax/b"):
            raise WeightsError(f"{softmax.path}: expected only softmax/W and softmax/b, found the dataset {name!r}.")
        if name in weights.datasets:
            raise WeightsError(f"{softmax.path}: {weights.path.name} has the dataset {name!r}, too. Load it alone.")
    if "softmax/b" not in softmax.datasets:
        raise WeightsError(f"{softmax.path}: expected the datasets softmax/W and softmax/b; softmax/b is missing.")
    return Source(
        weights.path,
        weights.datasets | softmax.datasets,
        lambda name: (softmax if name in softmax.datasets else weights).read(name),
    )


def _unpack(layout: Iterable[Dataset], source: Source) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for dataset in layout:
        tensors.update(zip(dataset.parameters, dataset.unpack(source.read(dataset.name))))
    return tensors


def _layout_of_file(config: BiLMConfig, found: Datasets) -> Iterator[Dataset]:
    unprojected = has_no_projection(found, config.projection_dim, config.cell_dim)
    for dataset in official_layout(config):
        if not (unprojected and dataset.name.endswith("/W_P_0")):
            yield dataset


def _read_vocabulary(config: BiLMConfig, folder: Path, given: str | Path | None) -> Vocabulary | None:
    """Read the vocabulary that was given, or the one beside the weights; a model may work without it."""
    needed = config.softmax_words or config.n_words
    damaged: list[TorchelmoError] = []
    for path in _find_vocabularies(folder, bool(needed)) if given is None else [Path(given)]:
        try:
            check_download(path)
            words = _read_words(path, needed)
        except (InputError, WeightsError) as error:
            if given is not None and isinstance(error, MissingFileError):
                raise
            damaged.append(error)
            continue
        if given is not None or not needed or len(words) == needed:
            return words
        log.warning("%s: ignored, because it has %d words and the model has %d.", path, len(words), needed)
    for problem in damaged:
        if needed:
            raise problem
        log.warning("%s The vocabulary is ignored, because the model works without it.", problem)
    return None


def _read_words(path: Path, needed: int) -> Vocabulary:
    """Read a vocabulary. bilm-tf trains with blank lines and with words that occur twice, so they are accepted."""
    try:
        return Vocabulary.read(path, strip=True)
    except MissingFileError:
        raise
    except InputError:
        if not needed:
            raise
        words = [word for line in read_lines(path) if (word := line.strip()) != NOT_A_WORD]
        if len(words) != needed:
            raise
    last = {word: row for row, word in enumerate(words)}
    unique = [word if word and last[word] == row else f"<row {row}>" for row, word in enumerate(words)]
    vocabulary = Vocabulary(unique, where=str(path))
    log.warning(
        "%s: found %d blank lines or words that occur again. As in bilm-tf, the last one of equal words is used.",
        path,
        sum(word != name for word, name in zip(words, unique)),
    )
    return vocabulary


def _find_vocabularies(folder: Path, needed: bool) -> list[Path]:
    """Return the files that may be the vocabulary; one with another name than usual only if it is the only one."""
    usual = [folder / name for name in _VOCABULARIES if (folder / name).exists()]
    if usual or not needed:
        return usual
    others = [path for path in folder.glob("*vocab*") if path.name.endswith((".txt", ".txt.gz"))]
    return others if len(others) == 1 else []


def find_options(folder: Path, beside: str = "official files") -> Path:
    """Return the options.json of a folder; published files have longer names."""
    found = sorted(folder.glob("*options*.json"))
    found = [path for path in found if path.name == "options.json"] or found
    if len(found) != 1:
        raise not_one_file(folder, "*options.json", found, beside)
    return found[0]


def not_one_file(folder: Path, expected: str, found: list[Path], beside: str = "official files") -> MissingFileError:
    """Return the error for a folder that does not have exactly one file of a kind."""
    names = ", ".join(path.name for path in found[:20]) or "none"
    if found:
        advice = " Put each model into another folder."
    else:
        advice = unfinished_download(folder) or " Copy it into the folder."
    return MissingFileError(f"{folder}: expected one {expected} in a folder of {beside}, found {names}.{advice}")


def read_options(path: Path) -> dict[str, Any]:
    """Read an official options.json."""
    check_download(path)
    options = read_json(path, "an official options.json", max_bytes=MAX_CONFIG_BYTES)
    if not isinstance(options, dict):
        raise ConfigError(f"{path}: expected a JSON object with the key 'lstm', found {type(options).__name__}.")
    return options


def _check_datasets(source: Source, layout: Iterable[Dataset], options: Path) -> Iterator[Dataset]:
    """Check the names, shapes and dtypes in the file, and yield the layout."""
    path, unused = source.path, set(source.datasets)
    for dataset in layout:
        if dataset.name not in source.datasets:
            raise WeightsError(
                f"{path}: expected the dataset {dataset.name!r}, as {options.name} requires; it is missing."
            )
        shape, dtype = source.datasets[dataset.name]
        if shape != dataset.shape:
            raise WeightsError(
                f"{path}: {dataset.name}: expected shape {dataset.shape}, as {options.name} requires, found {shape}. "
                "Do the options belong to another model?"
            )
        if dtype.kind != "f":
            raise WeightsError(f"{path}: {dataset.name}: expected float32 numbers, found {dtype}.")
        unused.remove(dataset.name)
        yield dataset
    extra = sorted(unused)
    if extra:
        raise WeightsError(
            f"{path}: found the dataset {extra[0]!r}, which {options.name} does not describe"
            f"{f' (and {len(extra) - 1} more)' if len(extra) > 1 else ''}. Do the options belong to another model?"
        )
