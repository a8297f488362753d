"""Measure the embedding speed of torchelmo, and of AllenNLP and other models if they are installed.

    python -m benchmarks.embed --text TEXT
    python -m benchmarks.embed --text TEXT --allennlp VENV
    python -m benchmarks.embed --text TEXT --alternatives
    python -m benchmarks.embed --text TEXT --before CHECKOUT --implementations float32 float16
    python -m benchmarks.embed --tables small.json original.json --plot FILE

Every implementation runs in a separate process, and they take turns. The tables show medians over several rounds. Each
round starts with an empty cache of token vectors. The models have the published shapes and random weights. The first
call is one sentence of 20 tokens in a new process, without kernels chosen by an earlier one; later processes read the
choice from a file. Times of import, load and first call are medians of a few processes. On a machine with other work,
`--threads 1 --cpu-time` gives times that can be compared: they exclude the time that other programs run.

Two columns compare the LSTMs with the limits of the machine: multiplying at the speed of a large float32 product, and
reading the recurrent and projection weights from memory in every step. The larger one limits the speed. Weights that
stay in the processor's cache can exceed the limit of reading, and int8 products that of multiplying.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import commit, machine, print_header, sample_sentences
from torchelmo import BiLM, BiLMConfig, save_official
from torchelmo.bilm.fast.products import Tuning

SHAPES = {
    "small": BiLMConfig(cell_dim=1024, projection_dim=128, n_highway=1),
    "original": BiLMConfig(),
}
OURS = ("float32", "float16", "int8", "reference")
# Sentences per round, by shape and batch size: enough for a stable median, few enough for the slowest implementation.
N_SENTENCES = {
    "small": {1: 96, 8: 128, 32: 192, 128: 256},
    "original": {1: 8, 8: 16, 32: 32, 128: 128},
}


class Worker:
    """A process that runs one implementation."""

    def __init__(
        self,
        name: str,
        python: str,
        files: tuple[Path, Path],
        threads: int,
        *,
        checkout: Path | None = None,
        choices: str = "choices",
    ) -> None:
        self.name = f"{name} before" if checkout else name
        worker = Path(__file__).with_name("worker.py")
        # -P: do not let modules in this folder shadow others of the same name, such as profile
        command = [python, "-P", str(worker), name, *map(str, files), str(threads)]
        environment = os.environ | {"XDG_CACHE_HOME": str(files[0].parent / f"{choices} of {self.name}")}
        if checkout:
            environment["PYTHONPATH"] = str(checkout.absolute())
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.startup = self._reply()

    def request(self, kind: str, **arguments: Any) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"kind": kind, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._reply()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _reply(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("="):
                message: dict[str, float] = json.loads(line[1:])
                return message
        raise SystemExit(f"{self.name}: the worker process ended without a reply. See its error message above.")


def main() -> None:
    arguments = parse_arguments()
    result = read_results(arguments.tables) if arguments.tables else measure(arguments)
    print_tables(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.plot:
        from benchmarks.plots import plot_growth

        plot_growth(result, arguments.plot)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {
        "machine": machine(),
        "commit": commit(),
        "threads": arguments.threads,
        "rows": [],
        "startup": {},
    }
    for shape in arguments.shapes:
        measure_shape(shape, arguments, result)
    return result


def read_results(files: list[Path]) -> dict[str, Any]:
    """Join the results of several runs on one machine; of rows that were measured twice, keep the first.

    The limits of the machine are the highest that were measured.
    """
    results = [json.loads(file.read_text()) for file in files]
    joined: dict[str, Any] = {key: results[0][key] for key in ("machine", "commit", "threads")}
    joined |= {key: max(result[key] for result in results) for key in ("sgemm", "reading")}
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in (row for result in results for row in result["rows"]):
        key = row["what"], row["shape"], row.get("batch"), row.get("size"), row["implementation"]
        rows.setdefault(key, row)
    joined |= {"rows": list(rows.values()), "startup": {}}
    for result in results:
        for shape, found in result["startup"].items():
            joined["startup"][shape] = found | joined["startup"].get(shape, {})
    return joined


def measure_shape(shape: str, arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "options.json", Path(folder) / "weights.hdf5"
        torch.manual_seed(0)
        bilm = BiLM(SHAPES[shape])
        save_official(bilm, *files)
        bilm.save(Path(folder) / "int8", dtype=torch.int8)
        names = list(arguments.implementations)
        if arguments.alternatives and shape == arguments.shapes[0]:  # they do not depend on the shape
            names += ["minilm", "tok2vec"]
        pythons = dict.fromkeys(names, sys.executable)
        if arguments.allennlp:
            pythons["allennlp"] = str(arguments.allennlp / "bin" / "python")
        processes = [partial(Worker, name, python, files, arguments.threads) for name, python in pythons.items()]
        if arguments.before:
            processes += [
                partial(Worker, name, sys.executable, files, arguments.threads, checkout=arguments.before)
                for name in names
                if name in ("float32", "float16", "int8")
            ]
        one = [sentence for sentence in sample_sentences(arguments.text, 4000) if len(sentence) == 20][:1]
        result["startup"][shape] = measure_startup(processes, one, arguments.starts)
        workers = [start() for start in processes]
        limits = workers[0].request("limits")
        result.setdefault("sgemm", limits["gflops"])
        result.setdefault("reading", limits["gigabytes"])
        for batch in arguments.batches:
            sentences = sample_sentences(arguments.text, N_SENTENCES[shape][batch])
            rows = compare(workers, sentences, batch, arguments.rounds, clock(arguments))
            result["rows"] += [{"what": "batch", "shape": shape, "batch": batch, **row} for row in rows]
        rows = compare(workers, one, 1, 2 * arguments.rounds, clock(arguments))
        result["rows"] += [{"what": "one sentence", "shape": shape, "batch": 1, **row} for row in rows]
        if arguments.plot:
            measure_growth(shape, workers, arguments, result)
        for worker in workers:
            worker.close()


def measure_startup(
    processes: Sequence[Callable[..., Worker]], sentence: list[list[str]], n_starts: int
) -> dict[str, dict[str, float]]:
    """Start every process in turn, a few times: the medians of import, load and first call, by implementation."""
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(n_starts):
        for start in processes:
            for call in ("first call", "in later processes"):
                worker = start(choices=f"choices {number}")
                worker.startup[call] = worker.request("embed", sentences=sentence, batch=1)["seconds"]
                for name, seconds in worker.startup.items():
                    found.setdefault(worker.name, {}).setdefault(name, []).append(seconds)
                worker.close()
                if worker.name not in OURS:  # nothing is chosen by measuring
                    break
    return {
        name: {what: statistics.median(seconds) for what, seconds in times.items()} for name, times in found.items()
    }


def clock(arguments: argparse.Namespace) -> str:
    return "cpu seconds" if arguments.cpu_time else "seconds"


def measure_growth(shape: str, workers: list[Worker], arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    """Measure the speed by sentence length and by number of sentences."""
    large, text = shape == "original", arguments.text
    words = [word for sentence in sample_sentences(text, 4000) for word in sentence]
    for length in (5, 20, 80, 320):
        n = max(1, (320 if large else 1280) // length)
        sentences = [words[i * length : (i + 1) * length] for i in range(n)]
        rows = compare(workers, sentences, 32, 2, clock(arguments))
        result["rows"] += [{"what": "length", "shape": shape, "size": length, **row} for row in rows]
    fast = [worker for worker in workers if worker.name in ("float32", "float16", "int8")]
    for n in (32, 128) if large else (32, 128, 512, 2048):
        rows = compare(fast, sample_sentences(text, n), n, 2, clock(arguments))
        result["rows"] += [{"what": "corpus", "shape": shape, "size": n, **row} for row in rows]


def compare(
    workers: list[Worker], sentences: list[list[str]], batch: int, rounds: int, clock: str
) -> list[dict[str, Any]]:
    """Embed the sentences with every worker in turn: one warm-up round, then `rounds` rounds that count."""
    seconds: dict[str, list[float]] = {worker.name: [] for worker in workers}
    memory = dict.fromkeys(seconds, 0.0)
    for number in range(rounds + 1):
        for worker in workers:
            reply = worker.request("embed", sentences=sentences, batch=batch)
            if number:
                seconds[worker.name].append(reply[clock])
                memory[worker.name] = max(memory[worker.name], reply["megabytes"])
    n_tokens = sum(map(len, sentences))
    batches = [sentences[i : i + batch] for i in range(0, len(sentences), batch)]
    n_steps = sum(max(map(len, some)) + 2 for some in batches)  # with the marks of the longest sentence
    speeds = ", ".join(f"{name} {n_tokens / statistics.median(times):,.0f}" for name, times in seconds.items())
    print(f"{len(sentences)} sentences, {batch} at a time, tokens/s: {speeds}", file=sys.stderr, flush=True)
    base = statistics.median(seconds["allennlp"]) if "allennlp" in seconds else None
    return [
        {
            "implementation": name,
            "tokens_per_second": n_tokens / statistics.median(times),
            "slowest": n_tokens / max(times),
            "fastest": n_tokens / min(times),
            "milliseconds": 1000 * statistics.median(times),
            "ratio": base / statistics.median(times) if base else None,
            "megabytes": memory[name],
            "steps_per_second": n_steps / statistics.median(times),
        }
        for name, times in seconds.items()
    ]


def lstm_flops(config: BiLMConfig) -> float:
    """Return the floating-point operations per token of the LSTM matrix products."""
    p, c = config.projection_dim, config.cell_dim
    return len(config.directions) * config.n_layers * 2.0 * (2 * p * 4 * c + c * p)


def step_bytes(config: BiLMConfig, precision: str) -> float:
    """Return the bytes of the recurrent and projection weights of all LSTMs, which every step reads."""
    p, c = config.projection_dim, config.cell_dim
    large = p * 4 * c > Tuning.max_paired_weight  # small models keep their LSTMs in float32
    size = {"float16": 2 if large else 4, "int8": 1}.get(precision.removesuffix(" before"), 4)
    return len(config.directions) * config.n_layers * (p * 4 * c + c * p) * float(size)


def shares(row: dict[str, Any], result: dict[str, Any]) -> tuple[str, str]:
    """Return the shares of the limits of multiplying and of reading; empty for other models."""
    if row["implementation"] in ("minilm", "tok2vec"):
        return "", ""
    config = SHAPES[row["shape"]]
    multiplying = row["tokens_per_second"] * lstm_flops(config) / (1e9 * result["sgemm"])
    reading = row["steps_per_second"] * step_bytes(config, row["implementation"]) / (1e9 * result["reading"])
    return f"{multiplying:.0%}", f"{reading:.0%}"


def print_tables(result: dict[str, Any]) -> None:
    limits = f"sgemm peak {result['sgemm']:.0f} GFLOP/s, reading {result['reading']:.1f} GB/s"
    print_header(f"{result['threads']} threads, {limits}")
    print("| shape | batch | implementation | tokens/s (min–max) | × AllenNLP | multiplying | reading | MB |")
    print("|---|---|---|---|---|---|---|---|")
    for row in (row for row in result["rows"] if row["what"] == "batch"):
        multiplying, reading = shares(row, result)
        ratio = f"{row['ratio']:.1f}" if row["ratio"] else ""
        print(
            f"| {row['shape']} | {row['batch']} | {row['implementation']} | {row['tokens_per_second']:,.0f} "
            f"({row['slowest']:,.0f}–{row['fastest']:,.0f}) | {ratio} | {multiplying} | {reading} "
            f"| {row['megabytes']:,.0f} |"
        )
    print("\n| shape | implementation | one sentence of 20 tokens ", end="")
    print(
        "| import | import without torch | load | first call | in later processes |\n|---|---|---|---|---|---|---|---|"
    )
    for row in (row for row in result["rows"] if row["what"] == "one sentence"):
        startup = result["startup"][row["shape"]][row["implementation"]]
        later = f"{startup['in later processes']:.2f} s" if "in later processes" in startup else ""
        print(
            f"| {row['shape']} | {row['implementation']} | {row['milliseconds']:.1f} ms | {startup['import']:.1f} s "
            f"| {startup['import without torch']:.2f} s | {startup['load']:.2f} s | {startup['first call']:.2f} s "
            f"| {later} |"
        )
    for what, unit in (("length", "tokens in a sentence"), ("corpus", "sentences in one call")):
        rows = [row for row in result["rows"] if row["what"] == what]
        sizes = sorted({row["size"] for row in rows})
        if not rows:
            continue
        print(f"\n| tokens/s by {unit} | {' | '.join(map(str, sizes))} |\n|---|{'---|' * len(sizes)}")
        for shape, name in dict.fromkeys((row["shape"], row["implementation"]) for row in rows):
            found = {row["size"]: row for row in rows if (row["shape"], row["implementation"]) == (shape, name)}
            cells = [f"{found[size]['tokens_per_second']:,.0f}" if size in found else "" for size in sizes]
            print(f"| {shape}, {name} | {' | '.join(cells)} |")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allennlp", type=Path, help="virtual environment with AllenNLP 2.10.1")
    parser.add_argument(
        "--implementations",
        nargs="*",
        choices=OURS,
        default=list(OURS),
        help="paths of torchelmo to measure (default: all)",
    )
    parser.add_argument(
        "--starts", type=int, default=3, help="starts of each process for import, load and first call (default: 3)"
    )
    parser.add_argument("--before", type=Path, help="checkout of an earlier version, to measure too")
    parser.add_argument(
        "--alternatives",
        action="store_true",
        help="also measure a transformer of MiniLM-L6's shape (needs transformers) and spaCy's tok2vec",
    )
    parser.add_argument("--text", type=Path, help="raw text to take sentences from (default: random words)")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="published shapes")
    parser.add_argument(
        "--batches", nargs="+", type=int, choices=(1, 8, 32, 128), default=[1, 8, 32, 128], help="sentences per call"
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: 5)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of each implementation")
    parser.add_argument(
        "--cpu-time", action="store_true", help="count the time of the cores instead of the time that passes"
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument(
        "--tables", nargs="+", type=Path, help="files written by --json: print their tables instead of measuring"
    )
    parser.add_argument(
        "--plot", type=Path, help="also measure the speed by length and number of sentences; write a plot to this PNG"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
