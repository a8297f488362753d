"""How long an epoch of a task takes on this machine, told by a few of its steps.

    python -m benchmarks.task_epoch experiments/tasks/nli.toml --examples 549367 --set elmo.place=none \\
        --set train=data/tasks/snli_small/train.jsonl --set dev=data/tasks/snli_small/dev.jsonl

The data may be a small part of what the epoch is asked for: `--examples` says how many the whole has.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks.common import machine
from benchmarks.task_steps import start_task, take_steps
from benchmarks.worker import peak_memory
from torchelmo.runs.metrics import duration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="a task's TOML")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another value for a setting")
    parser.add_argument("--examples", type=int, help="of an epoch (default: those of the training data)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds whose median counts (default 5)")
    parser.add_argument("--steps", type=int, default=4, help="steps of each round (default 4)")
    given = parser.parse_args()

    run = start_task(given.config, given.set)
    take_steps(run, 0, 1)  # what is made once
    rounds = [take_steps(run, number + 1, given.steps) for number in range(given.rounds)]
    rate = statistics.median(steps.n_examples / steps.seconds for steps in rounds)
    n_examples = given.examples or len(run.start.examples)
    n_parameters = sum(parameter.numel() for parameter in run.parameters)
    epochs = run.start.trained.config.epochs
    print(machine())
    print(f"{given.config}: {n_parameters:,} parameters to train, {rate:,.1f} examples/s (median of {given.rounds})")
    epoch = n_examples / rate
    print(f"an epoch of {n_examples:,} examples: {duration(epoch)}; {epochs} epochs: {duration(epochs * epoch)}")
    print(f"peak memory: {peak_memory():,.0f} MB")


if __name__ == "__main__":
    main()
