"""Measure the shards of `torchelmo.bulk.embed_files`: speed of workers, planning, memory, and what a corpus costs.

    python -m benchmarks.shards speed     two workers with a thread each, one worker, and one process with two threads
    python -m benchmarks.shards plan      the time to plan 1,000,000 lines
    python -m benchmarks.shards memory    CPU time and memory of two workers for 10,000 to 1,000,000 lines; --plot FILE
    python -m benchmarks.shards cost      hours for 1 M to 10 G tokens, from --rate and --efficiency of `speed`

`speed` compares the variants in turn and prints the medians. The rate of a run over shards is measured from the moment
when every worker has finished its first shard, so it does not contain the start of the processes.
"""

import argparse
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import print_header, sample_sentences
from torchelmo import BiLM, BiLMConfig, Elmo
from torchelmo.bulk import embed_file, embed_files
from torchelmo.bulk.plan import plan_shards
from torchelmo.progress import count

_TINY = BiLMConfig(filters=((1, 8), (2, 8)), projection_dim=8, cell_dim=16, n_layers=1, max_characters=12)


def main() -> None:
    given = parse_arguments()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        COMMANDS[given.command](given, Path(name))


def measure_speed(given: argparse.Namespace, folder: Path) -> None:
    """Print the tokens per second of each variant and their ratios."""
    text = write_lines(folder / "text.txt", given.lines, given.text)
    shards: dict[str, Any] = {"layers": "average", "pool": "mean", "n_shards": given.shards, "pretokenized": True}

    def run_shards(workers: int, number: int) -> float:
        out = folder / f"{workers}-{number}"
        result = embed_files(text, out, workers=workers, threads=workers, **shards)
        ends = sorted(path.stat().st_mtime for path in out.glob("part-*"))
        counted = (len(ends) - workers) / len(ends)
        return result.n_tokens * counted / (ends[-1] - ends[workers - 1])

    def run_one(number: int) -> float:
        elmo = Elmo()
        torch.set_num_threads(2)
        start = time.perf_counter()
        out = folder / f"one-{number}.parquet"
        result = embed_file(text, out, model=elmo, layers="average", pool="mean", pretokenized=True)
        seconds = time.perf_counter() - start
        torch.set_num_threads(1)
        return result.n_tokens / seconds

    variants: dict[str, Callable[[int], float]] = {
        "2 workers, 1 thread each": lambda number: run_shards(2, number),
        "1 worker, 1 thread": lambda number: run_shards(1, number),
        "1 process, 2 threads": run_one,
    }
    print_header(f"english-small, {given.lines:,} lines, {given.shards} shards, {given.rounds} rounds in turn")
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(given.rounds):
        for name, variant in variants.items():
            rates[name].append(variant(number))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    two, one, threads = medians.values()
    print("| variant | tokens/s | all rounds |\n|---|---|---|")
    for name, found in rates.items():
        print(f"| {name} | {medians[name]:,.0f} | {', '.join(f'{rate:,.0f}' for rate in found)} |")
    print(f"\ntwo workers / one worker: {two / one:.2f}; two workers / one process: {two / threads:.2f}")


def measure_plan(given: argparse.Namespace, folder: Path) -> None:
    """Print the time to plan a file."""
    text = write_lines(folder / "text.txt", given.lines, given.text)
    print_header(f"{given.lines:,} lines, {text.stat().st_size / 1e6:,.0f} MB")
    times = []
    for _ in range(given.rounds):
        start, cpu_start = time.perf_counter(), time.process_time()
        plan = plan_shards([text], folder / "out", {}, shard_size="4MB")
        times.append((time.perf_counter() - start, time.process_time() - cpu_start))
    wall, cpu = min(times)
    print(f"{len(plan.shards):,} shards, {plan.n_rows:,} rows: {wall:.1f} s, CPU time {cpu:.1f} s")


def measure_memory(given: argparse.Namespace, folder: Path) -> None:
    """Print the CPU time and the largest memory of a worker by the number of lines, with a tiny model."""
    torch.manual_seed(0)
    elmo = Elmo(BiLM(_TINY))
    print_header("a tiny model, two workers, shards of 200 kB; CPU time of both workers, largest memory of one")
    print("| lines | CPU s | MB |\n|---|---|---|", flush=True)
    rows = []
    for n_lines in (10_000, 100_000, 1_000_000):
        text = folder / f"{n_lines}.txt"
        with text.open("w") as stream:
            stream.writelines(f"line {number % 5000} of a text\n" for number in range(n_lines))
        with PeakMemory() as peak:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            options: dict[str, Any] = {"layers": "top", "pool": "mean", "pretokenized": True, "shard_size": "200kB"}
            embed_files(text, folder / f"out-{n_lines}", model=elmo, workers=2, threads=2, **options)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        rows.append((n_lines, seconds, peak.megabytes))
        print(f"| {n_lines:,} | {seconds:,.1f} | {peak.megabytes:,.0f} |", flush=True)
    if given.plot is not None:
        plot(rows, given.plot)


class PeakMemory:
    """Watch the worker processes of this machine that write to a folder, and remember the largest resident memory."""

    def __init__(self) -> None:
        self.megabytes = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            for entry in Path("/proc").glob("[0-9]*"):
                try:
                    if b"torchelmo.bulk.workers" in (entry / "cmdline").read_bytes():
                        status = (entry / "status").read_text()
                        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
                        self.megabytes = max(self.megabytes, int(peak.split()[1]) / 1024)
                except (OSError, StopIteration):
                    continue


def plot(rows: list[tuple[int, float, float]], path: Path) -> None:
    """Write a PNG: time and memory against the number of lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines, seconds, megabytes = zip(*rows)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6))
    left.plot(lines, seconds, "o-")
    left.set(xscale="log", yscale="log", xlabel="lines", ylabel="CPU seconds of both workers", title="time")
    right.plot(lines, megabytes, "o-")
    right.set(xscale="log", xlabel="lines", ylabel="MB", ylim=(0, 1.25 * max(megabytes)), title="memory of a worker")
    for axis in (left, right):
        axis.grid(True, alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def print_cost(given: argparse.Namespace, folder: Path) -> None:
    """Print how long corpora take: here, and computed for more cores from the measured efficiency of two workers."""
    cores = [1, 2, 10, 100, 1000]
    print_header(f"one core: {given.rate:,.0f} tokens/s; each of several cores: {given.efficiency:.0%} of that")
    names = [count(n, "cores") for n in cores]
    print(f"| tokens | {' | '.join(names)} |\n{'|---' * (len(cores) + 1)}|")
    for tokens, name in ((1e6, "1 M"), (1e8, "100 M"), (1e10, "10 G")):
        rates = [given.rate * (1 if n == 1 else n * given.efficiency) for n in cores]
        print(f"| {name} | {' | '.join(duration(tokens / rate) for rate in rates)} |")


def duration(seconds: float) -> str:
    """Return a duration in the unit that fits it.

    >>> duration(45), duration(7200), duration(900_000)
    ('45 s', '2.0 h', '10.4 days')
    """
    for unit, size in (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size or (unit == "h" and seconds >= size):
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 1 else f"{seconds:.1f} s"


def write_lines(path: Path, n_lines: int, text: Path | None) -> Path:
    """Write tokenized sentences, repeated if there are too few."""
    sentences = sample_sentences(text, min(n_lines, 20_000))
    with path.open("w", encoding="utf-8") as stream:
        for number in range(n_lines):
            stream.write(" ".join(sentences[number % len(sentences)]) + "\n")
    return path


COMMANDS = {"speed": measure_speed, "plan": measure_plan, "memory": measure_memory, "cost": print_cost}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--text", type=Path, help="a text file; default: random words")
    parser.add_argument("--lines", type=int, help="default: 12,000 for speed, 1,000,000 for plan")
    parser.add_argument("--shards", type=int, default=24, help="shards of `speed`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.0, help="tokens/s of one core, for `cost`")
    parser.add_argument("--efficiency", type=float, default=1.0, help="of each of several cores, for `cost`")
    parser.add_argument("--plot", type=Path, help="PNG for `memory`")
    parser.add_argument("--folder", type=Path, help="where to write temporary files")
    given = parser.parse_args()
    if given.lines is None:
        given.lines = 1_000_000 if given.command == "plan" else 12_000
    return given


if __name__ == "__main__":
    main()
