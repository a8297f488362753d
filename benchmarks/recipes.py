"""Recipes for pre-training: variants of one TOML, each given the same time, and what perplexity they reach.

    python -m benchmarks.recipes experiments/recipes/english-small.toml --data data/english --out runs/recipes

The file names a `base` (a TOML for `torchelmo pretrain`), what all have to `set`, and `[[variants]]`, each with a
`name` and what it has to `set`. They run one after the other on all cores, or `--jobs` of them at once, each with its
share. Ended by Ctrl-C, the same call goes on; what is finished is not run again, so that variants can be added.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import machine
from torchelmo.config import build_config, load_config, override, read_toml
from torchelmo.errors import ConfigError, TorchelmoError
from torchelmo.lm.config import PretrainConfig
from torchelmo.lm.loop import pretrain, read_evaluations
from torchelmo.runs.resume import Stop
from torchelmo.tasks.table import Process, at_once, slug


@dataclass(frozen=True)
class Variant:
    name: str
    set: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipes:
    base: Path  # beside the file
    variants: tuple[Variant, ...]
    set: tuple[str, ...] = ()


def main() -> None:
    given = parse_arguments()
    try:
        recipes = load_config(Recipes, given.config)
        base = read_toml(given.config.parent / recipes.base)
        configs = {}
        for variant in recipes.variants:
            settings = [*recipes.set, *variant.set, *settings_of_all(given), f"out={given.out / slug(variant.name)}"]
            where = f"{given.config}: {variant.name}"
            configs[variant.name] = build_config(PretrainConfig, override(base, settings, PretrainConfig), where)
        if given.variant is None:
            run_all(list(configs), given.jobs)
        elif given.variant in configs:
            return run_one(configs[given.variant], f"{given.config}: {given.variant}")
        else:
            raise ConfigError(f"{given.config}: has no variant {given.variant!r}; it has {list(configs)}.")
    except TorchelmoError as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit("Stopped. The same call goes on.") from None
    print(f"{machine()}; {given.minutes:g} minutes each, {given.jobs} at once\n")
    print("| variant | tokens/s | M tokens | held-out perplexity | forward | backward |\n|---|---|---|---|---|---|")
    rows = [(name, read_evaluations(config.out)[-1]) for name, config in configs.items()]
    for name, found in sorted(rows, key=lambda row: row[1]["heldout"]):
        print(
            f"| {name} | {found['tokens'] / found['seconds']:,.0f} | {found['tokens'] / 1e6:.2f} "
            f"| {found['heldout']:.1f} | {found['heldout_forward']:.1f} | {found['heldout_backward']:.1f} |"
        )


def settings_of_all(given: argparse.Namespace) -> list[str]:
    """The given time, and an equal share of the cores."""
    share = max(1, (os.cpu_count() or 1) // given.jobs)
    return [f"data={given.data}", f"hours={given.minutes / 60}", f"threads={share}"]


def run_all(names: Sequence[str], n_at_once: int) -> None:
    """This call again for each variant, so that runs at the same time share nothing. They end with this one."""

    def start(name: str) -> Process:
        return subprocess.Popen([sys.executable, "-m", "benchmarks.recipes", *sys.argv[1:], "--variant", name])

    with closing(at_once(names, start, n_at_once)) as ended:
        for _, process in ended:
            if process is None or process.returncode:
                raise SystemExit("A variant did not come to its end. The same call goes on.")


def run_one(config: PretrainConfig, where: str) -> None:
    """Train for its time, or for what is left of that time."""
    try:
        with Stop().on_signals() as stop:
            pretrain(
                config,
                resume=True,
                stop=stop,
                on_report=lambda report: print(f"{where}: {report.line()}", file=sys.stderr, flush=True),
            )
    except TorchelmoError as error:
        raise SystemExit(f"{where}: {error}") from error
    if stop.requested:
        raise SystemExit(f"{where}: stopped.")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="the base and its variants")
    parser.add_argument("--data", type=Path, required=True, help="what `torchelmo prepare` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs, one for each variant")
    parser.add_argument("--minutes", type=float, default=6.0, help="training time of each variant (default 6)")
    parser.add_argument("--jobs", type=int, default=1, help="variants at once, each with its share of the cores")
    parser.add_argument("--variant", metavar="NAME", help="train this one only, and print no table")
    given = parser.parse_args()
    if given.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {given.jobs}")
    return given


if __name__ == "__main__":
    main()
