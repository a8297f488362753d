"""Mutations of files: bytes, lines, JSON, safetensors headers and tensors, and special files. All are seeded."""

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Numbers and texts that have broken readers before.
NUMBERS: list[Any] = [-1, 0, 1, 2**31, 2**63, 2**64, 10**18, 10**30, -(10**30), 0.5, 1e308, 1e-320]
TEXTS = ["", " ", "\0", "\x1b]0;title\x07", "x" * 10_000, "/dev/zero", "../../x", "é", "日本", "NaN", "-1", "1e999"]
BINARY = {"", ".npy", ".bin", ".h5", ".npz", ".hdf5", ".pkl", ".zip", ".gz", ".tar", ".index", ".parquet", ".pt"}
LITERALS = ["NaN", "Infinity", "-Infinity", "1" * 5_000, "1e999", "[" * 20_000, '{"a":' * 5_000, '"\\ud800"']


def mutate_folder(folder: Path, files: list[str], rng: random.Random, *, pipes: bool = True) -> str:
    """Change one or two of the files in a folder and return a description of the changes."""
    changes = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        name = rng.choice(files)
        path = folder / name
        if path.is_symlink() or not path.is_file():  # an earlier change has replaced it
            continue
        changes.append(f"{name}: {mutate_file(path, rng)}")
        if path.is_fifo() and not pipes:
            path.unlink()  # readers of text wait for the writer of a pipe, as they should
    return "; ".join(changes) or "nothing"


def damage(*names: str, pipes: bool = True) -> Callable[[Path, random.Random], str]:
    """Return a mutator of these files; all files of the folder if none is named."""

    def mutate(folder: Path, rng: random.Random) -> str:
        files = names or sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        return mutate_folder(folder, list(files), rng, pipes=pipes)

    return mutate


def mutate_file(path: Path, rng: random.Random) -> str:
    """Change one file by a mutation that suits its kind, and return the name of the mutation."""
    mutations: list[Callable[[Path, random.Random], None]] = [flip_bytes, truncate, garble, special]
    if path.suffix == ".json":
        mutations = [json_value] * 8 + [json_literal] * 2 + mutations
    elif path.suffix == ".jsonl":
        mutations = [json_line] * 6 + [line] * 2 + mutations
    elif path.suffix == ".safetensors":
        mutations = [tensor_header] * 4 + [tensor_values] * 4 + mutations
    elif path.suffix in BINARY or ".data-" in path.name:
        mutations = [flip_bytes] * 4 + mutations
    else:
        mutations = [line] * 8 + mutations
    mutation = rng.choice(mutations)
    try:
        mutation(path, rng)
    except Exception:  # an earlier change has made the file unreadable for this mutation
        flip_bytes(path, rng)
    return mutation.__name__


def flip_bytes(path: Path, rng: random.Random) -> None:
    """Change a few bytes."""
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 8])):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(bytes(data))


def truncate(path: Path, rng: random.Random) -> None:
    """Cut the file short, or make it empty."""
    data = path.read_bytes()
    path.write_bytes(data[: rng.choice([0, 1, len(data) // 2, max(0, len(data) - 1), rng.randrange(len(data) + 1)])])


def garble(path: Path, rng: random.Random) -> None:
    """Insert or append bytes that do not belong there."""
    data = path.read_bytes()
    place = rng.choice([0, len(data), rng.randrange(len(data) + 1)])
    more = rng.choice([b"\xff\xfe", b"\0" * 64, rng.randbytes(32), b"<html>404</html>", b"\n\n", b"\r", data[:200]])
    path.write_bytes(data[:place] + more + data[place:])


def special(path: Path, rng: random.Random) -> None:
    """Put something else in the file's place: nothing, a folder, a link to a device, a FIFO, a link to itself."""
    path.unlink()
    kind = rng.choice(["gone", "folder", "zero", "full", "mem", "fifo", "loop"])
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind != "gone":
        path.symlink_to({"zero": "/dev/zero", "full": "/dev/full", "mem": "/proc/self/mem"}[kind])


def line(path: Path, rng: random.Random) -> None:
    """Delete, repeat, swap, lengthen or corrupt lines of a text file."""
    lines = path.read_bytes().split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(9)
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(i, lines[j])
    elif kind == 2:
        lines[i], lines[j] = lines[j], lines[i]
    elif kind == 3:
        lines[i] = lines[i] * rng.choice([2, 50, 2_000])
    elif kind == 4:
        lines[i] = lines[i].replace(b"\t", b" ") if rng.random() < 0.5 else lines[i].replace(b" ", b"\t")
    elif kind == 5:
        lines[i] = rng.choice([b"", b" ", b"\t" * 20, b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf" + lines[i]])
    elif kind == 6:
        lines[i] = rng.choice(TEXTS).encode() + lines[i]
    elif kind == 7:
        lines[i] = rng.choice(LITERALS).encode()
    else:
        words = lines[i].split(b" ")
        words[rng.randrange(len(words))] = str(rng.choice(NUMBERS)).encode()
        lines[i] = b" ".join(words)
    path.write_bytes(b"\n".join(lines))


def json_value(path: Path, rng: random.Random) -> None:
    """Replace, delete or add one value anywhere in a JSON document."""
    try:
        content = json.loads(path.read_text())
    except ValueError:
        return flip_bytes(path, rng)
    path.write_text(json.dumps(_change(content, rng)))
    return None


def json_literal(path: Path, rng: random.Random) -> None:
    """Replace one number in the text of a JSON document by something that is hard to parse."""
    text = path.read_text()
    places = [i for i, character in enumerate(text) if character.isdigit() and not text[i - 1].isdigit()] or [0]
    start = rng.choice(places)
    end = start
    while end < len(text) and text[end].isdigit():
        end += 1
    path.write_text(text[:start] + rng.choice(LITERALS) + text[end:])


def json_line(path: Path, rng: random.Random) -> None:
    """Change one value in one line of JSON lines."""
    lines = path.read_text(errors="replace").split("\n")
    i = rng.randrange(len(lines))
    try:
        lines[i] = json.dumps(_change(json.loads(lines[i]), rng))
    except ValueError:
        lines[i] = rng.choice(["{", "[]", "null", "1", '"x"', lines[i] * 2])
    path.write_text("\n".join(lines))


def tensor_header(path: Path, rng: random.Random) -> None:
    """Change the header of a safetensors file: names, shapes, dtypes, offsets, or its length."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
    names = [name for name in header if name != "__metadata__"]
    kind, name = rng.randrange(7), rng.choice(names)
    if kind == 0:
        del header[name]
    elif kind == 1:
        header[name + "x"] = header.pop(name)
    elif kind == 2:
        header[name]["shape"] = rng.choice([[], [1], [2**40], [-1], header[name]["shape"][::-1], "x"])
    elif kind == 3:
        header[name]["dtype"] = rng.choice(["F64", "F16", "I32", "I64", "U8", "BOOL", "X", 3])
    elif kind == 4:
        header[name]["data_offsets"] = rng.choice(
            [[0, 0], [0, 2**50], [8, 4], [-4, 4], header[rng.choice(names)]["data_offsets"]]
        )
    elif kind == 5:
        header = _change(header, rng)
    encoded = json.dumps(header).encode()
    length = len(encoded) if kind != 6 else rng.choice([0, 2**20, 2**62, len(encoded) + 8])
    path.write_bytes(struct.pack("<Q", length) + encoded + rest)


def tensor_values(path: Path, rng: random.Random) -> None:
    """Give one tensor NaN, Inf or huge values, another shape, or another dtype, in a well-formed file."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    kind = rng.randrange(7)
    if kind == 0 and tensor.numel() and tensor.is_floating_point():
        tensor.view(-1)[rng.randrange(tensor.numel())] = float("nan")
    elif kind == 1 and tensor.numel() and tensor.is_floating_point():
        tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice([float("inf"), -float("inf")])
    elif kind == 2 and tensor.is_floating_point():
        tensors[name] = torch.full_like(tensor, 3e38)
    elif kind == 3:
        tensors[name] = tensor.to(rng.choice([torch.int32, torch.int64, torch.bool, torch.uint8]))
    elif kind == 4:
        tensors[name] = rng.choice([torch.zeros(()), torch.zeros(1), torch.zeros(0), torch.zeros(*tensor.shape, 1)])
    elif kind == 5:
        del tensors[name]
    else:
        tensors[rng.choice(["surprise", "", name + ".x"])] = torch.zeros(2)
    save_file(tensors, path)


def garbage(rng: random.Random, depth: int = 0) -> Any:
    """Return any JSON value."""
    kind = rng.randrange(7)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return rng.choice(TEXTS)
    if kind == 2:
        return rng.choice([None, True, False])
    if kind == 3 and depth < 3:
        return [garbage(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 4 and depth < 3:
        return {rng.choice(TEXTS)[:20]: garbage(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice([1, 2, 3, 5, "a", [], {}, [["a"]], [[1, 2], [3]]])


def _change(content: Any, rng: random.Random) -> Any:
    """Return a copy of a JSON value in which one part is replaced, deleted, added or doubled."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            places.append((value, key))
            walk(item)

    content = json.loads(json.dumps(content))
    walk(content)
    if not places or rng.random() < 0.03:
        return garbage(rng)
    parent, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[rng.choice(TEXTS)[:50]] = garbage(rng)
    elif kind == 2 and isinstance(parent[key], (int, float)) and not isinstance(parent[key], bool):
        parent[key] = rng.choice([*NUMBERS, parent[key] + 1, parent[key] * 1000, -parent[key]])
    else:
        parent[key] = garbage(rng)
    return content
