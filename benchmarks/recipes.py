"""Recipes for pre-training: variants of one TOML, each given the same time, and what perplexity they reach.

    python -m benchmarks.recipes experiments/recipes/english-small.toml --data data/english --out runs/recipes

The file names a `base` (a TOML for `torchelmo pretrain`), what all have to `set`, and `[[variants]]`, each with a
`name` and what it has to `set`. They run one after the other on all cores, or `--jobs` of them at once, each with its
share. Ended by Ctrl-C, the same call goes on; what is finished is not run again, so that variants can be added.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

from benchmarks.text import machine
from torchelmo.config import build_config, load_config, override, read_toml
from torchelmo.errors import TorchelmoError
from torchelmo.tasks.table import slug
from torchelmo.train.config import PretrainConfig
from torchelmo.train.distributed import joined
from torchelmo.train.loop import train
from torchelmo.train.metrics import read_evaluations
from torchelmo.train.run import open_run
from torchelmo.train.signals import Stop


@dataclass(frozen=True)
class Variant:
    name: str
    set: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipes:
    base: Path  # beside the file
    variants: tuple[Variant, ...]
    set: tuple[str, ...] = ()


class Run(NamedTuple):
    config: PretrainConfig
    where: str


def main() -> None:
    given = parse_arguments()
    try:
        recipes = load_config(Recipes, given.config)
        base = read_toml(given.config.parent / recipes.base)
        outs = {variant.name: given.out / slug(variant.name) for variant in recipes.variants}
        share = [f"hours={given.minutes / 60}", f"threads={max(1, (os.cpu_count() or 1) // given.jobs)}"]
        runs = []
        for variant in recipes.variants:
            settings = [*recipes.set, *variant.set, f"data={given.data}", f"out={outs[variant.name]}", *share]
            where = f"{given.config}: {variant.name}"
            runs.append(Run(build_config(PretrainConfig, override(base, settings, PretrainConfig), where), where))
        run_all(runs, given.jobs)
    except TorchelmoError as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit("Stopped. The same call goes on.") from None
    print(f"{machine()}; {given.minutes:g} minutes each, {given.jobs} at once\n")
    print("| variant | tokens/s | M tokens | held-out perplexity | forward | backward |\n|---|---|---|---|---|---|")
    rows = [(name, read_evaluations(out)[-1]) for name, out in outs.items()]
    for name, found in sorted(rows, key=lambda row: row[1]["heldout"]):
        print(
            f"| {name} | {found['tokens'] / found['seconds']:,.0f} | {found['tokens'] / 1e6:.2f} "
            f"| {found['heldout']:.1f} | {found['heldout_forward']:.1f} | {found['heldout_backward']:.1f} |"
        )


def run_all(runs: Sequence[Run], n_at_once: int) -> None:
    """Each in a process of its own, so that runs at the same time share nothing. They end with this one."""
    waiting, running = list(runs), set[SpawnProcess]()
    try:
        while waiting or running:
            while waiting and len(running) < n_at_once:
                process = multiprocessing.get_context("spawn").Process(target=run_one, args=(waiting.pop(0),))
                process.start()
                running.add(process)
            wait([process.sentinel for process in running])
            ended = {process for process in running if process.exitcode is not None}
            running -= ended
            if any(process.exitcode for process in ended):
                raise SystemExit("A variant did not come to its end. The same call goes on.")
    finally:
        for process in running:
            process.terminate()  # it saves where it stands after its step
        for process in running:
            process.join()


def run_one(run: Run) -> None:
    """Train for its time, or for what is left of that time."""
    try:
        with joined(run.config.device) as world, Stop().on_signals() as stop:
            for report in train(open_run(run.config, world, resume=True), stop):
                print(f"{run.where}: {report.line()}", file=sys.stderr, flush=True)
    except TorchelmoError as error:
        raise SystemExit(f"{run.where}: {error}") from error
    if stop.asked:
        raise SystemExit(f"{run.where}: stopped.")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="the base and its variants")
    parser.add_argument("--data", type=Path, required=True, help="what `torchelmo prepare` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs, one for each variant")
    parser.add_argument("--minutes", type=float, default=6.0, help="training time of each variant (default 6)")
    parser.add_argument("--jobs", type=int, default=1, help="variants at once, each with its share of the cores")
    given = parser.parse_args()
    if given.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {given.jobs}")
    return given


if __name__ == "__main__":
    main()
