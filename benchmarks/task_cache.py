"""What keeping the layers of a frozen biLM saves: the same task's steps with the layers kept and computed anew.

    python -m benchmarks.task_cache --config experiments/tasks/pos-small.toml --model runs/mine

Steps are taken in turns, some with and some without, and the medians of their seconds per token compared.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks.common import machine
from benchmarks.task_steps import start_task, take_steps
from torchelmo.tasks.trained import all_sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("experiments/tasks/pos-small.toml"), help="a task's TOML")
    parser.add_argument("--model", required=True, help="the biLM: anything torchelmo.load takes")
    parser.add_argument("--rounds", type=int, default=5, help="how often the two take turns")
    parser.add_argument("--steps", type=int, default=20, help="steps of each turn")
    given = parser.parse_args()

    settings = ["elmo.place=input", f"elmo.model={given.model}"]
    kept = start_task(given.config, settings)
    anew = start_task(given.config, [*settings, "elmo.memory_mb=0", "elmo.disk_mb=0"])
    rates: dict[str, list[float]] = {"kept": [], "anew": []}
    for number in range(given.rounds):
        for name, run in (("kept", kept), ("anew", anew)):
            steps = take_steps(run, number + 1, given.steps)
            rates[name].append(steps.n_tokens / steps.seconds)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    task, examples = kept.start.trained.task, kept.start.examples
    n_tokens = sum(map(len, all_sentences(task, examples)))
    print(machine())
    print(f"{given.config}: {len(examples):,} examples, {n_tokens:,} tokens")
    print(f"biLM once over all sentences: {kept.start.bilm_seconds:.1f} s")
    for name in rates:
        print(f"layers {name}: {medians[name]:,.0f} tokens/s, {n_tokens / medians[name]:.0f} s per epoch")
    print(f"an epoch is {medians['kept'] / medians['anew']:.1f} times faster with the layers kept")


if __name__ == "__main__":
    main()
