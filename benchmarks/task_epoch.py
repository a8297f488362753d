"""Estimate the duration of a task's training epoch from a few training steps.

    python -m benchmarks.task_epoch experiments/tasks/nli.toml --examples 549367 --set elmo.place=none \\
        --set train=data/tasks/snli_small/train.jsonl --set dev=data/tasks/snli_small/dev.jsonl

The data may be a sample: `--examples` gives the number of examples of the whole training set.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks.common import print_header
from benchmarks.task_steps import start_task, take_steps
from benchmarks.worker import peak_memory
from torchelmo.runs.metrics import duration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="TOML file of a task")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--examples", type=int, help="examples per epoch (default: those of the training data)")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: 5)")
    parser.add_argument("--steps", type=int, default=4, help="steps per round (default: 4)")
    given = parser.parse_args()

    run = start_task(given.config, given.set)
    take_steps(run, 0, 1)  # warm-up
    rounds = [take_steps(run, number + 1, given.steps) for number in range(given.rounds)]
    rate = statistics.median(steps.n_examples / steps.seconds for steps in rounds)
    n_examples = given.examples or len(run.setup.examples)
    n_parameters = sum(parameter.numel() for parameter in run.parameters)
    epochs = run.setup.trained.config.epochs
    epoch = n_examples / rate
    print_header(f"{given.config}; median of {given.rounds} rounds")
    print(f"| trained parameters | examples/s | epoch of {n_examples:,} examples | {epochs} epochs | peak memory |")
    print("|---|---|---|---|---|")
    times = f"{duration(epoch)} | {duration(epochs * epoch)}"
    print(f"| {n_parameters:,} | {rate:,.1f} | {times} | {peak_memory():,.0f} MB |")


if __name__ == "__main__":
    main()
