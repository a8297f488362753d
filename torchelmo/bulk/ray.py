"""Embed on a Ray cluster, or on a laptop with `ray.init()` (extra `ray`).

`embed_dataset` adds vectors to any Ray Dataset; `embed_files` runs the shards of a collection, with the same files as
`torchelmo.bulk.embed_files`. In both, actors hold the model.
"""

import logging
import os
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchelmo.bulk.batches import BatchEmbedder
from torchelmo.bulk.plan import Plan, Shard, find_files
from torchelmo.bulk.shards import CollectionResult, finish_shards, hold_collection, open_plan, read_records
from torchelmo.bulk.workers import MAX_ATTEMPTS, died, failed_shards, load_mapped, make_result, save_weights, try_shard
from torchelmo.errors import OutputError, missing_package
from torchelmo.progress import progress

_logger = logging.getLogger(__name__)


def embed_dataset(
    dataset: Any,
    *,
    actors: int = 2,
    cpus_per_actor: float = 1,
    gpus_per_actor: float = 0,
    batch_size: int = 256,
    **options: Any,
) -> Any:
    """Return a Ray Dataset with the vectors of one of its columns. Nothing is computed before the result is used.

    A vector depends on its row alone, up to the rounding of float32 sums.

    Args:
        dataset: A `ray.data.Dataset`, for example of `ray.data.read_parquet` or `ray.data.read_text`.
        actors: The number of processes that hold the model.
        cpus_per_actor: The CPUs that Ray reserves for each of them, which are also its threads.
        gpus_per_actor: The GPUs that Ray reserves for each of them.
        batch_size: Rows that are embedded together.
        **options: Those of `BatchEmbedder`: model, column, layers, pool and others. On a cluster, `model` must be a
            name or a path that every machine has.

    Returns:
        The dataset with the column `vector` of type fixed_size_list; `vectors`, a list of vectors, without `pool`;
        `layer_0`, `layer_1`, … for all layers.
    """
    _import_ray()
    from ray.data import ActorPoolStrategy

    options.setdefault("threads", max(1, int(cpus_per_actor)))
    options.setdefault("device", "cuda" if gpus_per_actor else "cpu")
    return dataset.map_batches(
        BatchEmbedder,
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=ActorPoolStrategy(size=actors),
        fn_constructor_kwargs=options,
        num_cpus=cpus_per_actor,
        num_gpus=gpus_per_actor,
    )


def embed_files(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    actors: int = 2,
    cpus_per_actor: float = 1,
    gpus_per_actor: float = 0,
    **options: Any,
) -> CollectionResult:
    """Embed a collection of files: `torchelmo.bulk.embed_files` with actors of Ray instead of worker processes.

    Every shard is written once, under a name that depends on its content. An actor that dies is replaced and its shard
    is run again; after an interruption, the same call continues.

    Args:
        inputs: Files, folders and globs, on a file system that every machine of the cluster has.
        out: The output folder, on the same kind of file system.
        actors: The number of processes that hold the model.
        cpus_per_actor: The CPUs that Ray reserves for each of them, which are also its threads.
        gpus_per_actor: The GPUs that Ray reserves for each of them.
        **options: Those of `torchelmo.bulk.embed_files`, except workers, threads and part.

    Returns:
        The folder, and how much is done.

    Raises:
        InputError: Some shards failed; all others are complete.
        OutputError: The output cannot be written, or another process writes it.
    """
    ray = _import_ray()
    out = Path(out).absolute()
    given = [inputs] if isinstance(inputs, (str, Path)) else inputs
    paths = [os.path.abspath(path) for path in find_files(given, out)]
    with hold_collection(out):
        plan, elmo = open_plan(paths, out, **options)
        done = read_records(plan)
        missing = [shard for shard in plan.shards if shard.name not in done]
        already_complete = not missing and (out / "manifest.json").exists()
        failed: dict[str, str] = {}
        if missing:
            weights = save_weights(plan, elmo)
            del elmo
            runner = ray.remote(num_cpus=cpus_per_actor, num_gpus=gpus_per_actor)(ShardRunner)
            threads = max(1, int(cpus_per_actor))

            def new_actor() -> Any:
                return runner.remote(str(out), str(weights), threads)

            with progress("embed", plan.n_rows, done=plan.n_rows - sum(s.n_rows for s in missing), unit="rows") as bar:
                failed = _run(plan, missing, min(actors, len(missing)), new_actor, bar)
        if not already_complete:
            finish_shards(plan)
    if failed:
        raise failed_shards(plan, failed)
    return make_result(plan, already_complete=already_complete)


class ShardRunner:
    """An actor that holds the model and runs shards."""

    def __init__(self, folder: str, weights: str, n_threads: int) -> None:
        import torch

        torch.set_num_threads(n_threads)
        self.plan = Plan.load(folder)
        self.elmo = load_mapped(weights).to(self.plan.settings["device"])

    def run(self, number: int) -> dict[str, str]:
        """Run a shard; see `try_shard`."""
        return try_shard(self.plan, self.plan.shards[number], self.elmo)


def _run(plan: Plan, shards: list[Shard], n_actors: int, new_actor: Any, advance: Any) -> dict[str, str]:
    """Keep all actors busy, replace those that die, and return the errors of the shards that failed."""
    import ray

    numbers = {shard.name: number for number, shard in enumerate(plan.shards)}
    waiting, attempts, failed = deque(shards), Counter[str](), dict[str, str]()
    idle = [new_actor() for _ in range(n_actors)]
    running: dict[Any, tuple[Any, Shard]] = {}
    try:
        while waiting or running:
            while waiting and idle:
                actor, shard = idle.pop(), waiting.popleft()
                running[actor.run.remote(numbers[shard.name])] = actor, shard
            (ready,), _ = ray.wait(list(running), num_returns=1)
            actor, shard = running.pop(ready)
            try:
                answer = ray.get(ready)
                idle.append(actor)
            except ray.exceptions.RayTaskError:
                raise  # a mistake in the code of the actor
            except ray.exceptions.RayError:  # the actor died, or Ray ended it for lack of memory
                idle.append(new_actor())
                attempts[shard.name] += 1
                if attempts[shard.name] < MAX_ATTEMPTS:
                    _logger.warning("embed: an actor died; %s is run again.", shard.name)
                    waiting.append(shard)
                    continue
                answer = died(plan, shard)
            if "fatal" in answer:
                raise OutputError(answer["fatal"])
            if "error" in answer:
                failed[shard.name] = answer["error"]
            advance(shard.n_rows)
    finally:
        for actor in [*idle, *(actor for actor, _ in running.values())]:
            ray.kill(actor)
    return failed


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise missing_package("ray[data]", "ray") from error
    return ray
