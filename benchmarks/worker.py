"""Run one implementation in a separate process: read requests as JSON lines, write replies as JSON lines.

It runs in the environment of torchelmo or in that of AllenNLP, and imports only the implementation it measures.
"""

import contextlib
import gc
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
    implementation, options, weights, threads = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    start = time.perf_counter()
    import torch

    torch.set_num_threads(threads)
    torch_seconds = time.perf_counter() - start
    start = time.perf_counter()
    load = IMPLEMENTATIONS[implementation]()
    import_seconds = time.perf_counter() - start
    start = time.perf_counter()
    embed = load(options, weights)
    load_seconds = time.perf_counter() - start
    reply({"import": torch_seconds + import_seconds, "import without torch": import_seconds, "load": load_seconds})
    for line in sys.stdin:
        request = json.loads(line)
        if request["kind"] == "limits":
            reply({"gflops": sgemm_peak(), "gigabytes": reading_peak()})
        else:
            reply(measure(embed, request["sentences"], request["batch"]))


def measure(embed: Embed, sentences: Sentences, batch: int) -> dict[str, float]:
    """Embed the sentences, `batch` at a time. Return the seconds, the seconds of all cores and the peak memory."""
    getattr(embed, "clear_cache", lambda: None)()
    reset_peak_memory()
    gc.collect()  # 90 ms after an import of PyTorch, at some moment that is a matter of chance
    start, cpu_start = time.perf_counter(), time.process_time()
    for i in range(0, len(sentences), batch):
        embed(sentences[i : i + batch])
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return {"seconds": seconds, "cpu seconds": cpu_seconds, "megabytes": peak_memory()}


def torchelmo_fast(precision: str) -> Callable[[], Load]:
    """The fast path, which `embed` uses."""

    def prepare() -> Load:
        from torchelmo import Elmo, load_official

        def load(options: str, weights: str) -> Embed:
            elmo = Elmo(load_official(options, weights), dropout=0.0)

            def embed(sentences: Sentences) -> Any:
                return elmo.embed(sentences, "mix", precision=precision)  # type: ignore[call-overload]

            cache: Any = getattr(elmo, "token_cache" if hasattr(elmo, "token_cache") else "words")  # an earlier name
            embed.clear_cache = cache.clear  # type: ignore[attr-defined]
            return embed

        return load

    return prepare


def torchelmo_int8() -> Load:
    """A model folder in int8, beside the official files."""
    from torchelmo import Elmo, load

    def load_folder(options: str, weights: str) -> Embed:
        elmo = Elmo(load(Path(options).parent / "int8"), dropout=0.0)

        def embed(sentences: Sentences) -> Any:
            return elmo.embed(sentences, "mix")

        embed.clear_cache = elmo.token_cache.clear  # type: ignore[attr-defined]
        return embed

    return load_folder


def minilm() -> Load:
    """A transformer with the shape of MiniLM-L6 and random weights: padded batches, one piece per six characters."""
    import torch
    from transformers import BertConfig, BertModel

    def load(options: str, weights: str) -> Embed:
        shape: dict[str, Any] = {
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
        }
        model: Any = BertModel(BertConfig(**shape), add_pooling_layer=False)
        model.eval()

        @torch.inference_mode()
        def embed(sentences: Sentences) -> Any:
            pieces = [
                [hash(word[i : i + 6]) % 30_000 + 1 for word in s for i in range(0, len(word), 6)] for s in sentences
            ]
            rows = [torch.tensor([101, *row[:510], 102]) for row in pieces]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            return model(ids, attention_mask=ids.ne(0).long()).last_hidden_state.numpy()

        return embed

    return load


def tok2vec() -> Load:
    """The token vectors of spaCy's small pipelines: hashed word shapes and a convolution over four neighbors a side."""
    import spacy
    from spacy.tokens import Doc

    def load(options: str, weights: str) -> Embed:
        nlp = spacy.blank("en")
        pipe: Any = nlp.add_pipe("tok2vec")
        nlp.initialize()

        def embed(sentences: Sentences) -> Any:
            return pipe.predict([Doc(nlp.vocab, words=sentence) for sentence in sentences])

        return embed

    return load


def torchelmo_reference() -> Load:
    """The reference path: a loop over time steps, padded batches, 50 characters per word."""
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


IMPLEMENTATIONS: dict[str, Callable[[], Load]] = {
    "allennlp": allennlp,
    "reference": torchelmo_reference,
    "float32": torchelmo_fast("float32"),
    "float16": torchelmo_fast("float16"),
    "int8": torchelmo_int8,
    "minilm": minilm,
    "tok2vec": tok2vec,
}


def sgemm_peak() -> float:
    """Return the GFLOP/s of a 2048³ float32 product, by MKL or oneDNN: the best of several runs of the faster one."""
    import torch

    from torchelmo.bilm.fast.products import PackedProduct, PlainProduct, Product, has_packed

    a = torch.randn(2048, 2048)
    products: list[Product] = [PlainProduct(a), *([PackedProduct(a)] if has_packed() else [])]
    best = float("inf")
    for _ in range(12):
        for multiply in products:
            start = time.perf_counter()
            multiply(a)
            best = min(best, time.perf_counter() - start)
    return float(2 * 2048**3 / best / 1e9)


def reading_peak() -> float:
    """Return the GB/s at which all threads read a large tensor. The best of several runs, to exclude disturbances."""
    import torch

    a = torch.ones(1 << 26)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        a.sum()
        best = min(best, time.perf_counter() - start)
    return float(a.nbytes / best / 1e9)


def reset_peak_memory() -> None:
    """Restart the measurement of `peak_memory`, if the system supports it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> float:
    """Return the peak memory of this process since `reset_peak_memory`, in MB."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reply(message: dict[str, Any]) -> None:
    print("=" + json.dumps(message), flush=True)  # "=" marks replies: libraries print to standard output too


if __name__ == "__main__":
    main()
