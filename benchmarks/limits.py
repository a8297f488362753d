"""How fast a step of the LSTMs can be on this machine: what the processor allows, and every product that PyTorch has.

    python -m benchmarks.limits

A step reads the state and projection weights of all layers and directions once, whatever the number of rows. It
cannot take less than reading them takes (by `torch.sum`, the fastest reader at hand), nor less than multiplying takes
(at the speed of a large sgemm). As in the biLM, a layer takes all its steps before the next one begins. What is left
out: gates, the product with the input, which is taken for many steps at once, and the character encoder.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeAlias

import torch
from torch import Tensor

from benchmarks.embed import SHAPES
from benchmarks.text import machine
from benchmarks.worker import sgemm_peak
from torchelmo import BiLMConfig
from torchelmo.bilm.fast.products import HalfProduct, PackedProduct, PlainProduct, Product, has_half
from torchelmo.runtime import in_parallel

Weights: TypeAlias = list[list[tuple[Tensor, Tensor]]]  # of each direction and layer: state weight, projection
Way: TypeAlias = Callable[[int], None]  # takes _N_STEPS steps of so many rows

_N_STEPS = 20


def main() -> None:
    given = parse_arguments()
    peak = sgemm_peak()["gflops"]
    print(f"{machine()}, {torch.get_num_threads()} threads, sgemm peak {peak:.0f} GFLOP/s; µs per step, medians")
    with torch.inference_mode():
        for shape, config in SHAPES.items():
            weights = make_weights(config)
            known = ways(weights)
            header = [shape, "MB", "reading", "multiplying", *known]
            print(f"\n| {' | '.join(header)} |\n{'|---' * len(header)}|")
            n_values = sum(weight.numel() for layers in weights for pair in layers for weight in pair)
            for rows in given.rows:
                reading, *found = medians([partial(read, weights), *(partial(way, rows) for way in known.values())])
                multiplying = 2 * rows * n_values / peak / 1e3
                numbers = [n_values * 4 / 1e6, reading, multiplying, *found]
                print(f"| {rows} rows | {' | '.join(f'{number:,.0f}' for number in numbers)} |", flush=True)


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


def ways(weights: Weights) -> dict[str, Way]:
    kinds: dict[str, Callable[[Tensor], Product]] = {"plain": PlainProduct, "oneDNN packed": PackedProduct}
    if has_half():
        kinds["FBGEMM float16"] = HalfProduct
    stacked = [
        (torch.stack([pair[0] for pair in layer]), torch.stack([pair[1] for pair in layer])) for layer in zip(*weights)
    ]
    found: dict[str, Way] = {"directions batched": partial(batched, stacked)}
    for name, kind in kinds.items():
        directions = [_Direction(layers, kind) for layers in weights]
        found[f"{name}, in turn"] = partial(in_turn, directions)
        found[f"{name}, a thread each"] = partial(side_by_side, directions)
    return found


def batched(layers: Sequence[tuple[Tensor, Tensor]], rows: int) -> None:
    for state, projection in layers:
        n, dim, width = state.shape
        for _ in range(_N_STEPS):
            torch.baddbmm(_values(n, rows, width), _values(n, rows, dim), state)
            torch.bmm(_values(n, rows, width // 4), projection)


class _Direction:
    """The products of its layers, one after the other, with weights of one kind."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], kind: Callable[[Tensor], Product]) -> None:
        self.products = [(kind(state), kind(projection), *state.shape) for state, projection in layers]

    def run(self, rows: int) -> None:
        for state, projection, dim, width in self.products:
            for _ in range(_N_STEPS):
                state(_values(rows, dim), _values(rows, width))
                projection(_values(rows, width // 4))


def in_turn(directions: Sequence[_Direction], rows: int) -> None:
    for direction in directions:
        direction.run(rows)


def side_by_side(directions: Sequence[_Direction], rows: int) -> None:
    in_parallel(partial(in_turn, rows=rows), [([direction],) for direction in directions], torch.device("cpu"))


def medians(works: Sequence[Callable[[], None]], n_rounds: int = 7) -> list[float]:
    """µs per step of each, in turns."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(n_rounds):
        for work, found in zip(works, seconds):
            start = time.perf_counter()
            work()
            found.append(time.perf_counter() - start)
    return [1e6 * statistics.median(found) / _N_STEPS for found in seconds]


@cache
def _values(*shape: int) -> Tensor:
    return torch.randn(shape)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32], help="sentences at once (default: 1 8 32)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
