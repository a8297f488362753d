"""The three files that `embed` can write, each from a finished spool, line by line."""

import json
import logging
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from torchelmo.bulk.partial import Spool
from torchelmo.files import create_hdf5
from torchelmo.progress import Advance

_logger = logging.getLogger(__name__)
Write = Callable[[Spool, Path, Advance], None]
# `sentence_to_index` is one JSON string, which a reader must hold in memory as a whole.
MOST_SENTENCE_CHARACTERS = 64 * 2**20
# The header of a safetensors file may have 100 MB: room for a million lines at 100 bytes each.
MOST_SAFETENSORS_LINES = 900_000


def write_hdf5(spool: Spool, path: Path, advance: Advance) -> None:
    """The established layout: datasets "0", "1", … and `sentence_to_index`, a JSON object."""
    import h5py

    try:
        with create_hdf5(path) as file:
            for number, array in enumerate(spool.arrays()):
                file.create_dataset(str(number), data=array)
                advance(1)
            index = _sentence_to_index(spool)
            if index is not None:
                file.create_dataset("sentence_to_index", data=[index], dtype=h5py.string_dtype())
    except (OSError, RuntimeError, ValueError) as error:
        raise _with_errno(error) from error


def write_npz(spool: Spool, path: Path, advance: Advance) -> None:
    """What numpy.savez writes: one array for each line, named by its number."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, array in enumerate(spool.arrays()):
            # A fixed date, so that equal vectors give equal files.
            member = zipfile.ZipInfo(f"{number}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
            advance(1)


def write_safetensors(spool: Spool, path: Path, advance: Advance) -> None:
    """Keys are line numbers. The data is that of the spool as it is; only the header is new."""
    dtype = {"float32": "F32", "float16": "F16"}[spool.dtype.name]
    end = 0
    with open(path, "wb") as target, open(spool.vectors, "rb") as source:
        target.write(bytes(8) + b"{")  # the length of the header goes here when it is known
        for number, line in enumerate(spool.lines()):
            begin, end = end, end + int(np.prod(line.shape)) * spool.dtype.itemsize
            entry = {"dtype": dtype, "shape": line.shape, "data_offsets": [begin, end]}
            target.write(f'{"," if number else ""}"{number}":{json.dumps(entry)}'.encode())
            advance(1)
        target.write(b"}" + b" " * (-(target.tell() + 1) % 8))  # the data begins at a multiple of eight
        length = target.tell() - 8
        shutil.copyfileobj(source, target, 2**20)
        target.seek(0)
        target.write(struct.pack("<Q", length))


FORMATS: dict[str, Write] = {
    ".h5": write_hdf5,
    ".hdf5": write_hdf5,
    ".npz": write_npz,
    ".safetensors": write_safetensors,
}


def _sentence_to_index(spool: Spool) -> str | None:
    """The first line of each text; none for blank lines. Left out where it would not fit into memory."""
    index: dict[str, str] = {}
    n_characters = 0
    for number, line in enumerate(spool.lines()):
        text = line.text.strip()
        if text and text not in index:
            index[text] = str(number)
            n_characters += len(text)
        if n_characters > MOST_SENTENCE_CHARACTERS:
            _logger.warning(
                "The text is too long for one JSON object: sentence_to_index is left out. "
                "The vectors of line N (counted from 0) are the dataset of that name."
            )
            return None
    return json.dumps(index)


def _with_errno(error: Exception) -> OSError:
    """HDF5 names the reason of a failed write only in its message: "… errno = 28, error message = '…' …"."""
    match = re.search(r"errno = (\d+), error message = '([^']*)'", str(error))
    return OSError(int(match[1]), match[2]) if match else OSError(str(error))
