"""Profile `embed`: the share of operator time that each part of the model takes.

python -m benchmarks.profile --shapes small
"""

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import print_header, sample_sentences
from benchmarks.embed import N_SENTENCES, SHAPES
from torchelmo import BiLM, BiLMConfig, Elmo

_PARTS = (
    "LSTM input and state products",
    "LSTM projection",
    "gates",
    "character tables",
    "highways and character projection",
    "other",
)
_INT8 = ("qlinear_pointwise", "_int_mm")
_PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "_linear_pointwise", "linear_dynamic_fp16", *_INT8)
_GATES = ("sigmoid_", "sigmoid", "mul_", "addcmul_", "sub_", "clamp_", "clamp", "lerp", "relu_", "add_", "addcmul")
_TABLES = ("_embedding_bag_forward_only", "_embedding_bag", "amax")


def main() -> None:
    arguments = parse_arguments()
    print_header(f"{torch.get_num_threads()} threads; shares of the operator time of all threads")
    print(
        f"| shape | precision | batch | tokens/s | cores busy | {' | '.join(_PARTS)} |\n|{'---|' * (5 + len(_PARTS))}"
    )
    for shape in arguments.shapes:
        torch.manual_seed(0)
        elmo = Elmo(BiLM(SHAPES[shape]), dropout=0.0)
        for precision in ("float32", "float16", "int8"):
            for batch in arguments.batches:
                sentences = sample_sentences(arguments.text, N_SENTENCES[shape][batch])
                parts, busy, speed = measure(elmo, sentences, batch, precision)
                shares = " | ".join(f"{parts.get(name, 0.0):.0%}" for name in _PARTS)
                print(f"| {shape} | {precision} | {batch} | {speed:,.0f} | {busy:.0%} | {shares} |", flush=True)


def measure(
    elmo: Elmo, sentences: list[list[str]], batch: int, precision: Any
) -> tuple[dict[str, float], float, float]:
    """Return the share of each part, the utilization of the cores, and the tokens/s without the profiler."""

    def run() -> float:
        elmo.token_cache.clear()
        start = time.perf_counter()
        for i in range(0, len(sentences), batch):
            elmo.embed(sentences[i : i + batch], "mix", precision=precision)
        return time.perf_counter() - start

    run()
    seconds, cpu = run(), time.process_time()
    busy = run()
    busy = (time.process_time() - cpu) / (busy * torch.get_num_threads())
    every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True, experimental_config=every_thread
    ) as profiler:
        run()
    totals: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages(group_by_input_shape=True):
        totals[part_of(event.key, event.input_shapes, elmo.bilm.config)] += event.self_cpu_time_total
    whole = sum(totals.values())
    parts = {name: total / whole for name, total in totals.items()}
    return parts, busy, sum(map(len, sentences)) / seconds


def part_of(operator: str, shapes: list[list[int]], config: BiLMConfig) -> str:
    """Return the part of the model that an operator belongs to, judged by the shapes of its inputs."""
    name = operator.split("::")[-1]
    widths = {shape[-1] for shape in shapes if shape}
    if name in _TABLES:
        return "character tables"
    if name in _PRODUCTS:
        if config.n_filters in widths and name not in ("bmm", "baddbmm"):
            return "highways and character projection"
        if name == "linear_dynamic_fp16":  # the profiler does not show the shape of its weight
            return "LSTM projection" if config.cell_dim in widths else "LSTM input and state products"
        return "LSTM input and state products" if 4 * config.cell_dim in widths else "LSTM projection"
    return "gates" if name in _GATES else "other"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="raw text to take sentences from (default: random words)")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="published shapes")
    parser.add_argument(
        "--batches", nargs="+", type=int, choices=(1, 8, 32, 128), default=[1, 32], help="sentences per call"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
