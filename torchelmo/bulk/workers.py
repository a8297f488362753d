"""Embed a collection on one machine: `embed_files` runs its shards in this process or in worker processes.

A worker is a separate Python process: it reads the number of a shard from its standard input, runs the shard and
answers with a line of JSON. All workers map one copy of the weights into memory. The end of the input, which is also
the end of the parent, ends a worker at once.
"""

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchelmo.bulk.plan import Plan, Shard
from torchelmo.bulk.shards import (
    CollectionResult,
    finish_shards,
    hold_collection,
    open_plan,
    read_records,
    record_failure,
    run_shard,
)
from torchelmo.errors import InputError, OutputError, TorchelmoError, WrongCallError
from torchelmo.files import atomic_write, remove_empty_folders
from torchelmo.progress import Advance, count, progress

if TYPE_CHECKING:
    from torchelmo.elmo import Elmo

MAX_ATTEMPTS = 3  # of a shard whose worker dies each time
_logger = logging.getLogger(__name__)


def embed_files(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    workers: int = 1,
    threads: int | None = None,
    part: tuple[int, int] | None = None,
    **options: Any,
) -> CollectionResult:
    """Embed a collection of files, and write one file for each shard of it and a manifest.

    Run the same call again after an interruption: complete shards are kept, and the result is that of an undisturbed
    run. `torchelmo.bulk.open` reads the result.

    Args:
        inputs: Files, folders (all files in them) and globs. Each row of each file is embedded on its own.
        out: The output folder.
        workers: The number of worker processes. 1 runs the shards in this process.
        threads: The CPU threads of all workers together. Default: one for each core.
        part: (i, n) runs every n-th shard, starting with shard i of n, counted from 1. Several machines with a shared
            file system can each run one part; the last of them writes the manifest.
        **options: Those of `embed_file` except `out`, `state` and `resume`, and: `n_shards`, the number of shards;
            `shard_size`, their size in bytes of text, such as "64MB" (default: 4 MB); `file_format`, "parquet"
            (default), "h5" or "npz"; `overwrite`, to plan again if settings or text have changed. Shards whose text and
            settings are the same are kept.

    Returns:
        The folder, and how much is done.

    Raises:
        WrongCallError: The arguments do not fit together.
        OutputExistsError: The folder holds other files, or a collection with other settings or another text.
        InputError: Some shards failed. The message names the rows; all other shards are complete.
        OutputError: The output cannot be written, or another process writes it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import torchelmo.bulk
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "text.txt").write_text("I took a bow.\\nBow and arrow.\\n")
        >>> result = torchelmo.bulk.embed_files([folder / "text.txt"], folder / "vectors", layers="top", pool="mean")
        >>> result.n_rows, result.n_done
        (2, 1)
        >>> with torchelmo.bulk.open(folder / "vectors") as vectors:
        ...     vectors[1].shape
        (384,)
    """
    _check_part(part)
    if workers < 1:
        raise WrongCallError(f"`workers` {workers}: expected at least 1.")
    out = Path(out)
    created = [path for path in (out, *out.parents) if not path.exists()]
    try:
        with hold_collection(out, part):
            plan, elmo = open_plan([inputs] if isinstance(inputs, (str, Path)) else inputs, out, **options)
            mine = plan.shards if part is None else plan.shards[part[0] - 1 :: part[1]]
            done = read_records(plan)
            missing = [shard for shard in mine if shard.name not in done]
            already_complete = not missing and (out / "manifest.json").exists()
            failed: dict[str, str] = {}
            if missing:
                n_done = sum(shard.n_rows for shard in mine) - sum(shard.n_rows for shard in missing)
                with progress("embed", sum(shard.n_rows for shard in mine), done=n_done, unit="rows") as advance:
                    if workers == 1:
                        failed = _run_here(plan, missing, elmo, threads, advance)
                    else:
                        failed = _run_in_workers(plan, missing, elmo, min(workers, len(missing)), threads, advance)
            if not already_complete:
                finish_shards(plan)
    except BaseException as error:
        remove_empty_folders(created)
        if isinstance(error, KeyboardInterrupt) and (out / "plan.json").exists():
            error.add_note(f"{out}: complete shards are kept; run the same command again to continue.")
        raise
    if failed:
        raise failed_shards(plan, failed)
    return make_result(plan, already_complete=already_complete)


def make_result(plan: Plan, *, already_complete: bool = False) -> CollectionResult:
    """Return how much of a plan is done."""
    done = read_records(plan).values()
    n_rows, n_tokens = sum(record.n_rows for record in done), sum(record.n_tokens for record in done)
    return CollectionResult(plan.folder, len(plan.shards), len(done), n_rows, n_tokens, plan.settings, already_complete)


def failed_shards(plan: Plan, failed: dict[str, str]) -> InputError:
    """Return the error for shards that failed while others were completed."""
    shown = "\n".join(f"  {message}" for message in list(failed.values())[:5])
    more = f"\n  … and {len(failed) - 5:,} more" if len(failed) > 5 else ""
    return InputError(
        f"{plan.folder}: {len(failed):,} of {count(len(plan.shards), 'shards')} failed, the others are kept:\n"
        f"{shown}{more}\nCorrect the text, and run the same command with overwrite=True: it plans again and keeps the "
        "shards whose text is the same."
    )


def _check_part(part: tuple[int, int] | None) -> None:
    if part is not None and not 1 <= part[0] <= part[1]:
        raise WrongCallError(f"`part` {part[0]}/{part[1]}: expected I/N with I from 1 to N.")


def _run_here(plan: Plan, shards: list[Shard], elmo: "Elmo", threads: int | None, advance: Advance) -> dict[str, str]:
    """Run the shards one after the other, and return the errors of those that failed."""
    import torch

    failed: dict[str, str] = {}
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        for shard in shards:
            answer = try_shard(plan, shard, elmo)
            if "fatal" in answer:
                raise OutputError(answer["fatal"])
            if "error" in answer:
                failed[shard.name] = answer["error"]
            advance(shard.n_rows)
    finally:
        torch.set_num_threads(before)
    return failed


def _run_in_workers(
    plan: Plan, shards: list[Shard], elmo: "Elmo", n_workers: int, threads: int | None, advance: Advance
) -> dict[str, str]:
    """Run the shards in processes, and return the errors of those that failed."""
    share = max(1, (threads or _n_cores()) // n_workers)
    weights = save_weights(plan, elmo)
    numbers = {shard.name: number for number, shard in enumerate(plan.shards)}
    waiting: queue.SimpleQueue[Shard] = queue.SimpleQueue()
    for shard in shards:
        waiting.put(shard)
    failed: dict[str, str] = {}
    attempts: Counter[str] = Counter()
    stop = threading.Event()
    errors: list[BaseException] = []
    lock = threading.Lock()
    devices = _devices(plan.settings["device"], n_workers)

    def drive(device: str) -> None:
        """Keep one worker busy, and replace it if it dies."""
        with contextlib.ExitStack() as stack:
            worker: _Worker | None = None
            while not stop.is_set():
                try:
                    shard = waiting.get_nowait()
                except queue.Empty:
                    return
                if worker is None:
                    worker = stack.enter_context(_Worker(plan.folder, weights, share, device))
                    running.add(worker)
                    if stop.is_set():
                        return
                answer = worker.run(numbers[shard.name])
                if answer is None:
                    worker = None
                    if stop.is_set():
                        return
                    attempts[shard.name] += 1
                    if attempts[shard.name] < MAX_ATTEMPTS:
                        _logger.warning("embed: a worker died; %s is run again.", shard.name)
                        waiting.put(shard)
                        continue
                    answer = died(plan, shard)
                if "fatal" in answer:
                    raise OutputError(answer["fatal"])
                with lock:
                    if "error" in answer:
                        failed[shard.name] = answer["error"]
                    advance(shard.n_rows)

    def guarded(device: str) -> None:
        try:
            drive(device)
        except BaseException as error:  # raised again by the main thread
            errors.append(error)
            stop.set()

    running: set[_Worker] = set()
    drivers = [threading.Thread(target=guarded, args=(device,), daemon=True) for device in devices]
    try:
        for driver in drivers:
            driver.start()
        for driver in drivers:
            while driver.is_alive() and not stop.is_set():
                driver.join(0.2)  # not for ever: a signal must be able to interrupt it
    finally:
        stop.set()
        for worker in list(running):
            worker.kill()
        for driver in drivers:
            driver.join()
    if errors:
        raise errors[0]
    return failed


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _devices(kind: str, n_workers: int) -> list[str]:
    """Return a device for each worker: the GPUs in turn, or the CPU."""
    if kind != "cuda":
        return [kind] * n_workers
    import torch

    return [f"cuda:{number % torch.cuda.device_count()}" for number in range(n_workers)]


class _Worker(contextlib.AbstractContextManager["_Worker"]):
    """A worker process, seen from its parent."""

    def __init__(self, folder: Path, weights: Path, n_threads: int, device: str) -> None:
        command = [sys.executable, "-m", "torchelmo.bulk.workers", str(folder), str(weights), str(n_threads), device]
        package = Path(__file__).parents[2]  # so that the worker runs the same code
        environment = os.environ | {
            "OMP_NUM_THREADS": str(n_threads),
            "MKL_NUM_THREADS": str(n_threads),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")])),
        }
        # In a new session: Ctrl-C reaches the parent alone, which ends its workers.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )

    def run(self, number: int) -> dict[str, str] | None:
        """Run a shard and return the answer, or None if the worker died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{number}\n".encode())
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            answer: dict[str, str] | None = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            answer = None
        if answer is None:
            self.kill()
        return answer

    def kill(self) -> None:
        """End the process at once. An unfinished file has no name yet."""
        self._process.kill()
        self._process.wait()

    def __exit__(self, *error: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def try_shard(plan: Plan, shard: Shard, elmo: "Elmo") -> dict[str, str]:
    """Run a shard, and return {}, its "error", or a "fatal" error that concerns all shards."""
    try:
        run_shard(plan, shard, elmo)
    except OutputError as error:
        return {"fatal": str(error)}
    except Exception as error:
        if not isinstance(error, TorchelmoError):
            _logger.exception("embed: %s", shard.name)
        message = str(error) if isinstance(error, TorchelmoError) else f"{type(error).__name__}: {error}"
        record_failure(plan, shard, message)
        return {"error": message}
    return {}


def died(plan: Plan, shard: Shard) -> dict[str, str]:
    """Return the answer for a shard whose process died several times."""
    rows = f"{plan.sources[shard.source].path}: rows {shard.start + 1:,} to {shard.stop:,}"
    error = f"{rows}: the process died {MAX_ATTEMPTS} times. Is there enough memory?"
    record_failure(plan, shard, error)
    return {"error": error}


def save_weights(plan: Plan, elmo: "Elmo") -> Path:
    """Write the weights to the folder of the plan, for `load_mapped`, and return their folder."""
    weights = plan.folder / f"weights-{plan.settings['fingerprint'][:16]}"
    if not weights.exists():
        try:
            with atomic_write(weights) as temporary:
                elmo.bilm.save(temporary)
        except OutputError:
            if not weights.exists():  # else another part of the run was faster
                raise
    return weights


def load_mapped(weights: str | Path) -> "Elmo":
    """Load a model folder whose weights stay mapped to the file, so that all processes share their memory."""
    import torch
    from safetensors import safe_open

    from torchelmo.elmo import Elmo
    from torchelmo.formats.load import build_folder

    with torch.device("meta"):
        bilm = build_folder(weights)
    with safe_open(Path(weights) / "model.safetensors", framework="pt") as file:
        bilm.assign_parameters({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return Elmo(bilm).eval()


def _work(folder: str, weights: str, n_threads: str, device: str) -> None:
    """Be a worker: run the shards whose numbers arrive on standard input."""
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            numbers.put(int(line))
        os._exit(0)  # the parent has ended, or needs no more

    import torch

    torch.set_num_threads(int(n_threads))
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may print answers
    threading.Thread(target=listen, daemon=True).start()
    plan = Plan.load(folder)
    elmo = load_mapped(weights).to(device)
    while True:
        shard = plan.shards[numbers.get()]
        answer = try_shard(plan, shard, elmo)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _work(*sys.argv[1:])
