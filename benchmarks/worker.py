"""One contender in a process of its own, asked line by line: JSON in on standard input, JSON out on standard output.

Runs under torchelmo's Python or under the one that AllenNLP is installed in, and imports only what it measures.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Sentences = list[list[str]]
Embed = Callable[[Sentences], Any]
Load = Callable[[str, str], Embed]


def main() -> None:
    contender, options, weights, threads = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    start = time.perf_counter()
    import torch

    torch.set_num_threads(threads)
    torch_seconds = time.perf_counter() - start
    start = time.perf_counter()
    load = CONTENDERS[contender]()
    import_seconds = time.perf_counter() - start
    start = time.perf_counter()
    embed = load(options, weights)
    load_seconds = time.perf_counter() - start
    answer({"import": torch_seconds + import_seconds, "import beyond torch": import_seconds, "load": load_seconds})
    for line in sys.stdin:
        question = json.loads(line)
        if question["ask"] == "peak":
            answer(sgemm_peak())
        else:
            answer(measure(embed, question["sentences"], question["batch"]))


def measure(embed: Embed, sentences: Sentences, batch: int) -> dict[str, float]:
    """Seconds for all sentences, `batch` at a time, and the most memory the process held meanwhile."""
    getattr(embed, "forget", lambda: None)()  # no word is known from the run before
    forget_peak_memory()
    start = time.perf_counter()
    for i in range(0, len(sentences), batch):
        embed(sentences[i : i + batch])
    return {"seconds": time.perf_counter() - start, "megabytes": peak_memory()}


def torchelmo_as(precision: str) -> Callable[[], Load]:
    def prepare() -> Load:
        from torchelmo import Elmo, load_official

        def load(options: str, weights: str) -> Embed:
            elmo = Elmo(load_official(options, weights), dropout=0.0)

            def embed(sentences: Sentences) -> Any:
                return elmo.embed(sentences, "mix", precision=precision)  # type: ignore[arg-type]

            embed.forget = elmo.token_cache.clear  # type: ignore[attr-defined]
            return embed

        return load

    return prepare


def torchelmo_reference() -> Load:
    """The reference path: the written-out loop, padded batches, fifty characters per word."""
    import torch

    from torchelmo import Elmo, load_official

    def load(options: str, weights: str) -> Embed:
        elmo = Elmo(load_official(options, weights), dropout=0.0)

        @torch.no_grad()
        def embed(sentences: Sentences) -> Any:
            out = elmo.bilm(elmo.encode(sentences), path="reference")
            return elmo.mixes[0](out.layers, out.mask).numpy()

        return embed

    return load


def allennlp() -> Load:
    import torch
    from allennlp.modules.elmo import Elmo, batch_to_ids  # type: ignore[import-not-found, unused-ignore]

    def load(options: str, weights: str) -> Embed:
        elmo = Elmo(options, weights, 1, dropout=0.0).eval()

        @torch.no_grad()
        def embed(sentences: Sentences) -> Any:
            return elmo(batch_to_ids(sentences))["elmo_representations"][0].numpy()

        return embed

    return load


CONTENDERS: dict[str, Callable[[], Load]] = {
    "allennlp": allennlp,
    "reference": torchelmo_reference,
    "float32": torchelmo_as("float32"),
    "float16": torchelmo_as("float16"),
}


def sgemm_peak() -> dict[str, float]:
    """GFLOP/s of a 2048³ float32 product: the best of many, because other programs can only slow it down."""
    import torch

    a = torch.randn(2048, 2048)
    best = float("inf")
    for _ in range(12):
        start = time.perf_counter()
        torch.mm(a, a)
        best = min(best, time.perf_counter() - start)
    return {"gflops": 2 * 2048**3 / best / 1e9}


def forget_peak_memory() -> None:
    with contextlib.suppress(OSError):  # then the peak is that of the process so far
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> float:
    """Megabytes: the most this process held since `forget_peak_memory`."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def answer(message: dict[str, Any]) -> None:
    print("=" + json.dumps(message), flush=True)  # the mark tells it from what libraries print


if __name__ == "__main__":
    main()
