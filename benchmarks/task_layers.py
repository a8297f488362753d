"""Compare the recurrent layers of the task models with PyTorch's own.

    python -m benchmarks.task_layers --threads 1 2

One row for each hand-written gradient (GRU, highway LSTM), and one for the padded LSTM of `BiRNN`, which has none. A
step is a forward and a backward pass over batches of random vectors with sentence lengths as in training, sorted by
length in pools. The implementations take turns, so that other load on the machine affects all of them; the table shows
medians. LSTM and GRU are compared with PyTorch's packed sequences only, the highway LSTM with its reference path.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from benchmarks.common import print_header, sample_sentences
from torchelmo.tasks.layers.basic import BiRNN, lengths_mask
from torchelmo.tasks.srl.model import HighwayLSTM
from torchelmo.text.batching import training_batches


class Batch(NamedTuple):
    x: Tensor  # (rows, tokens, input_dim)
    lengths: Tensor  # (rows,)
    mask: Tensor  # (rows, tokens)


Run = Callable[[Batch], Tensor]


class Case(NamedTuple):
    """One layer at one size."""

    layer: str
    size: str
    batches: list[Batch]
    runs: dict[str, Run]  # "ours" and the implementations it is compared with


def main() -> None:
    """Print a Markdown table with one row for each layer, size and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (default 1 2)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds whose median counts (default 9)")
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu: processor time, for one thread on a busy machine"
    )
    given = parser.parse_args()
    clock = time.perf_counter if given.clock == "wall" else time.process_time

    print_header()
    print("| layer | rows, input → hidden | threads | ours ms | packed ms | reference ms | gain |")
    print("|---|---|---|---|---|---|---|")
    for case in cases():
        for threads in given.threads:
            torch.set_num_threads(threads)
            medians = measure(case, given.rounds, clock)
            cells = [
                f"{1000 * medians[name]:.0f}" if name in medians else "" for name in ("ours", "packed", "reference")
            ]
            gain = min(value for name, value in medians.items() if name != "ours") / medians["ours"]
            print(f"| {case.layer} | {case.size} | {threads} | {' | '.join(cells)} | {gain:.2f} × |", flush=True)


def cases() -> Iterator[Case]:
    """Yield the layers at the sizes of small and published experiments."""
    for n_rows, input_dim, hidden_dim in ((64, 64, 64), (32, 306, 200), (32, 300, 300)):
        yield _rnn_case("LSTM", nn.LSTM, n_rows, input_dim, hidden_dim, words_per_sentence=1)
    for n_rows, input_dim, hidden_dim in ((16, 178, 50), (45, 180, 90)):
        yield _rnn_case("GRU", nn.GRU, n_rows, input_dim, hidden_dim, words_per_sentence=6)  # passages are longer
    for n_layers, input_dim, hidden_dim in ((4, 114, 128), (8, 200, 300)):
        lstm = HighwayLSTM(input_dim, hidden_dim, n_layers=n_layers)
        runs: dict[str, Run] = {
            "ours": lambda batch, lstm=lstm: lstm(batch.x, batch.mask),  # type: ignore[misc]
            "reference": lambda batch, lstm=lstm: lstm(batch.x, batch.mask, path="reference"),  # type: ignore[misc]
        }
        size = f"40, {input_dim} → {hidden_dim}"
        yield Case(f"highway LSTM, {n_layers} layers", size, _batches(40, input_dim, 1), runs)


def measure(case: Case, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the median seconds of each implementation for one pass over the batches."""
    seconds: dict[str, list[float]] = {name: [] for name in case.runs}
    for number in range(rounds + 1):
        for name, run in case.runs.items():
            start = clock()
            for batch in case.batches:
                run(batch).sum().backward()
            if number:  # the first round warms up
                seconds[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _rnn_case(
    name: str, cls: type[nn.LSTM] | type[nn.GRU], n_rows: int, input_dim: int, hidden_dim: int, words_per_sentence: int
) -> Case:
    ours = BiRNN(input_dim, hidden_dim, cell="lstm" if cls is nn.LSTM else "gru")
    packed = cls(input_dim, hidden_dim, batch_first=True, bidirectional=True)

    def run_packed(batch: Batch) -> Tensor:
        result: Tensor = packed(pack_padded_sequence(batch.x, batch.lengths, batch_first=True, enforce_sorted=False))[
            0
        ].data
        return result

    runs: dict[str, Run] = {"ours": lambda batch: ours(batch.x, batch.mask), "packed": run_packed}
    return Case(name, f"{n_rows}, {input_dim} → {hidden_dim}", _batches(n_rows, input_dim, words_per_sentence), runs)


def _batches(n_rows: int, dim: int, factor: int) -> list[Batch]:
    """Return three batches: of short, medium and long sentences."""
    lengths = [factor * len(sentence) for sentence in sample_sentences(None, 3000)]
    batches = [batch for batch in training_batches(lengths, n_rows, seed=1) if len(batch) == n_rows]
    batches.sort(key=lambda batch: lengths[batch[0]])
    generator = torch.Generator().manual_seed(1)
    result = []
    for share in (0.2, 0.5, 0.8):
        chosen = torch.tensor([lengths[i] for i in batches[int(share * len(batches))]])
        x = torch.randn(n_rows, int(chosen.max()), dim, generator=generator).requires_grad_()
        result.append(Batch(x, chosen, lengths_mask(chosen)))
    return result


if __name__ == "__main__":
    main()
