"""Measure the time and memory to load a TensorFlow checkpoint of the original model, with its softmax.

    python -m benchmarks.load_checkpoint [--words 793471] [--folder DIR]

The checkpoint has random numbers and, as that of bilm-tf, the state of Adagrad beside every variable. It is written to
a temporary folder, and loaded in a new process, whose memory is counted from before the call of `torchelmo.load`.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.common import print_header
from torchelmo import BiLMConfig
from torchelmo.formats.layout import official_layout
from torchelmo.formats.tf_bundle import crc32c, mask

Array = npt.NDArray[np.float32]
_CHECKPOINT_NAMES = {
    "RNN/MultiRNNCell/Cell": "rnn/multi_rnn_cell/cell_",
    "LSTMCell": "lstm_cell",
    "/W_0": "/kernel",
    "/B": "/bias",
    "/W_P_0": "/projection/kernel",
}


def main() -> None:
    given = parse_arguments()
    if given.worker:
        print(json.dumps(measure(given.folder)))
        return
    with tempfile.TemporaryDirectory(prefix="torchelmo-benchmark-", dir=given.folder) as name:
        folder = Path(name)
        n_bytes = write_model(folder, BiLMConfig(softmax_words=given.words))
        command = [sys.executable, "-m", "benchmarks.load_checkpoint", "--worker", "--folder", name]
        print_header(f"weights {n_bytes / 1e9:.2f} GB, as much again for Adagrad")
        print("| run | seconds | peak memory, GB | times the weights |\n|---|---|---|---|")
        for run in range(given.runs):
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds, memory = json.loads(done.stdout)
            print(f"| {run + 1} | {seconds:.1f} | {memory / 1e9:.2f} | {memory / n_bytes:.2f} |", flush=True)


def measure(folder: Path) -> tuple[float, float]:
    """Return the seconds of `load`, and by how many bytes the memory of this process grew at most."""
    import torchelmo

    torchelmo.load()  # imports everything that loading needs
    before = _memory("VmRSS")
    start = time.perf_counter()
    torchelmo.load(folder)
    return time.perf_counter() - start, _memory("VmHWM") - before


def _memory(name: str) -> float:
    """Return the current (VmRSS) or the largest (VmHWM) memory of this process in bytes."""
    # Not getrusage: its maximum includes the process that started this one.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024.0 * int(line.split()[1])
    raise SystemExit("This benchmark needs /proc/self/status, as on Linux.")


def write_model(folder: Path, config: BiLMConfig) -> int:
    """Write a checkpoint with random weights, and return their size in bytes."""
    rng = np.random.default_rng(1)
    lstm = {
        "cell_clip": config.cell_clip,
        "proj_clip": config.projection_clip,
        "use_skip_connections": config.residual,
        "n_layers": config.n_layers,
        "projection_dim": config.projection_dim,
        "dim": config.cell_dim,
    }
    cnn = {
        "embedding": {"dim": config.char_dim},
        "filters": config.filters,
        "n_highway": config.n_highway,
        "n_characters": 261,
        "max_characters_per_token": config.max_characters,
        "activation": config.activation,
    }
    options = {"lstm": lstm, "char_cnn": cnn, "bidirectional": True}
    (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
    arrays = {}
    n_bytes = 0
    for dataset in official_layout(config):
        name = dataset.name
        for old, new in _CHECKPOINT_NAMES.items():
            name = name.replace(old, new)
        arrays[f"lm/{name}"] = arrays[f"lm/{name}/Adagrad"] = dataset.shape
        n_bytes += 4 * int(np.prod(dataset.shape))
    write_checkpoint(folder / "model.ckpt-1", arrays, rng)
    return n_bytes


def write_checkpoint(prefix: Path, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> None:
    """Write NAME.index and NAME.data-00000-of-00001 with random numbers."""
    entries, offset = [(b"", _field(1, 1))], 0
    with Path(f"{prefix}.data-00000-of-00001").open("wb") as stream:
        for name, shape in sorted(shapes.items()):
            array: Array = rng.random(shape, dtype=np.float32)
            data = array.reshape(-1).view(np.uint8)
            dims = b"".join(_field(2, _field(1, size)) for size in shape)
            entry = _field(1, 1) + _field(2, dims) + _field(4, offset) + _field(5, len(data))
            entries.append((name.encode(), entry + b"\x35" + struct.pack("<I", mask(crc32c(data)))))
            stream.write(data.data)
            offset += len(data)
    Path(f"{prefix}.index").write_bytes(b"".join(_table(entries)))


def _table(entries: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Yield the parts of a LevelDB table: a block of entries, an empty block, the index, and the footer."""
    offset = 0
    handles: list[bytes] = []
    blocks = [_block(entries), _block([])]
    for i in range(3):
        content = blocks[i] if i < 2 else _block([(b"x", handles[0])])
        signed = np.frombuffer(content + b"\0", np.uint8)
        handles.append(_varint(offset) + _varint(len(content)))
        part = signed.tobytes() + struct.pack("<I", mask(crc32c(signed)))
        offset += len(part)
        yield part
    yield (handles[1] + handles[2]).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def _block(entries: list[tuple[bytes, bytes]]) -> bytes:
    parts = [_varint(0) + _varint(len(key)) + _varint(len(value)) + key + value for key, value in entries]
    return b"".join(parts) + struct.pack("<II", 0, 1)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    data = b""
    while number >= 0x80:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=793_471, help="Words of the softmax. Default: those of the model.")
    parser.add_argument("--runs", type=int, default=3, help="How often to load it.")
    parser.add_argument("--folder", type=Path, help="Where to write the checkpoint, about 4 GB. Default: /tmp.")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
