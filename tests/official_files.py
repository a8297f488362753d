"""Random official files: options and arrays in the official names, made without the package."""

import copy
import json
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

Array = np.ndarray[Any, Any]
WORDS = ["</S>", "<S>", "<UNK>", "the", "bow", "and", "arrow", "a"]  # the marks need not come in our order


class Official(NamedTuple):
    options: dict[str, Any]
    arrays: dict[str, Array]

    def copy(self) -> "Official":
        return copy.deepcopy(self)

    def write(self, folder: Path) -> tuple[Path, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "options.json").write_text(json.dumps(self.options), encoding="utf-8")
        with h5py.File(folder / "weights.hdf5", "w") as file:
            for name, array in self.arrays.items():
                file.create_dataset(name, data=array)
        return folder / "options.json", folder / "weights.hdf5"


def random_official(
    seed: int = 0,
    *,
    words: int = 0,
    char_dim: int = 3,
    filters: tuple[tuple[int, int], ...] = ((1, 3), (2, 2), (4, 3)),
    n_highway: int | None = 1,
    char_projection: bool = True,
    activation: str = "relu",
    max_characters: int = 12,
    n_characters: int = 262,
    char_rows: int = 261,
    projection_dim: int = 5,
    cell_dim: int = 7,
    n_layers: int = 2,
    cell_clip: float | None = 3,
    proj_clip: float | None = 3,
    residual: bool = True,
    bidirectional: bool | None = None,
    scale: float = 0.6,
    encoder_scale: float = 0.7,
    extra: dict[str, Any] | None = None,
) -> Official:
    """A small model; `words` > 0 makes one that reads words, `scale` is the size of its LSTM weights."""
    rng = np.random.default_rng(seed)
    lstm = {
        "cell_clip": cell_clip,
        "use_skip_connections": residual,
        "n_layers": n_layers,
        "proj_clip": proj_clip,
        "projection_dim": projection_dim,
        "dim": cell_dim,
    }
    options: dict[str, Any] = {"lstm": lstm, **(extra or {})}
    if bidirectional is not None:
        options["bidirectional"] = bidirectional
    shapes: dict[str, tuple[int, ...]] = {}
    if words:
        options["n_tokens_vocab"] = words
        shapes["embedding"] = (words, projection_dim)
    else:
        options["char_cnn"] = {
            "embedding": {"dim": char_dim},
            "filters": [list(pair) for pair in filters],
            "n_characters": n_characters,
            "max_characters_per_token": max_characters,
            "activation": activation,
        }
        if n_highway is not None:
            options["char_cnn"]["n_highway"] = n_highway
        n_filters = sum(count for _, count in filters)
        shapes["char_embed"] = (char_rows, char_dim)
        for i, (width, count) in enumerate(filters):
            shapes[f"CNN/W_cnn_{i}"] = (1, width, char_dim, count)
            shapes[f"CNN/b_cnn_{i}"] = (count,)
        for i in range(n_highway or 0):
            for part in ("carry", "transform"):
                shapes[f"CNN_high_{i}/W_{part}"] = (n_filters, n_filters)
                shapes[f"CNN_high_{i}/b_{part}"] = (n_filters,)
        if char_projection:
            shapes["CNN_proj/W_proj"] = (n_filters, projection_dim)
            shapes["CNN_proj/b_proj"] = (projection_dim,)
    arrays = {name: _random(rng, shape, encoder_scale) for name, shape in shapes.items()}
    for d in range(1 if bidirectional is False else 2):
        for j in range(n_layers):
            where = f"RNN_{d}/RNN/MultiRNNCell/Cell{j}/LSTMCell"
            arrays[f"{where}/W_0"] = _random(rng, (2 * projection_dim, 4 * cell_dim), scale)
            arrays[f"{where}/B"] = _random(rng, (4 * cell_dim,), scale)
            arrays[f"{where}/W_P_0"] = _random(rng, (cell_dim, projection_dim), scale)
    return Official(options, arrays)


def read_hdf5(path: Path) -> dict[str, Array]:
    """Every dataset by its name."""
    found: dict[str, Array] = {}
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: found.update({name: item[()]} if hasattr(item, "shape") else {}))
    return found


def _random(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Array:
    return (scale * rng.standard_normal(shape)).astype(np.float32)
