"""Recipes for pre-training: variants of one TOML, each given the same time, and what perplexity they reach.

    python -m benchmarks.recipes experiments/recipes/english-small.toml --data data/english --out runs/recipes

The file names a `base` (a TOML for `torchelmo pretrain`), what all have to `set`, and `[[variants]]`, each with a
`name` and what it has to `set`. They run one after the other, each on all cores. Ended by Ctrl-C, the same call goes
on; what is finished is not run again, so that variants can be added.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def main() -> None:
    given = parse_arguments()
    try:
        recipes = load_config(Recipes, given.config)
        base = read_toml(given.config.parent / recipes.base)
        outs = {variant.name: given.out / slug(variant.name) for variant in recipes.variants}
        for variant in recipes.variants:
            settings = [*recipes.set, *variant.set, f"data={given.data}", f"out={outs[variant.name]}"]
            run_for(given.minutes, override(base, settings, PretrainConfig), f"{given.config}: {variant.name}")
    except TorchelmoError as error:
        raise SystemExit(str(error)) from error
    print(f"{machine()}; {given.minutes:g} minutes each\n")
    print("| variant | tokens/s | M tokens | held-out perplexity | forward | backward |\n|---|---|---|---|---|---|")
    rows = [(name, read_evaluations(out)[-1]) for name, out in outs.items()]
    for name, found in sorted(rows, key=lambda row: row[1]["heldout"]):
        print(
            f"| {name} | {found['tokens'] / found['seconds']:,.0f} | {found['tokens'] / 1e6:.2f} "
            f"| {found['heldout']:.1f} | {found['heldout_forward']:.1f} | {found['heldout_backward']:.1f} |"
        )


def run_for(minutes: float, settings: dict[str, Any], where: str) -> None:
    """Train for so long, whatever the settings say about it, or what is left of that time."""
    limited = override(settings, [f"hours={minutes / 60}"], PretrainConfig)
    config = build_config(PretrainConfig, limited, where)
    with joined(config.device) as world, Stop().on_signals() as stop:
        for report in train(open_run(config, world, resume=True), stop):
            print(f"{where}: {report.line()}", file=sys.stderr, flush=True)
    if stop.asked:
        raise SystemExit(f"{where}: stopped. The same call goes on.")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="the base and its variants")
    parser.add_argument("--data", type=Path, required=True, help="what `torchelmo prepare` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs, one for each variant")
    parser.add_argument("--minutes", type=float, default=6.0, help="training time of each variant (default 6)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
