"""What keeping the layers of a frozen biLM saves: the same task's steps with the layers kept and computed anew.

    python -m benchmarks.task_cache --config experiments/tasks/pos-small.toml --model runs/mine

Steps are taken in turns, some with and some without, and the medians of their seconds per token compared.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.text import machine
from torchelmo.config import load_config
from torchelmo.tasks.batches import training_batches
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.start import Start, start
from torchelmo.tasks.trained import all_sentences, example_length
from torchelmo.train.optim import build_optimizer
from torchelmo.train.signals import Stop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("experiments/tasks/pos-small.toml"), help="a task's TOML")
    parser.add_argument("--model", required=True, help="the biLM: anything torchelmo.load takes")
    parser.add_argument("--rounds", type=int, default=5, help="how often the two take turns")
    parser.add_argument("--steps", type=int, default=20, help="steps of each turn")
    given = parser.parse_args()

    kept = _start(given.config, given.model)
    anew = _start(given.config, given.model, "elmo.memory_tokens=0", "elmo.disk_tokens=0")
    rates: dict[str, list[float]] = {"kept": [], "anew": []}
    for number in range(given.rounds):
        for name, run in (("kept", kept), ("anew", anew)):
            rates[name].append(_tokens_per_second(run, number, given.steps))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    task = kept.trained.task
    n_tokens = sum(map(len, all_sentences(task, kept.examples)))
    print(machine())
    print(f"{given.config}: {len(kept.examples):,} examples, {n_tokens:,} tokens")
    print(f"biLM once over all sentences: {kept.bilm_seconds:.1f} s")
    for name in rates:
        print(f"layers {name}: {medians[name]:,.0f} tokens/s, {n_tokens / medians[name]:.0f} s per epoch")
    print(f"an epoch is {medians['kept'] / medians['anew']:.1f} times faster with the layers kept")


def _start(config: Path, model: str, *settings: str) -> Start:
    settings = ("elmo.place=input", f"elmo.model={model}", *settings)
    found = start(load_config(TaskConfig, config, settings), Stop())
    assert found is not None  # nobody asks it to stop
    return found


def _tokens_per_second(run: Start, number: int, steps: int) -> float:
    """Training steps as the runner takes them, on batches that both ways are given alike."""
    task, model = run.trained.task, run.trained.model
    lengths = [example_length(task, example) for example in run.examples]
    batches = training_batches(lengths, run.trained.config.batch_size, seed=1, epoch=number + 1)[:steps]
    optimizer = build_optimizer(run.trained.config.optim, [p for p in model.parameters() if p.requires_grad])
    model.train()
    n_tokens, before = 0, time.perf_counter()
    for batch in batches:
        examples: list[Any] = [run.examples[i] for i in batch]
        model.loss(examples).backward()
        optimizer.step()
        optimizer.zero_grad()
        n_tokens += sum(map(len, all_sentences(task, examples)))
    return n_tokens / (time.perf_counter() - before)


if __name__ == "__main__":
    main()
