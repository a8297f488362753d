"""Recipes for pre-training: variants of one TOML, each given the same time, and what perplexity they reach.

    python -m benchmarks.recipes experiments/recipes/english-small.toml --data data/english --out runs/recipes

The file names a `base` (a TOML for `torchelmo pretrain`), what all have to `set`, and `[[variants]]`, each with a
`name` and what it has to `set`. They run one after the other, each on all cores. Ended by Ctrl-C, the same call goes
on; what is finished is not run again, so that variants can be added.
"""

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.text import machine
from torchelmo.train.metrics import read_metrics


class Variant(NamedTuple):
    name: str
    set: list[str]

    @property
    def folder(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())


def main() -> None:
    given = parse_arguments()
    with given.config.open("rb") as stream:
        content = tomllib.load(stream)
    base, variants = given.config.parent / content["base"], [Variant(**each) for each in content["variants"]]
    for variant in variants:
        out = given.out / variant.folder
        settings = [f"data={given.data}", f"out={out}", f"hours={given.minutes / 60}", *content["set"], *variant.set]
        command = [sys.executable, "-m", "torchelmo", "pretrain", str(base), "--resume"]
        subprocess.run([*command, *(part for setting in settings for part in ("--set", setting))], check=True)
    print(f"{machine()}; {given.minutes:g} minutes each\n")
    print("| variant | tokens/s | M tokens | held-out perplexity | forward | backward |\n|---|---|---|---|---|---|")
    rows = [(variant, last_evaluation(given.out / variant.folder)) for variant in variants]
    for variant, found in sorted(rows, key=lambda row: row[1]["heldout"]):
        print(
            f"| {variant.name} | {found['tokens'] / found['seconds']:,.0f} | {found['tokens'] / 1e6:.2f} "
            f"| {found['heldout']:.1f} | {found['heldout_forward']:.1f} | {found['heldout_backward']:.1f} |"
        )


def last_evaluation(out: Path) -> dict[str, Any]:
    return [record for record in read_metrics(out / "metrics.jsonl") if record.get("heldout")][-1]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="the base and its variants")
    parser.add_argument("--data", type=Path, required=True, help="what `torchelmo prepare` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs, one for each variant")
    parser.add_argument("--minutes", type=float, default=6.0, help="training time of each variant (default 6)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
