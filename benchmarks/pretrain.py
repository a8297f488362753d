"""Measure the training speed of the fast path, its parts, and the reference path with plain autograd.

    python -m benchmarks.pretrain --shapes 512-512

A step processes a window of batch × unroll tokens in both directions: forward and backward pass with sampled softmax,
gradient clipping and fused Adam. Each token counts once, although both directions read it. "LSTMs in turn" runs one
direction after the other with all threads, instead of each direction in its own thread.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import commit, machine, print_header, sample_sentences
from benchmarks.worker import peak_memory, reset_peak_memory, sgemm_peak
from torchelmo import BiLM, BiLMConfig
from torchelmo.bilm.encoder import CharCNN
from torchelmo.bilm.fast.encoder import encode_types
from torchelmo.bilm.fast.training import run_training
from torchelmo.bilm.model import BiLMState, Softmax
from torchelmo.lm.corpus import Corpus
from torchelmo.lm.losses import Negatives, Sampler, sampled_loss
from torchelmo.runs.config import OptimConfig
from torchelmo.runs.optim import build_optimizer, clip_gradients
from torchelmo.runtime import keep_freed_memory, onednn_products, why_onednn_crashes
from torchelmo.text.characters import CharacterEncoder
from torchelmo.text.vocabulary import BEGIN, END, UNKNOWN

FEW_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256))


class Shape(NamedTuple):
    config: BiLMConfig
    negatives: int


def _shape(cell: int, words: int, negatives: int, **more: Any) -> Shape:
    return Shape(BiLMConfig(cell_dim=cell, projection_dim=128, n_highway=1, softmax_words=words, **more), negatives)


SHAPES = {
    "1024-2048": _shape(1024, 50_000, 8192),
    "1024-512": _shape(1024, 50_000, 4096, filters=FEW_FILTERS),
    "512-512": _shape(512, 30_000, 4096, filters=FEW_FILTERS),
}

TrainingPath = Literal["fast", "reference"]
PATHS: tuple[TrainingPath, ...] = ("fast", "reference")


class Text(NamedTuple):
    ids: Tensor  # (n_tokens,): word types numbered by decreasing frequency, with sentence boundaries
    characters: Tensor  # (n_types, max_characters)


class Window(NamedTuple):
    ids: tuple[Tensor, Tensor]  # forward, backward: (batch, unroll)
    targets: Tensor  # (2 · batch · unroll,)


def main() -> None:
    arguments = parse_arguments()
    result: dict[str, Any] = {"machine": machine(), "commit": commit(), "threads": arguments.threads, "rows": []}
    # One process per shape, so that their peak memories are independent.
    print_header(f"{arguments.threads} threads, {arguments.precision}; percentages are shares of the sgemm peak")
    print(
        "| cell-filters | sgemm GFLOP/s | tokens/s (max) | reference | speed-up | encoder | LSTMs | LSTMs in turn ",
        end="",
    )
    print("| softmax | optimizer | MB, reference |\n|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for name in arguments.shapes:
            result["rows"].append(pool.submit(measure, name, arguments).result())
            print_row(result["rows"][-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Take one step on both paths and run every part once per round, so that other load affects all of them."""
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    with contextlib.nullcontext() if arguments.plain_products else onednn_products(torch.device("cpu")):
        return _measure(name, arguments)


def _measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    shape, text = SHAPES[name], read_text(arguments.data) if arguments.data else make_text()
    training = Training(shape, text, arguments.batch, arguments.unroll, arguments.precision)
    memory = {}
    for path in PATHS:
        reset_peak_memory()
        for _ in range(2):  # the first steps also start threads and allocate the optimizer state
            with training.autocast():
                training.step(path)
        memory[path] = peak_memory()
    times: dict[str, list[float]] = {}
    peaks = []
    for _ in range(arguments.rounds):
        peaks.append(sgemm_peak())
        runs: dict[str, Callable[[], None]] = {path: partial(training.step, path) for path in PATHS}
        for what, run in (runs | training.parts()).items():
            start = time.perf_counter()
            with training.autocast():
                run()
            times.setdefault(what, []).append(time.perf_counter() - start)
    seconds = {what: statistics.median(values) for what, values in times.items()}
    tokens, peak = arguments.batch * arguments.unroll, max(peaks)
    flops = training.flops()
    return {
        "shape": name,
        "sgemm": peak,
        "tokens_per_second": tokens / seconds["fast"],
        "fastest": tokens / min(times["fast"]),
        "reference_tokens_per_second": tokens / seconds["reference"],
        "ratio": statistics.median(p / f for p, f in zip(times["reference"], times["fast"])),
        "megabytes": memory,
        "seconds": seconds,
        "share_of_peak": {what: flops[what] / seconds[what] / 1e9 / peak for what in flops},
        "types": statistics.mean(training.n_types),
    }


class Training:
    """A model in training, and the windows of its text."""

    def __init__(self, shape: Shape, text: Text, batch: int, unroll: int, precision: str = "float32") -> None:
        torch.manual_seed(0)
        self.autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=precision == "bfloat16")
        self.shape, self.text, self.batch, self.unroll = shape, text, batch, unroll
        self.bilm = BiLM(shape.config)
        self.parameters = list(self.bilm.parameters())
        self.optimizer = build_optimizer(OptimConfig(name="adam", lr=1e-4), self.parameters)
        self.sampler = Sampler(shape.config.softmax_words, shape.negatives)
        self.generator = torch.Generator().manual_seed(0)
        self.windows = cut_windows(text, batch, unroll, shape.config.softmax_words)
        self.state: BiLMState | None = None
        self.n_types: list[int] = []

    def step(self, path: TrainingPath) -> None:
        window, negatives = next(self.windows), self.sampler.draw(self.generator)
        out = run_training(self.bilm, *window.ids, self.state, characters=self.text.characters, path=path)
        assert out.forward is not None
        assert out.backward is not None
        hidden = torch.cat([out.forward.flatten(0, 1), out.backward.flatten(0, 1)])
        loss = sampled_loss if path == "fast" else reference_sampled_loss
        assert isinstance(self.bilm.softmax, Softmax)
        loss(self.bilm.softmax, hidden, window.targets, negatives).backward()
        clip_gradients(self.parameters, 10.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state = out.state
        self.n_types.append(len(torch.cat(window.ids).unique()))

    def parts(self) -> dict[str, Callable[[], None]]:
        """Return the parts of the fast path as functions, each with its forward and backward pass."""
        config, bilm = self.shape.config, self.bilm
        window, negatives = next(self.windows), self.sampler.draw(self.generator)
        rows = self.text.characters[torch.cat(window.ids).unique()]
        words = BiLM(lstms_only(config))  # shares the LSTMs, but has no character encoder
        for name in ("forward_lstms", "backward_lstms"):
            words.add_module(name, bilm.get_submodule(name))
        hidden = torch.randn(len(window.targets), config.projection_dim, requires_grad=True)
        characters, last = bilm.encoder, bilm.softmax
        assert isinstance(characters, CharCNN)
        assert isinstance(last, Softmax)

        def encoder() -> None:
            out = encode_types(characters, rows)
            out.backward(torch.ones_like(out))

        def lstms() -> None:
            one = torch.ones(self.batch, self.unroll, dtype=torch.int64)
            out = run_training(words, one, one, self.state)
            tops = [top for top in (out.forward, out.backward) if top is not None]
            torch.autograd.backward(tops, [torch.ones_like(top) for top in tops])

        def lstms_in_turn() -> None:
            with patch("torchelmo.bilm.fast.training.in_parallel", run_in_turn):
                lstms()

        def softmax() -> None:
            sampled_loss(last, hidden, window.targets, negatives).backward()

        def optimizer() -> None:
            clip_gradients(self.parameters, 10.0)
            self.optimizer.step()
            self.optimizer.zero_grad()

        self.n_negatives = len(negatives.words)
        return {
            "encoder": encoder,
            "LSTMs": lstms,
            "LSTMs in turn": lstms_in_turn,
            "softmax": softmax,
            "optimizer": optimizer,
        }

    def flops(self) -> dict[str, float]:
        """Count the operations of the matrix products per step. The backward pass takes twice the forward pass.

        Convolutions are not counted: they are sums of table rows.
        """
        c, tokens = self.shape.config, self.batch * self.unroll
        p, n = c.projection_dim, c.n_filters
        encoder = 2.0 * (c.n_highway * 2 * n * n + n * p) * statistics.mean(self.n_types)
        lstms = 2 * c.n_layers * 2.0 * (2 * p * 4 * c.cell_dim + c.cell_dim * p) * tokens
        return {"encoder": 3 * encoder, "LSTMs": 3 * lstms, "softmax": 3 * 2.0 * 2 * tokens * self.n_negatives * p}


def run_in_turn(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], device: torch.device) -> list[Any]:
    """Call `function` with each tuple of arguments, as `in_parallel`, but one after the other with all threads."""
    with torch.no_grad():
        return [function(*each) for each in arguments]


def reference_sampled_loss(softmax: Softmax, hidden: Tensor, targets: Tensor, negatives: Negatives) -> Tensor:
    """Compute the sampled softmax loss with autograd, which keeps all scores in memory."""
    words = negatives.words
    offset = softmax.bias[words] - negatives.log_inclusion
    others = torch.addmm(offset, hidden, softmax.weight[words].T)
    others = others.masked_fill(targets.unsqueeze(1) == words, -torch.inf)
    own = (hidden * softmax.weight[targets]).sum(dim=1) + softmax.bias[targets]
    return (torch.logsumexp(torch.cat([own.unsqueeze(1), others], dim=1), dim=1) - own).mean()


def lstms_only(config: BiLMConfig) -> BiLMConfig:
    return BiLMConfig(input="words", n_words=1, projection_dim=config.projection_dim, cell_dim=config.cell_dim)


def cut_windows(text: Text, batch: int, unroll: int, n_words: int) -> Iterator[Window]:
    """Yield windows of `batch` rows of running text. The backward direction reads a window from its end."""
    length = (len(text.ids) - 2) // batch
    rows = text.ids[: batch * length].view(batch, length)
    targets = torch.where(rows < n_words, rows, 2)
    while True:
        for start in range(1, length - unroll - 1, unroll):
            inside, after, before = (slice(start + i, start + i + unroll) for i in (0, 1, -1))
            expected = [targets[:, after], targets[:, before].flip(1)]
            ids = rows[:, inside], rows[:, inside].flip(1)
            yield Window(ids, torch.cat([part.flatten() for part in expected]))


def make_text() -> Text:
    """Build a text of random words with sentence boundaries."""
    sentences = sample_sentences(None, 15_000)
    counts = Counter(word for sentence in sentences for word in sentence)
    types = [BEGIN, END, UNKNOWN, *(word for word, _ in counts.most_common())]
    place = {word: i for i, word in enumerate(types)}
    ids = [i for sentence in sentences for i in (0, *(place[word] for word in sentence), 1)]
    return Text(torch.tensor(ids), torch.from_numpy(CharacterEncoder().encode(types)).short())


def read_text(folder: Path, n_tokens: int = 400_000) -> Text:
    """Read the first tokens of prepared text, without sentence boundaries."""
    corpus = Corpus(folder)
    ids = torch.from_numpy(np.array(corpus.tokens[:n_tokens], dtype=np.int64))
    return Text(ids, torch.from_numpy(np.array(corpus.characters)))


def print_row(row: dict[str, Any]) -> None:
    parts = [
        f"{row['seconds'][name] * 1e3:.0f} ms"
        + (f", {row['share_of_peak'][name]:.0%}" if name in row["share_of_peak"] else "")
        for name in ("encoder", "LSTMs", "LSTMs in turn", "softmax", "optimizer")
    ]
    print(
        f"| {row['shape']} | {row['sgemm']:.0f} | {row['tokens_per_second']:,.0f} ({row['fastest']:,.0f}) "
        f"| {row['reference_tokens_per_second']:,.0f} | {row['ratio']:.2f} | {' | '.join(parts)} "
        f"| {row['megabytes']['fast']:,.0f}, {row['megabytes']['reference']:,.0f} |",
        flush=True,
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="text prepared by `torchelmo prepare` (default: random words)")
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=SHAPES,
        default=list(SHAPES),
        help="cell_dim and number of filters; projection_dim is 128",
    )
    parser.add_argument("--batch", type=int, default=128, help="rows per window (default: 128)")
    parser.add_argument("--unroll", type=int, default=20, help="tokens per row (default: 20)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of both paths")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32", help="of matrix products (default: float32)"
    )
    parser.add_argument(
        "--plain-products", action="store_true", help="use PyTorch's own float32 products, even where oneDNN is faster"
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    given = parser.parse_args()
    if given.precision == "bfloat16" and (reason := why_onednn_crashes()):
        parser.error(f"--precision bfloat16 is not available here: {reason}.")
    return given


if __name__ == "__main__":
    main()
