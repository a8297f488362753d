"""Embed a collection shard by shard: plan, run one, finish. Any scheduler may run the shards, in any order, twice.

plan.json             the shards, see `bulk/plan.py`
part-…                the output files, each complete when it appears under its name
done/part-….json      what is in a file: rows, tokens, bytes, SHA-256; written after the file
failed/part-….json    why a shard failed
weights-…             a copy of the model, which worker processes map into memory
manifest.json         all files with their rows and hashes, written when all shards are there. Readers start here
"""

import contextlib
import dataclasses
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torchelmo.bulk.compute import JobSettings, make_settings, open_model
from torchelmo.bulk.job import FORMATS, write_rows
from torchelmo.bulk.plan import Plan, Shard, Source, find_files, hash_shard, plan_shards
from torchelmo.bulk.vectors import VectorFile
from torchelmo.errors import (
    InputError,
    MissingFileError,
    OutputExistsError,
    TorchelmoError,
    WrongCallError,
    short_repr,
    shorten,
)
from torchelmo.files import (
    MAX_JSON_BYTES,
    atomic_write,
    content_hash,
    hold_lock,
    os_errors_as_output_error,
    read_json,
    write_json,
)
from torchelmo.text.rows import Place, RowReader
from torchelmo.unfinished import read_record, write_record

if TYPE_CHECKING:
    from torchelmo.elmo import Elmo

MANIFEST = "torchelmo embed, manifest of a collection, version 2"
DONE = "torchelmo embed, complete shard, version 2"
MAX_MANIFEST_BYTES = 2**30
FileFormat = Literal["parquet", "h5", "npz"]
_PART_NAME = re.compile(r"part-\d{12}-[0-9a-f]{16}\.\w+")
_RECENT = 50  # shards from which the speed is estimated


class Record(NamedTuple):
    """What the file of a shard holds."""

    name: str
    first: int  # the number of its first row in the collection
    n_rows: int
    n_tokens: int
    n_bytes: int  # of the file
    sha256: str  # of the file


class CollectionResult(NamedTuple):
    """What `embed_files` wrote."""

    path: Path
    n_shards: int
    n_done: int  # shards that are complete, also those of earlier runs and other parts
    n_rows: int  # of the complete shards
    n_tokens: int
    settings: dict[str, Any]
    already_complete: bool = False  # there was nothing left to do


class Status(NamedTuple):
    """How far a collection is."""

    n_shards: int
    n_done: int
    n_rows: int  # of all shards
    n_rows_done: int
    n_tokens_done: int
    seconds_left: float | None  # None if nothing is known about the speed
    failed: dict[str, str]  # the names of shards and their errors
    complete: bool  # the manifest is written


def open_plan(
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    model: "str | Path | Elmo | None" = None,
    layers: str | int = "all",
    pool: Literal["mean", "max"] | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    precision: Literal["float32", "float16", "int8"] = "float32",
    batch_tokens: int = 2048,
    lang: str | None = None,
    pretokenized: bool = False,
    format: str | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    device: str = "auto",
    n_shards: int | None = None,
    shard_size: int | str | None = None,
    file_format: FileFormat = "parquet",
    overwrite: bool = False,
) -> "tuple[Plan, Elmo]":
    """Plan a collection, or read the plan of an earlier run, and load the model. See `embed_files` for the arguments.

    Raises:
        OutputExistsError: The folder holds other files, or a collection with other settings or another text.
    """
    out = Path(out)
    existing = _read_existing(out)
    files = find_files(inputs, out)
    if f".{file_format}" not in FORMATS:
        raise WrongCallError(f"`file_format` {file_format}: expected parquet, h5 or npz.")
    reading = {"format": format, "text_column": text_column, "id_column": id_column}
    readers = [RowReader(path, **reading) for path in files]
    if len({reader.has_tokens for reader in readers}) > 1:
        raise WrongCallError("Expected inputs of one kind, found tokenized ones (CoNLL-U, FASTA) and raw text.")
    elmo, name = open_model(model, device)
    settings = make_settings(
        elmo,
        name,
        layers=layers,
        pool=pool,
        dtype=dtype,
        precision=precision,
        batch_tokens=batch_tokens,
        state="reset",
        lang=lang,
        pretokenized=pretokenized or readers[0].has_tokens,
    )
    cut = {"shards": n_shards, "shard_size": None if shard_size is None else str(shard_size)}
    wanted = {**settings.decisive(), **reading, "out_format": file_format}
    if existing is not None and not overwrite:
        _check_same(existing, wanted, cut)
        if existing.sources == [Source.of(path) for path in files]:
            return existing, elmo
    plan = plan_shards(
        files,
        out,
        wanted,
        reading=reading,
        n_shards=n_shards,
        shard_size=shard_size,
        suffix=f".{file_format}",
    )
    plan = dataclasses.replace(plan, settings=dataclasses.asdict(settings), cut=cut)
    if existing is not None and not overwrite and existing.shards != plan.shards:
        raise OutputExistsError(
            f"{out}: was planned for other text: {_difference(existing, plan)}. Choose another `out`, or use "
            "overwrite=True: it plans again and keeps the shards whose text is the same."
        )
    with os_errors_as_output_error(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / "manifest.json").unlink(missing_ok=True)
    plan.save()
    return plan, elmo


def run_shard(plan: Plan, shard: Shard, elmo: "Elmo") -> Record:
    """Write the file of a shard, unless it is there. Equal shards give equal bytes, in any process.

    Args:
        plan: The plan.
        shard: One of its shards.
        elmo: The model of the plan.

    Returns:
        What the file holds.

    Raises:
        InputError: A row is wrong, or the text is not that of the plan any more.
        OutputError: The file could not be written.
    """
    start = time.time()
    path = plan.folder / shard.name
    if not path.exists():
        source = plan.sources[shard.source].path
        if hash_shard(plan, shard) != shard.sha256:
            raise InputError(
                f"{source}: rows {shard.start + 1:,} to {shard.stop:,} were changed after the collection was planned. "
                "Use overwrite=True: it plans again and keeps the shards whose text is the same."
            )
        with atomic_write(path) as temporary:
            rows = plan.reader(shard).rows(shard.start, shard.stop, place=Place(shard.offset, shard.line))
            write_rows(rows, temporary, elmo, JobSettings(**plan.settings), first_row=shard.first)
    with VectorFile(path) as file:
        n_rows, n_tokens = len(file), file.n_tokens
    if n_rows != shard.n_rows:
        raise InputError(f"{path}: expected the {shard.n_rows:,} rows of the plan, found {n_rows:,}. Remove the file.")
    record = Record(shard.name, shard.first, n_rows, n_tokens, path.stat().st_size, content_hash(path))
    times = {"started": start, "finished": time.time()}
    write_record(plan.folder / "done" / f"{shard.name}.json", {"format": DONE, **record._asdict(), **times})
    _failure_path(plan, shard).unlink(missing_ok=True)
    return record


def record_failure(plan: Plan, shard: Shard, error: str) -> None:
    """Remember why a shard failed, for `read_status`."""
    write_json(_failure_path(plan, shard), {"name": shard.name, "error": error}, indent=None)


def finish_shards(plan: Plan) -> bool:
    """Write the manifest if all shards are there, and remove what only a run needs. Return whether it is complete."""
    records = read_records(plan)
    if len(records) < len(plan.shards):
        return False
    content = {
        "format": MANIFEST,
        "settings": plan.settings,
        "reading": plan.reading,
        "sources": [source.path for source in plan.sources],
        "has_ids": plan.reader(plan.shards[0]).has_ids,
        "n_rows": plan.n_rows,
        "n_tokens": sum(record.n_tokens for record in records.values()),
        "shards": [
            {**records[shard.name]._asdict(), "source": shard.source, "start": shard.start} for shard in plan.shards
        ],
    }
    write_record(plan.folder / "manifest.json", content, indent=2)
    names = {shard.name for shard in plan.shards}
    for path in plan.folder.iterdir():
        if _PART_NAME.fullmatch(path.name) and path.name not in names:
            path.unlink(missing_ok=True)  # of an earlier plan
    for folder in ("done", "failed", f"weights-{plan.settings['fingerprint'][:16]}"):
        shutil.rmtree(plan.folder / folder, ignore_errors=True)
    return True


def read_records(plan: Plan) -> dict[str, Record]:
    """Return the records of all shards whose files are complete, by the names of the shards."""
    return {record.name: record for record, _ in _read_done(plan)}


def read_status(folder: str | Path) -> Status:
    """Return how far a collection is, and how long the rest will take at the speed of the last shards.

    Args:
        folder: The output folder of `embed_files`, while it runs or afterwards.

    Raises:
        InputError: The folder has no plan.
    """
    plan = Plan.load(folder)
    done = _read_done(plan)
    sizes = {shard.name: shard.n_bytes for shard in plan.shards}
    recent = sorted((times for _, times in done if times), key=lambda times: times[1])[-_RECENT:]
    names = {record.name for record, _ in done}
    left = sum(size for name, size in sizes.items() if name not in names)
    seconds: float | None = None if left else 0.0
    if left and recent:
        last = sorted((times[1], sizes[record.name]) for record, times in done if times)[-_RECENT:]
        elapsed = max(times[1] for times in recent) - min(times[0] for times in recent)
        seconds = left * elapsed / max(1, sum(size for _, size in last))
    failed = {}
    for path in sorted((plan.folder / "failed").glob("*.json")):
        with contextlib.suppress(TorchelmoError, KeyError, TypeError):
            content = read_json(path, "the record of a failure")
            if content["name"] in sizes and content["name"] not in names:
                failed[content["name"]] = str(content["error"])
    return Status(
        n_shards=len(plan.shards),
        n_done=len(done),
        n_rows=plan.n_rows,
        n_rows_done=sum(record.n_rows for record, _ in done),
        n_tokens_done=sum(record.n_tokens for record, _ in done),
        seconds_left=seconds,
        failed=failed,
        complete=(plan.folder / "manifest.json").exists() and not left,
    )


@contextlib.contextmanager
def hold_collection(folder: Path, part: tuple[int, int] | None = None) -> Iterator[None]:
    """Hold the lock of a collection, or of one of its parts, so that no second process does the same work."""
    if folder.exists() and not folder.is_dir():
        raise WrongCallError(f"`out` {folder}: expected a folder for the shards, found a file.")
    name = "lock" if part is None else f"lock-{part[0]}-of-{part[1]}"
    with os_errors_as_output_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as locks:
        locks.enter_context(hold_lock(folder / name, str(folder)))
        others = [folder / "lock"] if part is not None else sorted(folder.glob("lock-*-of-*"))
        for other in others:
            if other.exists():  # held by a run, or left behind by one that was killed
                with hold_lock(other, str(folder)):
                    pass
        yield


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Read the manifest of a finished collection.

    Raises:
        MissingFileError: The collection is not finished, or the folder holds none.
        InputError: manifest.json is not a manifest.
    """
    path = Path(folder) / "manifest.json"
    if not path.exists() and (Path(folder) / "plan.json").exists():
        raise MissingFileError(
            f"{folder}: the collection is not finished. See torchelmo embed --status {folder}, and run the same "
            "command again to continue."
        )
    return read_record(path, "the manifest of a collection", MANIFEST, max_bytes=MAX_MANIFEST_BYTES)


def _read_done(plan: Plan) -> list[tuple[Record, tuple[float, float] | None]]:
    """Return the records of complete files, and when each was started and finished, if that is known."""
    found: dict[str, tuple[Record, tuple[float, float] | None]] = {}
    wanted = {shard.name for shard in plan.shards}
    for path in (plan.folder / "done").glob("part-*.json"):
        with contextlib.suppress(TorchelmoError, KeyError, TypeError, ValueError):  # removed in this moment
            content = read_record(path, "the record of a shard", DONE, max_bytes=MAX_JSON_BYTES)
            times = float(content["started"]), float(content["finished"])
            found[content["name"]] = Record(**{name: content[name] for name in Record._fields}), times
    with contextlib.suppress(TorchelmoError, KeyError, TypeError):
        for content in read_manifest(plan.folder)["shards"]:
            record = Record(**{name: content[name] for name in Record._fields})
            found.setdefault(record.name, (record, None))
    return [(record, times) for record, times in found.values() if record.name in wanted and _is_there(plan, record)]


def _is_there(plan: Plan, record: Record) -> bool:
    try:
        return os.stat(plan.folder / record.name).st_size == record.n_bytes
    except OSError:
        return False


def _failure_path(plan: Plan, shard: Shard) -> Path:
    return plan.folder / "failed" / f"{shard.name}.json"


def _read_existing(folder: Path) -> Plan | None:
    """Return the plan of an earlier run in a folder, or None for a new or an empty folder."""
    if (folder / "plan.json").exists():
        return Plan.load(folder)
    if folder.is_dir() and any(not path.name.startswith((".", "lock")) for path in folder.iterdir()):
        raise OutputExistsError(
            f"`out` {folder}: expected a new or an empty folder, or one with an earlier run of embed; found other "
            "files. Choose another folder."
        )
    return None


def _check_same(existing: Plan, wanted: dict[str, Any], cut: dict[str, Any]) -> None:
    """Refuse to continue a run that was started with other settings."""
    settings = JobSettings(**existing.settings).decisive()
    found = {**settings, **existing.reading, "out_format": existing.shards[0].name.rpartition(".")[2]}
    if any(value is not None for value in cut.values()):
        found, wanted = {**found, **existing.cut}, {**wanted, **cut}
    for name, value in wanted.items():
        if found.get(name) != value:
            raise OutputExistsError(
                f"{existing.folder}: was started with {name} = {short_repr(found.get(name))}, this call has "
                f"{short_repr(value)}. Use the arguments of the first call, another `out`, or overwrite=True."
            )


def _difference(old: Plan, new: Plan) -> str:
    """Describe how the text of two plans differs."""
    before, now = [source.path for source in old.sources], [source.path for source in new.sources]
    if before != now:
        other = sorted(set(before) ^ set(now))
        return f"it had {len(before):,} files, now there are {len(now):,}" + (
            f" ({shorten(Path(other[0]).name)})" if other else ""
        )
    names = {shard.name for shard in old.shards}
    changed = next((shard for shard in new.shards if shard.name not in names), new.shards[-1])
    return f"{new.sources[changed.source].path} was changed near row {changed.start + 1:,}"
