"""python -m benchmarks.embed: torchelmo and AllenNLP on the same sentences, in one run, interleaved.

Every contender has a process of its own and all wait while one is measured. Each figure is the median of
several rounds, and each round starts with an empty cache of words. The weights are random, the shapes official.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.text import machine, sample_sentences
from torchelmo import BiLM, BiLMConfig, save_official

SHAPES = {
    "small": BiLMConfig(cell_dim=1024, projection_dim=128, n_highway=1),
    "original": BiLMConfig(),
}
# Sentences per round by shape and batch size: enough for a steady figure, few enough for the slowest contender.
N_SENTENCES = {
    "small": {1: 96, 8: 128, 32: 192, 128: 256},
    "original": {1: 8, 8: 16, 32: 32, 128: 128},
}
GOALS = {
    ("small", 32, "float32"): 10,
    ("small", 32, "float16"): 10,
    ("small", 1, "float32"): 6,
    ("original", 32, "float32"): 3,
    ("original", 32, "float16"): 5,
    ("original", 1, "float32"): 4,
    ("original", 1, "float16"): 7,
}


class Contender:
    """A worker process: ask it, and it answers."""

    def __init__(self, name: str, python: str, files: tuple[Path, Path], threads: int) -> None:
        self.name = name
        worker = Path(__file__).with_name("worker.py")
        # -P: the modules beside the worker must not stand in for those of the same name elsewhere
        command = [python, "-P", str(worker), name, *map(str, files), str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.start = self._answer()

    def ask(self, **question: Any) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("="):
                message: dict[str, float] = json.loads(line[1:])
                return message
        raise SystemExit(f"{self.name}: the worker ended without an answer; its message stands above.")


def main() -> None:
    arguments = parse_arguments()
    result: dict[str, Any] = {"machine": machine(), "threads": arguments.threads, "rows": [], "starts": {}}
    for shape in arguments.shapes:
        measure_shape(shape, arguments, result)
    print_tables(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.plot:
        from benchmarks.plots import plot_growth

        plot_growth(result, arguments.plot)


def measure_shape(shape: str, arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "options.json", Path(folder) / "weights.hdf5"
        torch.manual_seed(0)
        save_official(BiLM(SHAPES[shape]), *files)
        pythons = {"float32": sys.executable, "float16": sys.executable, "reference": sys.executable}
        if arguments.allennlp:
            pythons["allennlp"] = str(arguments.allennlp / "bin" / "python")
        contenders = [Contender(name, python, files, arguments.threads) for name, python in pythons.items()]
        result["starts"][shape] = {contender.name: contender.start for contender in contenders}
        result.setdefault("sgemm", contenders[0].ask(ask="peak")["gflops"])
        for batch in arguments.batches:
            sentences = sample_sentences(arguments.text, N_SENTENCES[shape][batch])
            rows = compare(contenders, sentences, batch, arguments.rounds)
            result["rows"] += [{"what": "batch", "shape": shape, "batch": batch, **row} for row in rows]
        one = [sentence for sentence in sample_sentences(arguments.text, 4000) if len(sentence) == 20][:1]
        rows = compare(contenders, one, 1, 2 * arguments.rounds)
        result["rows"] += [{"what": "one sentence", "shape": shape, "batch": 1, **row} for row in rows]
        if arguments.plot:
            measure_growth(shape, contenders, arguments.text, result)
        for contender in contenders:
            contender.close()


def measure_growth(shape: str, contenders: list[Contender], text: Path | None, result: dict[str, Any]) -> None:
    """How cost grows with the length of a sentence, and with the size of the corpus."""
    large = shape == "original"
    words = [word for sentence in sample_sentences(text, 4000) for word in sentence]
    for length in (5, 20, 80, 320):
        n = max(1, (320 if large else 1280) // length)
        sentences = [words[i * length : (i + 1) * length] for i in range(n)]
        rows = compare(contenders, sentences, 32, 2)
        result["rows"] += [{"what": "length", "shape": shape, "size": length, **row} for row in rows]
    ours = [contender for contender in contenders if contender.name.startswith("float")]
    for n in (32, 128) if large else (32, 128, 512, 2048):
        rows = compare(ours, sample_sentences(text, n), n, 2)
        result["rows"] += [{"what": "corpus", "shape": shape, "size": n, **row} for row in rows]


def compare(contenders: list[Contender], sentences: list[list[str]], batch: int, rounds: int) -> list[dict[str, Any]]:
    """One warm-up each, then `rounds` rounds in turn; medians, and the spread between the rounds."""
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    memory = dict.fromkeys(seconds, 0.0)
    for turn in range(rounds + 1):
        for contender in contenders:
            answer = contender.ask(ask="embed", sentences=sentences, batch=batch)
            if turn:
                seconds[contender.name].append(answer["seconds"])
                memory[contender.name] = max(memory[contender.name], answer["megabytes"])
    n_tokens = sum(map(len, sentences))
    speeds = ", ".join(f"{name} {n_tokens / statistics.median(times):,.0f}" for name, times in seconds.items())
    print(f"{len(sentences)} sentences, {batch} at a time, tokens/s: {speeds}", file=sys.stderr, flush=True)
    base = statistics.median(seconds["allennlp"]) if "allennlp" in seconds else None
    return [
        {
            "contender": name,
            "tokens_per_second": n_tokens / statistics.median(times),
            "slowest": n_tokens / max(times),
            "fastest": n_tokens / min(times),
            "milliseconds": 1000 * statistics.median(times),
            "ratio": base / statistics.median(times) if base else None,
            "megabytes": memory[name],
        }
        for name, times in seconds.items()
    ]


def lstm_flops(config: BiLMConfig) -> float:
    """Work per token of the recurrent layers, which every contender has to do."""
    p, c = config.projection_dim, config.cell_dim
    return len(config.directions) * config.n_layers * 2.0 * (2 * p * 4 * c + c * p)


def print_tables(result: dict[str, Any]) -> None:
    print(f"{result['machine']}, {result['threads']} threads, sgemm peak {result['sgemm']:.0f} GFLOP/s\n")
    print("| shape | batch | contender | tokens/s (slowest–fastest) | × AllenNLP | goal | LSTM / sgemm peak | MB |")
    print("|---|---|---|---|---|---|---|---|")
    for row in (row for row in result["rows"] if row["what"] == "batch"):
        share = row["tokens_per_second"] * lstm_flops(SHAPES[row["shape"]]) / (1e9 * result["sgemm"])
        ratio = f"{row['ratio']:.1f}" if row["ratio"] else ""
        goal = GOALS.get((row["shape"], row["batch"], row["contender"]))
        print(
            f"| {row['shape']} | {row['batch']} | {row['contender']} | {row['tokens_per_second']:,.0f} "
            f"({row['slowest']:,.0f}–{row['fastest']:,.0f}) | {ratio} "
            f"| {f'≥ {goal}' if goal else ''} | {share:.0%} | {row['megabytes']:,.0f} |"
        )
    print("\n| shape | contender | one sentence of 20 tokens | import | of it beyond torch | load |")
    print("|---|---|---|---|---|---|")
    for row in (row for row in result["rows"] if row["what"] == "one sentence"):
        start = result["starts"][row["shape"]][row["contender"]]
        print(
            f"| {row['shape']} | {row['contender']} | {row['milliseconds']:.1f} ms | {start['import']:.1f} s "
            f"| {start['import beyond torch']:.2f} s | {start['load']:.2f} s |"
        )
    for what, unit in (("length", "tokens in a sentence"), ("corpus", "sentences in one call")):
        rows = [row for row in result["rows"] if row["what"] == what]
        sizes = sorted({row["size"] for row in rows})
        if not rows:
            continue
        print(f"\n| tokens/s by {unit} | {' | '.join(map(str, sizes))} |\n|---|{'---|' * len(sizes)}")
        for shape, contender in dict.fromkeys((row["shape"], row["contender"]) for row in rows):
            found = {row["size"]: row for row in rows if (row["shape"], row["contender"]) == (shape, contender)}
            cells = [f"{found[size]['tokens_per_second']:,.0f}" if size in found else "" for size in sizes]
            print(f"| {shape}, {contender} | {' | '.join(cells)} |")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embed", description=__doc__)
    parser.add_argument("--allennlp", type=Path, help="virtual environment that AllenNLP 2.10.1 is installed in")
    parser.add_argument("--text", type=Path, help="text to take sentences from (default: made-up words by Zipf's law)")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="official shapes")
    parser.add_argument(
        "--batches", nargs="+", type=int, choices=(1, 8, 32, 128), default=[1, 8, 32, 128], help="sentences per call"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds whose median counts (default 5)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of each contender")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--plot", type=Path, help="also measure growth and draw it into this PNG")
    return parser.parse_args()


if __name__ == "__main__":
    main()
