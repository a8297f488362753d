"""Measure how much the layer cache of a frozen biLM speeds up task training.

    python -m benchmarks.task_cache --config experiments/tasks/pos-small.toml --model runs/mine

The same training steps run with the cache and without it, in turn. The table shows medians.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks.common import print_header
from benchmarks.task_steps import start_task, take_steps
from torchelmo.tasks.trained import all_sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--config", type=Path, default=Path("experiments/tasks/pos-small.toml"), help="TOML file of a task"
    )
    parser.add_argument("--model", required=True, help="the biLM: any argument of torchelmo.load")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: 5)")
    parser.add_argument("--steps", type=int, default=20, help="steps per round (default: 20)")
    given = parser.parse_args()

    settings = ["elmo.place=input", f"elmo.model={given.model}"]
    kept = start_task(given.config, settings)
    uncached = start_task(given.config, [*settings, "elmo.memory_mb=0", "elmo.disk_mb=0"])
    rates: dict[str, list[float]] = {"cached": [], "not cached": []}
    for number in range(given.rounds):
        for name, run in (("cached", kept), ("not cached", uncached)):
            steps = take_steps(run, number + 1, given.steps)
            rates[name].append(steps.n_tokens / steps.seconds)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    task, examples = kept.setup.trained.task, kept.setup.examples
    n_tokens = sum(map(len, all_sentences(task, examples)))
    print_header(f"{given.config}: {len(examples):,} examples, {n_tokens:,} tokens")
    print("| layers | tokens/s | seconds per epoch |\n|---|---|---|")
    for name, rate in medians.items():
        print(f"| {name} | {rate:,.0f} | {n_tokens / rate:.0f} |")
    print(f"\nspeed-up: {medians['cached'] / medians['not cached']:.1f} ×")
    print(f"biLM once over all sentences: {kept.setup.bilm_seconds:.1f} s")


if __name__ == "__main__":
    main()
