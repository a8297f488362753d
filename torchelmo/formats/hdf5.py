"""Reading an HDF5 file that may come from anywhere: looked over before anything is allocated, no link followed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchelmo.errors import TorchelmoError, WeightsError
from torchelmo.files import require_file
from torchelmo.tensors import check_finite

Datasets = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # name → shape and dtype
_DEEPEST = 12  # groups within groups; the official layout has five


def open_hdf5(path: Path) -> Any:
    import h5py

    require_file(path, "an official weights.hdf5")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise WeightsError(
            f"{path}: expected an HDF5 file, but it is damaged, cut short or something else ({error}). "
            "Download or copy it again."
        ) from error


def list_datasets(file: Any, path: Path) -> Datasets:
    """Name → shape and dtype of every dataset. Links that lead elsewhere are refused, not followed."""
    import h5py

    found: Datasets = {}

    def walk(group: Any, prefix: str) -> None:
        if prefix.count("/") > _DEEPEST:
            raise WeightsError(f"{path}: {prefix[:40]}…: the groups are nested too deep; does one hold itself?")
        for key in group:
            name = f"{prefix}{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise WeightsError(
                    f"{path}: {name}: expected data, found a soft or external link. Links could lead to any file "
                    "and are refused; ask for a file that holds its own data."
                )
            item = group[key]
            if isinstance(item, h5py.Group):
                walk(item, f"{name}/")
            elif not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
                raise WeightsError(f"{path}: {name}: expected a dataset stored in this file, found {item!r}.")
            else:
                found[name] = (tuple(item.shape or ()), item.dtype)

    with _explaining_damage(path):
        walk(file, "")
    return found


def read_dataset(file: Any, name: str, path: Path) -> Tensor:
    with _explaining_damage(path), np.errstate(over="ignore"):  # what overflows is not finite: see below
        tensor = torch.from_numpy(np.asarray(file[name][()], dtype=np.float32))
    check_finite(tensor, f"{path}: {name}")
    return tensor


@contextlib.contextmanager
def _explaining_damage(path: Path) -> Iterator[None]:
    """HDF5 reports damage in many ways: as an OSError, a KeyError, a name that is not UTF-8, …"""
    try:
        yield
    except TorchelmoError:
        raise
    except Exception as error:
        raise WeightsError(f"{path}: the HDF5 file is damaged or cut short ({error}). Copy it again.") from error
