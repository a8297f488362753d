"""Fuzz targets: files of vectors, usages and mean vectors, finished and unfinished, and collections of shards."""

import contextlib
import random
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from tiny_runs import sentences

import torchelmo
from fuzz.models import make_folder
from fuzz.mutate import damage, mutate_folder
from fuzz.run import SilentlyWrongError, Target
from torchelmo import Elmo
from torchelmo.analysis import usages, word_vectors
from torchelmo.analysis.usage_files import PartialUsages, UsageFile
from torchelmo.bulk import VectorFile, embed_file, embed_files, job, partial

EMBED: dict[str, Any] = {"batch_tokens": 4, "pretokenized": True}
PARQUET = [".parquet"] if find_spec("pyarrow") else []


def write_text(path: Path, n: int) -> str:
    """Write some sentences, one on each line, and return the name of the file."""
    path.write_text("".join(" ".join(tokens) + "\n" for tokens in sentences(n)))
    return str(path)


def small_elmo(folder: Path) -> Elmo:
    """Return a small model, which is saved beside the inputs."""
    make_folder(folder.parent / "model")
    return Elmo(torchelmo.load(folder.parent / "model"))


# One file


def unfinished(suffix: str) -> Target:
    """Return the target for an unfinished output of `embed`."""

    def make(folder: Path) -> tuple[Elmo, bytes]:
        write_text(folder / "text.txt", 12)
        elmo = small_elmo(folder)
        embed_file(folder / "text.txt", folder.parent / f"good{suffix}", model=elmo, **EMBED)
        append = partial.PartialOutput.append

        def interrupt(self: partial.PartialOutput, record: bytes) -> None:
            if self._n_written == 8:
                raise KeyboardInterrupt
            append(self, record)

        job.COMMIT_SECONDS = 0.0  # after every block
        partial.PartialOutput.append = interrupt  # type: ignore[method-assign]
        with contextlib.suppress(KeyboardInterrupt):
            embed_file(folder / "text.txt", folder / f"out{suffix}", model=elmo, **EMBED)
        partial.PartialOutput.append = append  # type: ignore[method-assign]
        return elmo, (folder.parent / f"good{suffix}").read_bytes()

    def mutate(folder: Path, rng: random.Random) -> str:
        inside = folder / f"out{suffix}.partial"
        return mutate_folder(inside, sorted(path.name for path in inside.iterdir() if path.name != "lock"), rng)

    def run(folder: Path, extra: tuple[Elmo, bytes], rng: random.Random) -> None:
        elmo, expected = extra
        embed_file(folder / "text.txt", folder / f"out{suffix}", model=elmo, resume=True, **EMBED)
        if (folder / f"out{suffix}").read_bytes() != expected:
            raise SilentlyWrongError("a resumed run wrote another file")

    return Target(f"embed --resume, {suffix}", make, mutate, run)


def vector_file(suffix: str) -> Target:
    """Return the target for a finished output of `embed` that is read back."""

    def read(folder: Path) -> list[Any]:
        with VectorFile(folder / f"out{suffix}") as file:
            content = [(file[line].tobytes(), file.tokens(line)) for line in range(min(len(file), 100))]
            return [len(file), file.n_tokens, file.ids, file.settings, content]

    def make(folder: Path) -> list[Any]:
        text = write_text(folder.parent / "text.txt", 6)
        embed_file(text, folder / f"out{suffix}", model=small_elmo(folder), **EMBED)
        return read(folder)

    def run(folder: Path, expected: list[Any], rng: random.Random) -> None:
        if read(folder) != expected:
            raise SilentlyWrongError("the file was accepted, and has another content")

    return Target(f"vectors in {suffix}", make, damage(pipes=False), run)


# Collections of shards


def collection(suffix: str) -> Target:
    """Return the target for a finished collection that is read back."""

    def read(folder: Path) -> list[Any]:
        with torchelmo.bulk.open(folder / "out") as rows:
            content = [(rows[i].tobytes(), rows.tokens(i), rows.id(i), rows.origin(i).row) for i in range(len(rows))]
            return [len(rows), rows.n_tokens, rows.settings, content]

    def make(folder: Path) -> list[Any]:
        text = write_text(folder.parent / "text.txt", 9)
        options = {"model": small_elmo(folder), "n_shards": 3, "file_format": suffix[1:]}
        embed_files([text], folder / "out", **options, **EMBED)
        return read(folder)

    def mutate(folder: Path, rng: random.Random) -> str:
        files = sorted(path.name for path in (folder / "out").iterdir() if path.is_file())
        return mutate_folder(folder / "out", ["manifest.json"] if rng.random() < 0.7 else files, rng)

    def run(folder: Path, expected: list[Any], rng: random.Random) -> None:
        if read(folder) != expected:
            raise SilentlyWrongError("the collection was accepted, and has another content")

    return Target(f"collection in {suffix}", make, mutate, run)


SHARDS: dict[str, Any] = {"n_shards": 3, "file_format": "npz", **EMBED}


def make_unfinished_collection(folder: Path) -> tuple[Elmo, dict[str, bytes]]:
    write_text(folder / "text.txt", 9)
    elmo = small_elmo(folder)
    embed_files([folder / "text.txt"], folder / "out", model=elmo, **SHARDS)
    expected = {path.name: path.read_bytes() for path in (folder / "out").glob("part-*")}
    for name in ("manifest.json", *expected):
        (folder / "out" / name).unlink()
    embed_files([folder / "text.txt"], folder / "out", model=elmo, part=(1, 2), **SHARDS)
    return elmo, expected


def damage_plan(folder: Path, rng: random.Random) -> str:
    out = folder / "out"
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and "lock" not in path.name)
    return mutate_folder(out, [name for name in files if "part-" not in name or "done" in name], rng)


def run_unfinished_collection(folder: Path, extra: tuple[Elmo, dict[str, bytes]], rng: random.Random) -> None:
    elmo, expected = extra
    embed_files([folder / "text.txt"], folder / "out", model=elmo, **SHARDS)
    if {path.name: path.read_bytes() for path in (folder / "out").glob("part-*")} != expected:
        raise SilentlyWrongError("the run that was continued wrote other files")
    torchelmo.bulk.open(folder / "out", check=True).close()


# Usages and mean vectors of words


def usage_file(suffix: str) -> Target:
    """Return the target for an output of `analyse usages`."""

    def read(folder: Path) -> dict[str, bytes]:
        with UsageFile(folder / f"usages{suffix}") as file:
            _ = file.settings, file.dim, file.counts()
            return {word: file[word].tobytes() for word in file.words}

    def make(folder: Path) -> dict[str, bytes]:
        text = write_text(folder.parent / "text.txt", 12)
        targets = {word: word for word in sentences(12)[0]}
        usages.collect_usages(small_elmo(folder), [text], targets, folder / f"usages{suffix}", lang=None)
        return read(folder)

    def run(folder: Path, expected: dict[str, bytes], rng: random.Random) -> None:
        if read(folder) != expected:
            raise SilentlyWrongError("the file was accepted, and has other vectors")

    return Target(f"usages in {suffix}", make, damage(pipes=False), run)


def unfinished_study(name: str, owner: Any, commit: str, collect: Callable[..., object]) -> Target:
    """Return the target for an unfinished output of `analyse usages` or `analyse words`.

    Args:
        name: The command.
        owner: The class whose method `commit` makes results safe; the run is interrupted after its second call.
        commit: The name of the method.
        collect: Called with the model, the text, the output and `resume`.
    """

    def make(folder: Path) -> tuple[Elmo, bytes]:
        text, elmo = write_text(folder / "text.txt", 40), small_elmo(folder)
        usages.COMMIT_SECONDS = word_vectors.SAVE_SECONDS = 0.0
        word_vectors._BLOCK = 20
        collect(elmo, text, folder.parent / "good.npz", resume=False)
        method, calls = getattr(owner, commit), count(1)

        def interrupt(self: Any, *arguments: Any) -> None:
            method(self, *arguments)
            if next(calls) == 2:
                raise KeyboardInterrupt

        setattr(owner, commit, interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            collect(elmo, text, folder / "out.npz", resume=False)
        setattr(owner, commit, method)
        return elmo, (folder.parent / "good.npz").read_bytes()

    def mutate(folder: Path, rng: random.Random) -> str:
        inside = folder / "out.npz.partial"
        return mutate_folder(inside, sorted(path.name for path in inside.iterdir() if path.name != "lock"), rng)

    def run(folder: Path, extra: tuple[Elmo, bytes], rng: random.Random) -> None:
        elmo, expected = extra
        collect(elmo, str(folder / "text.txt"), folder / "out.npz", resume=True)
        if (folder / "out.npz").read_bytes() != expected:
            raise SilentlyWrongError("a resumed run wrote another file")

    return Target(f"{name} --resume", make, mutate, run)


def collect_usages(elmo: Elmo, text: str, out: Path, *, resume: bool) -> None:
    targets = {word: word for word in sentences(12)[0]}
    usages.collect_usages(elmo, [text], targets, out, lang=None, batch_tokens=8, resume=resume)


def average_words(elmo: Elmo, text: str, out: Path, *, resume: bool) -> None:
    word_vectors.average_words(elmo, [text], out, min_count=1, lang=None, batch_tokens=8, resume=resume)


def output_targets() -> Iterator[Target]:
    """Yield the targets of this module."""
    for suffix in (".h5", ".npz", *PARQUET):
        yield unfinished(suffix)
        yield vector_file(suffix)
        yield collection(suffix)
    yield Target(
        "embed --out DIR/, unfinished", make_unfinished_collection, damage_plan, run_unfinished_collection, share=0.5
    )
    for suffix in (".npz", *PARQUET):
        yield usage_file(suffix)
    yield unfinished_study("analyse usages", PartialUsages, "commit_blocks", collect_usages)
    yield unfinished_study("analyse words", word_vectors._Sums, "save", average_words)
