"""Records of finished runs: a small JSON file for git, so that another machine does not repeat them.

The file has one line for each run, by the name of the run. A record applies if its inputs are those of this machine.
An input that is not on this machine cannot be compared, and the record applies.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchelmo.config import build_config, read_toml
from torchelmo.errors import BusyError, ConfigError, MissingFileError, TorchelmoError
from torchelmo.files import atomic_write, hold_lock, make_folders, os_errors_as_output_error, read_json
from torchelmo.formats.load import find_model, load
from torchelmo.runs.checkpoint import latest_checkpoint
from torchelmo.runs.metrics import read_records
from torchelmo.runtime import processor_name
from torchelmo.tasks.runner import KIND, input_hash
from torchelmo.tasks.table.jobs import BilmJob, TaskJob, run_name
from torchelmo.tasks.table.spec import slug
from torchelmo.tasks.task import Result, check_scores

UNKNOWN = "unknown"
_HASH_DIGITS = 16  # of the hashes in the file
_LOCK_SECONDS = 60.0
# Keys of a configuration of `pretrain` that have no effect on the biLM.
_WITHOUT_EFFECT = frozenset("out threads device checkpoint_every keep log_every tensorboard".split())


@dataclass(frozen=True)
class Record:
    """A finished run, with all that a table shows of it."""

    result: Result
    history: list[float]  # the dev score after every epoch
    inputs: dict[str, str]  # the start of the hash of each input, by the setting that names it
    bilm: str  # a hash of the settings of the biLM if the table trains it, else ""
    commit: str  # of the code that trained it, or "unknown"
    machine: str  # the processor and its number of cores, or "unknown"

    def is_same_run(self, other: "Record | None") -> bool:
        """Return whether both describe one run, which may have been recorded at different commits."""
        return other is not None and dataclasses.replace(other, commit=self.commit, machine=self.machine) == self


class RecordFile:
    """The file of records.

    Args:
        path: The JSON file. It is written with the first record if it does not exist.

    Raises:
        ConfigError: The file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records = _read(path)

    def select(self, jobs: Iterable[TaskJob]) -> dict[Path, Record]:
        """Return the records that apply to the runs of a table, by the folders of the runs.

        If a biLM is not on this machine and its records are of several biLMs, those of the most frequent one apply.
        """
        hash_of_file, hash_of_model = functools.cache(_hash_of_file), functools.cache(_hash_of_model)
        selected: dict[Path, Record] = {}
        by_model: defaultdict[str, dict[Path, str]] = defaultdict(dict)
        for job in jobs:
            config, record = job.config, self._records.get(record_name(job))
            if record is None or record.bilm != _hash_of_settings(job.bilm):
                continue
            here = {"train": hash_of_file(config.train), "dev": hash_of_file(config.dev)}
            if config.words.vectors is not None:
                here["words.vectors"] = hash_of_file(config.words.vectors)
            if config.elmo.place != "none":
                here["elmo.model"] = hash_of_model(config.elmo.model, job.bilm)
                by_model[config.elmo.model][config.out] = record.inputs.get("elmo.model", "")
            if all(value is None or record.inputs.get(name) == value for name, value in here.items()):
                selected[config.out] = record
        for models in by_model.values():
            used = Counter(model for out, model in models.items() if out in selected).most_common(1)
            for out, model in models.items():
                if out in selected and model != used[0][0]:
                    del selected[out]
        return selected

    def add(
        self, runs: Iterable[tuple[TaskJob, Result]], *, trained_now: bool, bilms: Collection[BilmJob]
    ) -> dict[Path, Record]:
        """Record finished runs that are on this machine. A run that is recorded already keeps its commit and machine.

        Args:
            runs: The runs and their results.
            trained_now: Whether this process has trained them. If not, their commit and machine are not known.
            bilms: The biLMs of the table that have the settings of their files. A run with another biLM of the table
                is not written to the file.

        Returns:
            The records by the folders of the runs.

        Raises:
            ConfigError: The file has been damaged in the meantime.
            OutputError: The file cannot be written, or other processes keep it locked for a minute.
        """
        commit, machine = (find_commit(), machine_name()) if trained_now else (UNKNOWN, UNKNOWN)
        records, new = {}, {}
        for job, result in runs:
            name, out = record_name(job), job.config.out
            checkpoint = latest_checkpoint(out, KIND)
            assert checkpoint is not None
            inputs = {key: value[:_HASH_DIGITS] for key, value in checkpoint.inputs.items()}
            history = read_history(out, result.metric)
            record = Record(result, history, inputs, _hash_of_settings(job.bilm), commit, machine)
            if record.is_same_run(self._records.get(name)):
                record = self._records[name]
            elif job.bilm is None or job.bilm in bilms:
                new[name] = record
            records[out] = record
        if new:
            self._write(new)
        return records

    def _write(self, new: dict[str, Record]) -> None:
        with _wait_for_lock(self.path):
            known = _read(self.path)  # other processes may have added records
            new = {name: record for name, record in new.items() if not record.is_same_run(known.get(name))}
            self._records = known | new
            lines = [
                f"{json.dumps(name)}: {json.dumps(dataclasses.asdict(record), sort_keys=True)}"
                for name, record in sorted(self._records.items())
            ]
            with atomic_write(self.path) as temporary:
                temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def record_name(job: TaskJob) -> str:
    """Return the name of a run in the file: that of its settings, without the folder for biLMs of the table."""
    config = job.config
    if job.bilm is not None:
        config = dataclasses.replace(config, elmo=dataclasses.replace(config.elmo, model=slug(job.bilm.file.stem)))
    return run_name(config)


def read_history(folder: Path, metric: str) -> list[float]:
    """Return the dev scores after every epoch of the run in a folder."""
    return [float(record["scores"][metric]) for record in read_records(folder / "epochs.jsonl")]


def find_commit() -> str:
    """Return the commit of the checkout that this package is in, or "unknown" if it is installed elsewhere."""
    package = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(package), "rev-parse", "--show-toplevel", "--short", "HEAD"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    except OSError:  # git is not installed
        return UNKNOWN
    return lines[1] if len(lines) == 2 and Path(lines[0]).resolve() == package.parent else UNKNOWN


def machine_name() -> str:
    """Return the processor and the number of cores of this machine."""
    return f"{processor_name()}, {os.cpu_count()} cores"


def _read(path: Path) -> dict[str, Record]:
    if not path.exists():
        return {}
    try:
        content = read_json(path, "records of finished runs")
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: expected records by the names of runs, found a {type(content).__name__}.")
        records = {}
        for name, plain in content.items():
            records[name] = build_config(Record, plain, where=f"{path}: {name:.60}")
            check_scores(records[name].result, f"{path}: {name:.60}")
    except (ConfigError, MissingFileError) as error:
        raise ConfigError(
            f"{error} The file of records is damaged. Restore it, for example with `git checkout -- {path}`, or delete "
            "it: finished runs on this machine are recorded again."
        ) from error
    return records


def _hash_of_settings(bilm: BilmJob | None) -> str:
    if bilm is None:
        return ""
    settings = {key: value for key, value in read_toml(bilm.file).items() if key not in _WITHOUT_EFFECT}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:_HASH_DIGITS]


def _hash_of_file(path: Path) -> str | None:
    return input_hash(path)[:_HASH_DIGITS] if path.exists() else None


def _hash_of_model(model: str, bilm: BilmJob | None) -> str | None:
    """Return a hash of a biLM on this machine: None if there is none, "" if it cannot be loaded."""
    if bilm is not None and not bilm.exists():
        return None
    try:
        find_model(model or None)
        return load(model or None).fingerprint()[:_HASH_DIGITS]
    except MissingFileError:
        return None
    except TorchelmoError:  # the run that needs it reports the error
        return ""


@contextlib.contextmanager
def _wait_for_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file; wait for other processes that hold it for the moment of a write."""
    with os_errors_as_output_error(path):
        make_folders(path.parent)
    deadline = time.monotonic() + _LOCK_SECONDS
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(hold_lock(path.with_name(f".{path.name}.lock"), str(path)))
                break
            except BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        yield
