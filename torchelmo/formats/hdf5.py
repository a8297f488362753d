"""Read untrusted HDF5 files: validate names and shapes before allocating, reject links, recognize failed downloads."""

import contextlib
import itertools
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchelmo.errors import TorchelmoError, WeightsError, short_repr
from torchelmo.files import require_file
from torchelmo.tensors import check_finite

Datasets = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # name → shape and dtype
UNFINISHED = (".part", ".partial", ".crdownload", ".download", ".incomplete", ".aria2", ".tmp")  # half downloads
_MAGIC = b"\x89HDF\r\n\x1a\n"
_HEAP = b"HEAP\0\0\0\0"  # the signature, and the version
_MAX_DEPTH = 12  # of nested groups; the official layout has five


def open_hdf5(path: Path) -> Any:
    """Open a file for reading; damage is a WeightsError."""
    import h5py

    require_file(path, "an official weights.hdf5", regular=True)
    check_download(path)
    _check_heaps(path)
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise WeightsError(
            f"{path}: expected an HDF5 file, but it is damaged, cut short or of another kind ({error}). "
            "Download or copy it again."
        ) from error


def _check_heaps(path: Path) -> None:
    """Raise a WeightsError if the free blocks of a heap form a ring, which HDF5 would follow until memory ends.

    A heap holds the names of a group. It has the size of its data, the first free block and the address of the data; a
    free block has the offset of the next one, 1 if there is none.
    """
    with contextlib.ExitStack() as files:
        try:
            stream = files.enter_context(path.open("rb"))
            data = files.enter_context(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError):  # h5py reports that
            return
        # Addresses count from the signature of the file, which may follow a block of the user.
        base = next((place for place in (0, *(512 << i for i in range(20))) if data[place : place + 8] == _MAGIC), 0)
        place = data.find(_HEAP)
        while place >= 0:
            header = data[place + 8 : place + 32]
            size, free, start = struct.unpack("<QQQ", header) if len(header) == 24 else (0, 1, 0)
            start += base
            seen: set[int] = set()
            while free != 1 and free < size <= len(data) and start + free + 8 <= len(data):
                if free in seen:
                    raise WeightsError(f"{path}: the HDF5 file is damaged: a heap contains a ring. Copy it again.")
                seen.add(free)
                (free,) = struct.unpack("<Q", data[start + free : start + free + 8])
            place = data.find(_HEAP, place + 1)


def check_download(path: Path) -> None:
    """Raise a WeightsError if a file is what failed downloads leave: nothing, a Git LFS pointer or an HTML page."""
    if not path.is_file():
        return  # the reader of the file reports that
    try:
        with path.open("rb") as stream:
            content = stream.read(512)
    except OSError:
        return
    if not content:
        raise WeightsError(
            f"{path}: expected the file of a model, found an empty file, as a failed download leaves it. "
            "Download or copy it again."
        )
    start = content.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"version https://git-lfs"):
        raise WeightsError(
            f"{path}: expected the file of a model, found a Git LFS pointer to it. "
            "Run `git lfs pull` in its repository."
        )
    if start.startswith((b"<!doctype html", b"<html", b"<?xml")):
        raise WeightsError(
            f"{path}: expected the file of a model, found an HTML or XML page, such as the error page of a server. "
            "Download the file again."
        )


def unfinished_download(folder: Path) -> str:
    """Return a sentence for an error message if a folder contains a half download; otherwise an empty string."""
    for path in itertools.islice(folder.iterdir() if folder.is_dir() else (), 1000):
        if path.name.endswith(UNFINISHED):
            return f" The download of {short_repr(path.name)} has not finished: download it again."
    return ""


def list_datasets(file: Any, path: Path) -> Datasets:
    """Return shape and dtype of every dataset by its name. Links to other files are refused, not followed."""
    import h5py

    found: Datasets = {}

    def walk(group: Any, prefix: str) -> None:
        if prefix.count("/") > _MAX_DEPTH:
            raise WeightsError(f"{path}: {prefix[:40]}…: groups are nested too deeply; one may contain itself.")
        for key in group:
            name = f"{prefix}{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise WeightsError(
                    f"{path}: {name}: expected data, found a soft or external link. Links are refused, "
                    "because they could point to any file."
                )
            item = group[key]
            if isinstance(item, h5py.Group):
                walk(item, f"{name}/")
            elif not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
                raise WeightsError(f"{path}: {name}: expected a dataset stored in this file, found {item!r}.")
            else:
                found[name] = (tuple(item.shape or ()), item.dtype)

    with _damage_as_weights_error(path):
        walk(file, "")
    return found


def read_dataset(file: Any, name: str, path: Path) -> Tensor:
    """Read a dataset as float32, and check that its numbers are finite."""
    with _damage_as_weights_error(path), np.errstate(over="ignore"):  # check_finite finds an overflow
        tensor = torch.from_numpy(np.asarray(file[name][()], dtype=np.float32))
    check_finite(tensor, f"{path}: {name}")
    return tensor


@contextlib.contextmanager
def _damage_as_weights_error(path: Path) -> Iterator[None]:
    """HDF5 reports damage in many ways: OSError, KeyError, names that are not UTF-8, and others."""
    try:
        yield
    except TorchelmoError:
        raise
    except Exception as error:
        raise WeightsError(f"{path}: the HDF5 file is damaged or cut short ({error}). Copy it again.") from error
