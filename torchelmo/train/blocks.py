"""Text files → tokens on all cores: whole lines in blocks of a megabyte, results in the order of the text.

What comes out does not depend on the number of workers, nor on where the blocks end.
"""

import hashlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchelmo.errors import TorchelmoError
from torchelmo.files import decode_line, open_bytes
from torchelmo.text.tokenize import Tokenized, Tokenizer
from torchelmo.train.corpus import Part

_BLOCK_BYTES = 1 << 20
_FEW_BLOCKS = 16  # so little text is split before other processes have started


class Block(NamedTuple):
    """Whole lines of a file."""

    path: str
    part: Part
    first_line: int  # counted from 1
    data: bytes


class Splitter:
    """A block -> its sentences, for each part that it has some of.

    `lang` None is for text that is tokenised already: a line is a sentence, and white space stands between its
    tokens. The lines of a training file that `heldout` (a share) picks go to the held-out part: by their text
    and the seed alone, so that a line that stands twice is never in both parts.
    """

    def __init__(self, lang: str | None, heldout: float, seed: int) -> None:
        self._encode = _split_at_spaces if lang is None else Tokenizer(lang).encode
        self._limit, self._key = int(heldout * 2**64), str(seed).encode()

    def __call__(self, block: Block) -> list[tuple[Part, Tokenized]]:
        lines = _lines(block)
        found = self._encode(lines)
        if block.part == "heldout" or not self._limit:
            return [(block.part, found)]
        chosen = np.fromiter(map(self._is_heldout, lines), dtype=np.bool_, count=len(lines))
        held = chosen[found.texts]
        return [("train", _select(found, ~held)), ("heldout", _select(found, held))]

    def _is_heldout(self, line: str) -> bool:
        digest = hashlib.blake2b(line.strip().encode(), digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "big") < self._limit


def read_blocks(path: str | Path, part: Part, seen: Callable[[bytes], object]) -> Iterator[Block]:
    """`seen` is called with all bytes of the text, unpacked, as they are read."""
    with open_bytes(path) as stream:
        line, waiting = 1, list[bytes]()
        for data in iter(lambda: stream.read(_BLOCK_BYTES), b""):
            seen(data)
            cut = data.rfind(b"\n") + 1
            waiting.append(data[:cut] if cut else data)
            if cut:
                block = Block(str(path), part, line, b"".join(waiting))
                line, waiting = line + block.data.count(b"\n"), [data[cut:]]
                yield block
        if any(waiting):
            yield Block(str(path), part, line, b"".join(waiting))


def split_blocks(
    blocks: Iterable[Block], *, lang: str | None, heldout: float, seed: int, workers: int | None = None
) -> Iterator[list[tuple[Part, Tokenized]]]:
    """The sentences of every block, in order. `workers` None is one per core, where there is enough to do."""
    blocks = iter(blocks)
    first = list(islice(blocks, _FEW_BLOCKS))
    few = workers is None and len(first) < _FEW_BLOCKS
    n_workers = 1 if few else workers or _n_cores()
    blocks = chain(first, blocks)
    if n_workers == 1:
        yield from map(Splitter(lang, heldout, seed), blocks)
        return
    Splitter(lang, heldout, seed)  # an unknown language is an error here, not in a worker
    # Started anew, not forked: PyTorch's threads would not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(n_workers, context, initializer=_start_worker, initargs=(lang, heldout, seed))
    try:
        # A few blocks ahead of the workers and no more: a large text must not wait in memory.
        waiting: deque[Future[list[tuple[Part, Tokenized]]]] = deque()
        for block in blocks:
            waiting.append(pool.submit(_work, block))
            if len(waiting) > 2 * n_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise TorchelmoError(
            "A worker process ended before its work was done: it was killed, perhaps for want of memory, or it "
            "could not start. Try fewer --workers; in a script, call prepare below `if __name__ == '__main__':`."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _n_cores() -> int:
    """Those that this process may use; not every system can tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _lines(block: Block) -> list[str]:
    lines = block.data.removesuffix(b"\n").split(b"\n")
    return [decode_line(line, block.path, block.first_line + i) for i, line in enumerate(lines)]


def _split_at_spaces(texts: Sequence[str]) -> Tokenized:
    numbers: dict[str, int] = {}
    sentences = [[numbers.setdefault(word, len(numbers)) for word in text.split()] for text in texts]
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    ids = np.fromiter(chain.from_iterable(sentences), dtype=np.int64, count=int(lengths.sum()))
    full = np.flatnonzero(lengths)
    return Tokenized(list(numbers), ids, lengths[full], full)


def _select(found: Tokenized, sentences: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Tokenized:
    tokens = np.repeat(sentences, found.lengths)
    return Tokenized(found.types, found.ids[tokens], found.lengths[sentences], found.texts[sentences])


_splitter: Splitter | None = None  # of a worker process


def _start_worker(lang: str | None, heldout: float, seed: int) -> None:
    global _splitter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the first one says what to do
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _splitter = Splitter(lang, heldout, seed)


def _end_with_parent() -> None:
    """When the first process is killed, its workers must not wait for blocks for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(block: Block) -> list[tuple[Part, Tokenized]]:
    assert _splitter is not None
    return _splitter(block)
