"""Read models of ELMoForManyLangs: config.json, char.dic, word.dic, token_embedder.pkl and encoder.pkl.

They differ from official files: tokens are Unicode characters and a word, and the weights are those of
`formats.state_dict`. A model may also read characters only, or words only.
"""

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchelmo.bilm.config import PAPER_FILTERS, BiLMConfig
from torchelmo.bilm.folder import MAX_CONFIG_BYTES
from torchelmo.bilm.model import BiLM
from torchelmo.config import build_config
from torchelmo.errors import ConfigError, InputError, WeightsError
from torchelmo.files import read_json, read_lines, require_file
from torchelmo.formats.hdf5 import check_download
from torchelmo.formats.state_dict import StateDict, convert_convolutions, convert_highways, convert_lstms
from torchelmo.runtime import release_freed_memory
from torchelmo.text.characters import Symbols
from torchelmo.text.vocabulary import BEGIN, END, UNKNOWN, Vocabulary

_WHAT = "the weights of ELMoForManyLangs"
_WORD_MARKS = ("<oov>", "<bos>", "<eos>")
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
    char_dim, word_dim = (_width(shape["token_embedder"], name, where) for name in ("char_dim", "word_dim"))
    if not char_dim and not word_dim:
        raise ConfigError(f"{where}: token_embedder: expected char_dim or word_dim, found 0 for both.")
    # A model has the list of what it reads; one without word vectors treats all words alike.
    characters = _read_symbols(folder / "char.dic") if char_dim else []
    words = _read_symbols(folder / "word.dic") if word_dim else list(_WORD_MARKS)
    config = _config(shape, characters, words, str(where))
    with torch.device("meta"):
        if char_dim:
            bilm = BiLM(config, symbols=Symbols(characters, words))
        else:
            bilm = BiLM(config, _vocabulary(words, folder / "word.dic"))
    token_embedder, encoder = (StateDict(folder / f"{name}.pkl", _WHAT) for name in ("token_embedder", "encoder"))
    try:
        tensors = _convert_encoder(token_embedder, config, word_dim) | convert_lstms(encoder, config)
    except WeightsError as error:
        if shape is not _DEFAULT_SHAPE:
            raise
        raise WeightsError(
            f"{error} The file with the shape of the model, which config.json names as config_path, is not in the "
            "folder, so the shape of the published models was assumed. Copy that file into the folder."
        ) from error
    bilm.assign_parameters(tensors)
    release_freed_memory()
    bilm.origin, bilm.source = f"ELMoForManyLangs model {folder.name}", str(folder)
    return bilm


def _read_shape(folder: Path) -> tuple[dict[str, Any], Path]:
    """Read the file that config.json names, in the same folder. Default: the shape of all published models."""
    path = folder / "config.json"
    shape = read_json(path, "the config.json of ELMoForManyLangs", max_bytes=MAX_CONFIG_BYTES)
    if not isinstance(shape, dict) or not {"encoder", "token_embedder"} <= shape.keys():
        named = shape.get("config_path") if isinstance(shape, dict) else None
        if not isinstance(named, str):
            raise ConfigError(f"{path}: expected the key 'config_path', as ELMoForManyLangs writes it.")
        found = _find_inside(folder, named)
        if found is None:
            return _DEFAULT_SHAPE, path
        path, shape = found, read_json(found, "the shape of a model", max_bytes=MAX_CONFIG_BYTES)
    for key, name in (("encoder", "elmo"), ("token_embedder", "cnn")):
        table = shape.get(key) if isinstance(shape, dict) else None
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: expected an object with the key {key!r}.")
        if str(table.get("name")).lower() != name:
            raise ConfigError(f"{path}: {key}: name: expected {name!r}, found {table.get('name')!r:.60}.")
    return shape, path


def _find_inside(folder: Path, named: str) -> Path | None:
    """Return the file of this path below the folder, or of this name in it; never a file elsewhere."""
    parts = [part for part in named.replace("\\", "/").split("/") if part not in ("", ".")]
    inside = [] if ".." in parts else [folder.joinpath(*parts)]
    for path in (*inside, folder / (parts[-1] if parts else "none")):
        with contextlib.suppress(OSError, ValueError):  # a name that is too long, or has a NUL
            if path.is_file() and path.name != "config.json":
                return path
    return None


def _width(embedder: dict[str, Any], name: str, where: Path) -> int:
    """Return the width of an embedding; 0 if the model does not have it."""
    if name == "char_dim" and name not in embedder:
        raise ConfigError(f"{where}: token_embedder: the key {name!r} is missing.")
    value = embedder.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**20:
        raise ConfigError(f"{where}: token_embedder: {name}: expected a whole number, found {value!r:.60}.")
    return value


def _config(shape: dict[str, Any], characters: list[str], words: list[str], where: str) -> BiLMConfig:
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
    data: dict[str, Any] = {"input": "words", "n_words": len(words)}
    if characters:
        data |= {"input": "characters+words", "n_characters": len(characters) + 1}
    else:
        del names["token_embedder"]
    for key, table in names.items():
        for theirs, ours in table.items():
            if theirs not in shape[key]:
                raise ConfigError(f"{where}: {key}: the key {theirs!r} is missing.")
            data[ours] = shape[key][theirs]
    return build_config(BiLMConfig, data, where)


def _vocabulary(words: list[str], path: Path) -> Vocabulary:
    """Return the words of a model that reads no characters, with our names for the marks."""
    marks = dict(zip(_WORD_MARKS, (UNKNOWN, BEGIN, END)))
    return Vocabulary([marks.get(word, word) or f"<row {i}>" for i, word in enumerate(words)], where=str(path))


def _read_symbols(path: Path) -> list[str]:
    """Read lines `symbol TAB index`, and return the symbols by index; "" for an index without a symbol."""
    require_file(path, "the symbols of ELMoForManyLangs", regular=True)
    check_download(path)
    found: dict[str, int] = {}
    largest = -1
    for number, line in enumerate(read_lines(path), 1):
        parts = line.strip().split("\t")
        symbol, index = ("\u3000", parts[0]) if len(parts) == 1 else (parts[0], parts[-1])  # strip removes U+3000
        if len(parts) > 2 or not index.isascii() or not index.isdecimal() or not int(index[:9]) < _MAX_SYMBOLS:
            raise InputError(f"{path}: line {number}: expected a symbol, a tab and a number, found {line!r:.60}.")
        found[symbol] = int(index[:9])
        largest = max(largest, found[symbol])
    if not found:
        raise InputError(f"{path}: expected lines with a symbol, a tab and a number, found none.")
    if largest >= 2 * len(found) + 1000:
        raise InputError(f"{path}: expected the numbers from 0 to about {len(found)}, found {largest}.")
    symbols = [""] * (largest + 1)
    for symbol, place in found.items():
        symbols[place] = symbol
    return symbols


def _convert_encoder(weights: StateDict, config: BiLMConfig, word_dim: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    n_filters = 0
    if config.input != "words":
        n_filters = config.n_filters
        characters = weights("char_emb_layer.embedding.weight", config.n_characters - 1, config.char_dim)
        tensors["encoder.embedding"] = torch.cat([characters.new_zeros(1, config.char_dim), characters])
        tensors |= convert_convolutions(weights, config, "convolutions.{}")
        tensors |= convert_highways(weights, config, "highways._layers.{}")
    projection = weights("projection.weight", config.projection_dim, word_dim + n_filters)
    bias = weights("projection.bias", config.projection_dim).contiguous()
    of_word, of_characters = projection.split([word_dim, n_filters], dim=1)
    word_vectors = torch.zeros(config.n_words, config.projection_dim)
    if word_dim:  # the projection of a word does not depend on its characters
        word_vectors = weights("word_emb_layer.embedding.weight", config.n_words, word_dim) @ of_word.T
    if config.input == "words":
        return {"encoder.embedding": word_vectors + bias}
    return tensors | {
        "encoder.projection.weight": of_characters.contiguous(),
        "encoder.projection.bias": bias,
        "encoder.word_vectors": word_vectors,
    }
