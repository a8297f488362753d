"""Rows of text → tokens → vectors, in blocks: the computation behind `embed_file` and the shards of a collection."""

import dataclasses
import difflib
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchelmo import __version__
from torchelmo.bulk.outputs import Array, Line, Shape
from torchelmo.bulk.partial import PartialOutput
from torchelmo.errors import OutputError, WrongCallError
from torchelmo.progress import Advance
from torchelmo.text.rows import Row
from torchelmo.text.tokenize import align, tokenizer_for

if TYPE_CHECKING:
    from torchelmo.elmo import Elmo
    from torchelmo.embedder import Embedder

LAYERS = ("all", "top", "average", "sum", "concat")
_BATCHES_PER_BLOCK = 4  # batches that are sorted by length together; fixed, so that a resumed run forms the same ones


@dataclasses.dataclass(frozen=True)
class JobSettings:
    """Everything that determines the numbers in the file."""

    model: str
    fingerprint: str  # hash of the weights
    layers: str
    pool: str | None
    dtype: str
    precision: str
    state: str
    lang: str | None  # None for text that is already tokenized
    batch_tokens: int
    device: str
    torchelmo: str = __version__

    def decisive(self) -> dict[str, Any]:
        """Return the settings that must be the same for a resumed run."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ("model", "torchelmo")}


def open_model(model: "str | Path | Elmo | None", device: str) -> "tuple[Elmo, str]":
    """Return the model and its name."""
    from torchelmo.elmo import Elmo
    from torchelmo.formats.load import DEFAULT_MODEL, load
    from torchelmo.runtime import choose_device

    if isinstance(model, Elmo):
        return model, str(model.bilm.origin)
    place = choose_device(device)
    return Elmo(load(model).to(place)).eval(), str(model or DEFAULT_MODEL)


def make_settings(
    elmo: "Elmo", name: str, *, layers: str | int, lang: str | None, pretokenized: bool, **others: Any
) -> JobSettings:
    """Check the settings of a job for a model, and fill in what is not given.

    Args:
        elmo: The model.
        name: The name of the model.
        layers: The choice of layers.
        lang: The language of the text; None for that of the model.
        pretokenized: The text is tokenized.
        **others: The other fields of `JobSettings`.

    Raises:
        WrongCallError: The model does not have these layers.
    """
    return JobSettings(
        model=name,
        fingerprint=elmo.bilm.fingerprint(),
        layers=_check_layers(str(layers), elmo.bilm.config.n_layers),
        lang=None if pretokenized else (lang or getattr(elmo.bilm, "lang", None) or "en"),
        device=next(elmo.bilm.parameters()).device.type,
        **others,
    )


def split_rows(rows: Iterable[Row], lang: str | None, advance: Advance) -> Iterator[Line]:
    """Yield the rows, split into sentences of tokens, and call `advance` for each."""
    for row in rows:
        if row.tokens is None and lang is not None:
            sentences = tokenizer_for(lang).spans(row.text)
        else:
            words = row.text.split() if row.tokens is None else row.tokens
            sentences = align([words], row.text) if words else []
        yield Line(row.text, sentences, row.id)
        advance(1)


def embed_blocks(elmo: "Elmo", job: PartialOutput, settings: JobSettings) -> Iterator[Iterator[Array]]:
    """Yield the vectors of all lines that are not safe yet, block by block, as an uninterrupted run would."""
    from torchelmo.embedder import BLOCKS_PER_CACHE

    embedder = _make_embedder(elmo, settings)
    if job.n_committed == len(job.counts):
        return
    if settings.state == "carry":
        yield _embed(embedder, job.lines(), settings)
        return
    starts = [0]
    for block in _blocks(job.lines(), settings):
        if starts[-1] >= job.n_committed:
            break
        starts.append(starts[-1] + len(block))
    if starts[-1] != job.n_committed:
        raise OutputError(
            f"{job.folder}: cannot be resumed: journal.jsonl: expected whole blocks of lines, such as {starts[-1]:,}, "
            f"found {job.n_committed:,}. Start again with overwrite=True."
        )
    n_done = len(starts) - 1  # blocks that are safe
    first = n_done - n_done % BLOCKS_PER_CACHE  # the cache is empty there
    blocks = _blocks(job.lines(starts[first]), settings)
    for block in embedder.resume_blocks(blocks, n_done - first, _sentences):
        yield _embed(embedder, iter(block), settings)


def _sentences(lines: Iterable[Line]) -> Iterator[list[str]]:
    return ([token.text for token in sentence] for line in lines for sentence in line.sentences)


def _blocks(lines: Iterator[Line], settings: JobSettings) -> Iterator[list[Line]]:
    """Yield lines that are sorted by length together: the number of batches is fixed."""
    block: list[Line] = []
    n_tokens = 0
    for line in lines:
        block.append(line)
        n_tokens += 1 + sum(len(sentence) + 2 for sentence in line.sentences)
        if n_tokens >= _BATCHES_PER_BLOCK * settings.batch_tokens:
            yield block
            block, n_tokens = [], 0
    if block:
        yield block


def _make_embedder(elmo: "Elmo", settings: JobSettings) -> "Embedder":
    """Return the embedder of a job."""
    from torchelmo.embedder import EmbedSettings

    choice: Any = settings.layers
    if choice in ("sum", "concat"):
        choice = "all"  # combined later, see _combine
    elif choice not in LAYERS:
        choice = int(choice)
    embed_settings = EmbedSettings(
        choice,
        batch_tokens=settings.batch_tokens,
        precision=settings.precision,  # type: ignore[arg-type]
        kernels="fixed",  # a resumed run, in another process, must write the same bytes
        state=settings.state,  # type: ignore[arg-type]
    )
    return elmo.embedder(embed_settings)


def _embed(embedder: "Embedder", lines: Iterator[Line], settings: JobSettings) -> Iterator[Array]:
    """Yield the array of each line. Its sentences are embedded one by one and joined."""
    waiting: deque[int] = deque()  # the number of sentences of each line that was read

    def sentences() -> Iterator[list[str]]:
        for line in lines:
            waiting.append(len(line.sentences))
            for sentence in line.sentences:
                yield [token.text for token in sentence]

    config = embedder.bilm.config
    whole = embedder.settings.layers == "all"
    empty = np.zeros((*([config.n_layers + 1] if whole else []), 0, config.dim), dtype=np.float32)
    parts: list[Array] = []
    for array in embedder(sentences()):
        while waiting and waiting[0] == len(parts):  # blank lines, and a line that is complete
            waiting.popleft()
            yield _combine(parts or [empty], settings)
            parts = []
        parts.append(array)
    while waiting:
        assert waiting[0] == len(parts)
        waiting.popleft()
        yield _combine(parts or [empty], settings)
        parts = []


def _combine(parts: list[Array], settings: JobSettings) -> Array:
    """Join the arrays of a line's sentences, combine their layers and pool their tokens."""
    array = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-2)
    if settings.layers == "sum":
        array = array.sum(axis=0)
    elif settings.layers == "concat":
        array = np.concatenate(list(array), axis=-1)
    if settings.pool is None:
        return array
    if not array.shape[-2]:
        return np.zeros_like(array, shape=(*array.shape[:-2], array.shape[-1]))
    pooled: Array = array.mean(axis=-2) if settings.pool == "mean" else array.max(axis=-2)
    return pooled


def shape_function(elmo: "Elmo", layers: str, pool: str | None) -> Shape:
    """Return a function from the number of a line's tokens to the shape of its array."""
    n_layers, dim = elmo.bilm.config.n_layers + 1, elmo.bilm.config.dim
    leading = (n_layers,) if layers == "all" else ()
    width = n_layers * dim if layers == "concat" else dim
    return lambda n_tokens: (*leading, *(() if pool else (n_tokens,)), width)


def _check_layers(layers: str, n_layers: int) -> str:
    if layers in LAYERS or (layers.isdecimal() and int(layers) <= n_layers):
        return layers
    near = difflib.get_close_matches(layers, LAYERS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise WrongCallError(f"`layers` {layers}: expected {', '.join(LAYERS)}, or an index from 0 to {n_layers}.{hint}")
