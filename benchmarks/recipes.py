"""Compare pre-training recipes: train variants of one configuration for the same time or text; compare perplexities.

    python -m benchmarks.recipes experiments/recipes/english-small.toml --data data/english --out runs/recipes
    python -m benchmarks.recipes experiments/recipes/muon.toml --data data/english --out runs/muon --tokens 4e5

The TOML file has a `base` (a configuration for `torchelmo pretrain`), settings `set` for all variants, and
`[[variants]]`, each with a `name` and its own `set`. Variants run one after the other on all cores, or `--jobs` at a
time with an equal share of the cores. After Ctrl-C, the same command resumes. Finished variants are not run again, so
variants can be added later.

`--tokens` trains every variant on the same number of tokens instead of for the same time. The perplexities then do not
depend on other work on the machine. Without it, a variant may set its own length, such as `steps=10000`.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common import print_header
from torchelmo.config import build_config, load_config, override, read_toml
from torchelmo.errors import ConfigError, TorchelmoError
from torchelmo.lm.config import PretrainConfig
from torchelmo.lm.loop import pretrain, read_evaluations
from torchelmo.runs.resume import Stop
from torchelmo.tasks.table.jobs import Process, run_processes
from torchelmo.tasks.table.spec import slug


@dataclass(frozen=True)
class Variant:
    name: str
    set: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipes:
    base: Path  # relative to the file
    variants: tuple[Variant, ...]
    set: tuple[str, ...] = ()


def main() -> None:
    given = parse_arguments()
    try:
        recipes = load_config(Recipes, given.config)
        base = override(read_toml(given.config.parent / recipes.base), common_settings(given), PretrainConfig)
        configs = {}
        for variant in recipes.variants:
            settings = [*recipes.set, *variant.set, f"out={given.out / slug(variant.name)}"]
            where = f"{given.config}: {variant.name}"
            config = build_config(PretrainConfig, override(base, settings, PretrainConfig), where)
            configs[variant.name] = config if given.tokens is None else with_tokens(config, given.tokens)
        if given.variant is None:
            run_all(list(configs), given.jobs)
        elif given.variant in configs:
            return run_one(configs[given.variant], f"{given.config}: {given.variant}")
        else:
            raise ConfigError(f"{given.config}: has no variant {given.variant!r}; it has {list(configs)}.")
    except TorchelmoError as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit("Stopped. Repeat the command to resume.") from None
    length = f"{given.minutes:g} minutes" if given.tokens is None else f"{given.tokens:,.0f} tokens"
    own = " unless it sets its own length" if any(config.hours is None for config in configs.values()) else ""
    print_header(f"{length} per variant{own if given.tokens is None else ''}, {given.jobs} at a time")
    print("| variant | tokens/s | M tokens | held-out perplexity | forward | backward |\n|---|---|---|---|---|---|")
    rows = [(name, read_evaluations(config.out)[-1]) for name, config in configs.items()]
    for name, found in sorted(rows, key=lambda row: row[1]["heldout"]):
        each = (found.get(f"heldout_{direction}") for direction in ("forward", "backward"))
        ways = " | ".join("–" if value is None else f"{value:.1f}" for value in each)  # a masked model has none
        print(
            f"| {name} | {found['tokens'] / found['seconds']:,.0f} | {found['tokens'] / 1e6:.2f} "
            f"| {found['heldout']:.1f} | {ways} |"
        )


def common_settings(given: argparse.Namespace) -> list[str]:
    """Return the settings that all variants share: the data, the time and the number of threads."""
    share = given.threads or max(1, (os.cpu_count() or 1) // given.jobs)
    return [f"data={given.data}", f"hours={given.minutes / 60}", f"threads={share}"]


def with_tokens(config: PretrainConfig, n_tokens: float) -> PretrainConfig:
    """Return `config` with the number of steps that read about `n_tokens`."""
    return replace(config, hours=None, steps=max(1, round(n_tokens / (config.batch_size * config.unroll))))


def run_all(names: Sequence[str], n_at_once: int) -> None:
    """Run this program once per variant. Processes that still run are stopped if one fails."""

    def start(name: str) -> Process:
        return subprocess.Popen([sys.executable, "-m", "benchmarks.recipes", *sys.argv[1:], "--variant", name])

    with closing(run_processes(names, start, n_at_once)) as ended:
        for _, process in ended:
            if process is None or process.returncode:
                raise SystemExit("A variant did not finish. Repeat the command to resume.")


def run_one(config: PretrainConfig, where: str) -> None:
    """Train one variant to its end, or resume it."""
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
    parser.add_argument("config", type=Path, help="TOML file with the base and its variants")
    parser.add_argument("--data", type=Path, required=True, help="text prepared by `torchelmo prepare`")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs, with one subfolder per variant")
    parser.add_argument("--minutes", type=float, default=6.0, help="training time per variant (default: 6)")
    parser.add_argument("--tokens", type=float, help="number of training tokens per variant, instead of --minutes")
    parser.add_argument("--threads", type=int, help="threads per variant (default: an equal share of the cores)")
    parser.add_argument("--jobs", type=int, default=1, help="number of variants to train at a time (default: 1)")
    parser.add_argument("--variant", metavar="NAME", help="train only this variant, and print no table")
    given = parser.parse_args()
    if given.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {given.jobs}")
    return given


if __name__ == "__main__":
    main()
