"""Compare ways to run the steps of one biLM layer: loops in Python, in TorchScript and in C++, in turn or in threads.

    python -m benchmarks.loops --shapes small --rows 1 32

Every number is the time of one step of one layer in both directions, with the product with the input. "batched" and
"joined" are kernels of torchelmo. The other loops run one direction after the other, or each direction in a thread.
`torch._VF.lstm` is the loop of `nn.LSTM(proj_size=…)` in C++. It does not clip, so it cannot replace the others.
`--compile` adds `torch.compile`, which needs a C++ compiler and half a minute for each number of rows.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.common import print_header
from benchmarks.embed import SHAPES
from torchelmo import BiLMConfig
from torchelmo.bilm.fast.inference import JointLayer
from torchelmo.bilm.fast.products import Kernel, Tuning
from torchelmo.bilm.lstm import ProjectedLSTM
from torchelmo.runtime import in_parallel

_N_STEPS = 20
_CLIP = 3.0


def main() -> None:
    given = parse_arguments()
    print_header(f"{torch.get_num_threads()} threads; median µs per step and layer, both directions")
    with torch.inference_mode():
        for shape in given.shapes:
            for number, rows in enumerate(given.rows):
                runs = make_loops(SHAPES[shape], rows, compiled=given.compile)
                if number == 0:
                    print(f"| {shape} | {' | '.join(runs)} |\n|---{'|---' * len(runs)}|")
                found = " | ".join(f"{micros:,.0f}" for micros in medians(list(runs.values()), given.rounds))
                print(f"| {rows} rows | {found} |", flush=True)
            print()


def make_loops(config: BiLMConfig, rows: int, *, compiled: bool = False) -> dict[str, Callable[[], object]]:
    """Return the loops by name, each over the same steps of `rows` rows."""
    dim, cell = config.projection_dim, config.cell_dim
    lstms = [
        ProjectedLSTM(dim, cell, dim, cell_clip=_CLIP, projection_clip=_CLIP, backward=name == "backward")
        for name in config.directions
    ]
    layer = JointLayer(lstms, Tuning())
    x, sizes = torch.randn(len(lstms), _N_STEPS * rows, dim), [rows] * _N_STEPS

    def state() -> tuple[Tensor, Tensor]:
        return torch.zeros(len(lstms), rows, dim), torch.zeros(len(lstms), rows, cell)

    def run(loop: Callable[..., None], in_threads: bool) -> list[Tensor]:
        hidden, twice = state()

        def run_direction(d: int) -> Tensor:
            with torch.inference_mode():
                gates = torch.addmm(layer.bias[d, 0], x[d], layer.input_weight[d])
                out = x.new_empty(len(x[d]), dim)
                loop(gates, rows, layer.state_weight[d], layer.projection[d], hidden[d], twice[d], out)
                return out

        if in_threads:
            return in_parallel(run_direction, [(d,) for d in range(len(lstms))], x.device)
        return [run_direction(d) for d in range(len(lstms))]

    plain = nn.LSTM(dim, cell, proj_size=dim, bidirectional=True).eval()
    steps = x[0].view(_N_STEPS, rows, dim)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and oneDNN has no LSTM with projections
        scripted: Callable[..., None] = torch.jit.script(run_steps)
        plain(steps)
    loops: dict[str, Callable[[], object]] = {
        "batched": lambda: layer.run(x, sizes, *state(), Kernel("batched")),
        "joined": lambda: layer.run(x, sizes, *state(), Kernel("joined")),
        "Python loop, in turn": partial(run, run_steps, False),
        "Python loop, in threads": partial(run, run_steps, True),
        "TorchScript loop, in turn": partial(run, scripted, False),
        "TorchScript loop, in threads": partial(run, scripted, True),
        "`torch._VF.lstm`, no clipping": lambda: plain(steps),
    }
    if compiled:
        loop = torch.compile(run_steps, dynamic=False)
        loops["compiled loop, in turn"] = partial(run, loop, False)
    return loops


def run_steps(
    gates: Tensor, rows: int, state_weight: Tensor, projection: Tensor, hidden: Tensor, twice: Tensor, out: Tensor
) -> None:
    """Run one direction in place. `gates` has the products with the input, `twice` is 2c, as in `JointLayer`."""
    for t in range(len(out) // rows):
        step = gates[t * rows : (t + 1) * rows].addmm_(hidden, state_weight).sigmoid_()
        i, j, f, o = step.chunk(4, dim=1)
        twice.mul_(f).addcmul_(i, j, value=4.0).sub_(i, alpha=2.0).clamp_(-6.0, 6.0)
        half = twice.sigmoid().sub_(0.5).mul_(o)
        hidden = torch.mm(half, projection).clamp_(-3.0, 3.0)
        out[t * rows : (t + 1) * rows] = hidden


def medians(functions: list[Callable[[], object]], n_rounds: int) -> list[float]:
    """Run the functions in turn, after three rounds that do not count, and return the median µs per step of each."""
    seconds: list[list[float]] = [[] for _ in functions]
    for number in range(n_rounds + 3):
        for function, found in zip(functions, seconds):
            start = time.perf_counter()
            function()
            if number >= 3:  # TorchScript optimizes during the first calls
                found.append(time.perf_counter() - start)
    return [1e6 * statistics.median(found) / _N_STEPS for found in seconds]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["small"], help="published shapes")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32], help="rows per step (default: 1 8 32)")
    parser.add_argument("--rounds", type=int, default=15, help="number of rounds (default: 15)")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile, which needs a C++ compiler")
    return parser.parse_args()


if __name__ == "__main__":
    main()
