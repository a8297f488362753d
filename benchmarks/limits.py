"""Compare the matrix products that PyTorch offers for LSTM steps with the limits of the machine.

    python -m benchmarks.limits
    python -m benchmarks.limits --shapes original --rows 1 8

A step reads the recurrent and projection weights of all layers and directions once, for any number of rows. It takes
at least as long as reading them from memory (measured with `torch.sum`) and as long as multiplying them (at the speed
of a large sgemm). As in the biLM, each layer runs all its steps before the next layer. Not included: the gates, the
product with the input, which is computed for many steps at once, and the character encoder.

The last column names the kernel that torchelmo measures and chooses for float32, and how much longer its products take
than the fastest ones in the row that are in float32, too.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeAlias

import torch
from torch import Tensor

from benchmarks.common import print_header
from benchmarks.embed import SHAPES
from benchmarks.worker import sgemm_peak
from torchelmo import BiLMConfig
from torchelmo.bilm.fast.inference import Recurrence
from torchelmo.bilm.fast.int8 import Int8Product, Int8Products, has_int8, quantize
from torchelmo.bilm.fast.products import (
    FEW_ROWS,
    ROW_CLASSES,
    HalfProduct,
    PackedProduct,
    PlainProduct,
    Product,
    Tuning,
    has_half,
)
from torchelmo.bilm.lstm import ProjectedLSTM
from torchelmo.runtime import in_parallel

Weights: TypeAlias = list[list[tuple[Tensor, Tensor]]]  # per direction and layer: recurrent weight, projection
Variant: TypeAlias = Callable[[int], None]  # runs _N_STEPS steps with the given number of rows

_N_STEPS = 20


def main() -> None:
    given = parse_arguments()
    peak = sgemm_peak()
    print_header(f"{torch.get_num_threads()} threads, sgemm peak {peak:.0f} GFLOP/s; median µs per step")
    with torch.inference_mode():
        for shape in given.shapes:
            config = SHAPES[shape]
            weights = make_weights(config)
            variants = make_variants(weights)
            header = [shape, "MB", "reading", "multiplying", *variants, "chosen for float32"]
            print(f"| {' | '.join(header)} |\n{'|---' * len(header)}|")
            n_values = sum(weight.numel() for layers in weights for pair in layers for weight in pair)
            for rows in given.rows:
                functions = [partial(read, weights), *(partial(variant, rows) for variant in variants.values())]
                reading, *found = medians(functions, given.rounds)
                multiplying = 2 * rows * n_values / peak / 1e3
                numbers = [n_values * 4 / 1e6, reading, multiplying, *found]
                chosen = choose(config, rows)
                exact = {name: time for name, time in zip(variants, found) if not name.startswith(("float16", "int8"))}
                more = exact[chosen] / min(exact.values()) - 1
                cells = [*(f"{number:,.0f}" for number in numbers), f"{chosen} (+{more:.0%})"]
                print(f"| {rows} row{'s' * (rows > 1)} | {' | '.join(cells)} |", flush=True)
            print()


def choose(config: BiLMConfig, rows: int) -> str:
    """Return the column of the kernel that torchelmo chooses for steps of this many rows."""
    lstm = partial(ProjectedLSTM, config.projection_dim, config.cell_dim, config.projection_dim)
    directions = [[lstm(backward=name == "backward")] for name in config.directions]
    recurrence = Recurrence(directions, residual=True, precision="float32", tuning=Tuning())
    kernel = recurrence.choose([rows])
    if kernel.product == "batched":
        return "batched directions"
    few = kernel.product == "packed" and rows < FEW_ROWS  # weights are packed, but not used so
    names = {"joined": "plain", "packed": "oneDNN packed", "always packed": "oneDNN packed"}
    name = "plain" if few else names.get(kernel.product, kernel.product)
    return f"{name}, {'one thread per direction' if kernel.in_threads else 'sequential'}"


def make_weights(config: BiLMConfig) -> Weights:
    dim, cell = config.projection_dim, config.cell_dim
    return [
        [(torch.randn(dim, 4 * cell), torch.randn(cell, dim)) for _ in range(config.n_layers)]
        for _ in config.directions
    ]


def read(weights: Weights) -> None:
    for layer in zip(*weights):
        for _ in range(_N_STEPS):
            for state, projection in layer:
                state.sum()
                projection.sum()


def make_variants(weights: Weights) -> dict[str, Variant]:
    kinds: dict[str, Callable[[Tensor], Product]] = {"plain": PlainProduct, "oneDNN packed": PackedProduct}
    if has_half():
        kinds["float16"] = HalfProduct
    if has_int8():
        kinds["int8"] = _Int8
    stacked = [
        (torch.stack([pair[0] for pair in layer]), torch.stack([pair[1] for pair in layer])) for layer in zip(*weights)
    ]
    found: dict[str, Variant] = {"batched directions": partial(run_batched, stacked)}
    for name, kind in kinds.items():
        directions = [_Direction(layers, kind) for layers in weights]
        found[f"{name}, sequential"] = partial(run_sequentially, directions)
        found[f"{name}, one thread per direction"] = partial(run_in_parallel, directions)
    return found


class _Int8:
    """An int8 product whose memory for rounded rows is allocated once for each number of rows, as in a layer."""

    def __init__(self, weight: Tensor) -> None:
        self.product = Int8Product(quantize(weight))
        self.products: dict[int, Int8Products] = {}

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        if len(x) not in self.products:
            self.products[len(x)] = Int8Products([self.product], len(x))
        [product], largest = self.products[len(x)](x.unsqueeze(1))
        return product.mul_(largest[:, 0]) if add is None else torch.addcmul(add, product, largest[:, 0], out=product)


def run_batched(layers: Sequence[tuple[Tensor, Tensor]], rows: int) -> None:
    for state, projection in layers:
        n, dim, width = state.shape
        for _ in range(_N_STEPS):
            torch.baddbmm(_values(n, rows, width), _values(n, rows, dim), state)
            torch.bmm(_values(n, rows, width // 4), projection)


class _Direction:
    """The layers of one direction, with one kind of product."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], kind: Callable[[Tensor], Product]) -> None:
        self.products = [(kind(state), kind(projection), *state.shape) for state, projection in layers]

    def run(self, rows: int) -> None:
        for state, projection, dim, width in self.products:
            for _ in range(_N_STEPS):
                state(_values(rows, dim), _values(rows, width))
                projection(_values(rows, width // 4))


def run_sequentially(directions: Sequence[_Direction], rows: int) -> None:
    with torch.inference_mode():  # the mode belongs to a thread
        for direction in directions:
            direction.run(rows)


def run_in_parallel(directions: Sequence[_Direction], rows: int) -> None:
    in_parallel(partial(run_sequentially, rows=rows), [([direction],) for direction in directions], torch.device("cpu"))


def medians(functions: Sequence[Callable[[], None]], n_rounds: int) -> list[float]:
    """Run the functions in turn, and return the median µs per step of each."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(n_rounds):
        for function, found in zip(functions, seconds):
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
    return [1e6 * statistics.median(found) / _N_STEPS for found in seconds]


@cache
def _values(*shape: int) -> Tensor:
    return torch.randn(shape)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="published shapes")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROW_CLASSES), help="rows per step")
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds (default: 7)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
