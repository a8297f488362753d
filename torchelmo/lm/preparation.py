"""Text → the folder that training reads: `torchelmo prepare`. The same text and settings give the same bytes."""

import contextlib
import glob
import hashlib
import importlib
import logging
import multiprocessing
import os
import shutil
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

from torchelmo.errors import ConfigError, MissingFileError, OutputExistsError, TorchelmoError
from torchelmo.files import atomic_write, decode_line, open_bytes, require_file
from torchelmo.lm.corpus import Card, CorpusWriter, Part
from torchelmo.progress import progress
from torchelmo.text.tokenize import Tokenized, Tokenizer
from torchelmo.text.vocabulary import Vocabulary

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


_logger = logging.getLogger(__name__)


def prepare(
    texts: Iterable[str | Path],
    out: str | Path,
    *,
    vocab_size: int = 50_000,
    vocabulary: Vocabulary | None = None,
    heldout: float | Iterable[str | Path] = 0.01,
    lang: str = "en",
    pretokenized: bool = False,
    max_characters: int = 50,
    workers: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> Card:
    """Read plain, .gz, .bz2 or .xz files (or globs), write the folder `out`, and return its card.

    A line is a paragraph for spaCy's rules of `lang`, or with `pretokenized` a sentence of tokens between white
    space; blank lines do not matter. `heldout` is the share of lines that is held out, or files. The softmax has
    the `vocab_size` most frequent types, or the words of `vocabulary`.
    """
    out = Path(out)
    _check_out(out, overwrite)
    out = out.resolve()  # a link stays, and what it leads to is replaced
    share = float(heldout) if isinstance(heldout, (int, float)) else 0.0
    if not 0 <= share < 1:
        raise ConfigError(f"heldout: expected a share of at least 0 and below 1, or files; got {heldout}.")
    sources = _Sources(expand(texts), [] if isinstance(heldout, (int, float)) else expand(heldout))
    settings = {"heldout": share, "seed": seed}
    spacy = None if pretokenized else f"spaCy {importlib.import_module('spacy').__version__}"
    with _replacing(out) as move_aside, atomic_write(out) as temporary, CorpusWriter(temporary) as writer:
        with progress("prepare", unit="tokens") as advance:
            for found in split_blocks(
                sources.blocks(),
                lang=None if pretokenized else lang,
                heldout=share,
                seed=seed,
                workers=workers,
            ):
                for part, (types, ids, lengths, _) in found:
                    writer.add(part, types, ids, lengths)
                    advance(len(ids))
        card = writer.finish(
            vocabulary or vocab_size,
            max_characters=max_characters,
            card={
                "sources": sources.cards,
                "tokenizer": {"rules": spacy or "white space", "lang": None if pretokenized else lang},
                "torchelmo": importlib.import_module("torchelmo").__version__,
                "settings": settings,
            },
        )
        move_aside()
    if share and "heldout" not in card["parts"]:
        _logger.warning("No line fell into the held-out part: the text is short. Use a larger share, or files.")
    return card


def expand(texts: Iterable[str | Path], *, folders: bool = False) -> list[str]:
    """Files as they are, globs by name; every one can be read. `folders` lets prepared text pass too."""
    found: list[str] = []
    for text in map(str, texts):
        if text == "-" or Path(text).exists():
            found.append(text)
            continue
        matches = sorted(name for name in glob.glob(text, recursive=True) if Path(name).is_file())
        if not matches:
            what = "files of that pattern" if glob.has_magic(text) else "a text file"
            raise MissingFileError(f"{text}: expected {what}, found nothing. Check the path.")
        found += matches
    for name in found:
        if name != "-" and not (folders and Path(name).is_dir()):
            require_file(name, "a text file")
    return found


def describe(card: Card) -> Iterator[str]:
    """What was found, for people: a line for each part, and one for the vocabulary."""
    for part, found in card["parts"].items():
        yield (
            f"{part}: {found['sentences']:,} sentences, {found['tokens']:,} tokens, {found['types']:,} types; "
            f"the vocabulary covers {1 - found['oov_rate']:.2%} of the tokens"
        )
    yield f"vocabulary: {card['vocabulary']:,} of {card['types']:,} types"


class _Sources:
    """The files in their order, and what was read of each."""

    def __init__(self, train: Sequence[str], heldout: Sequence[str]) -> None:
        for name in heldout:
            if name in train:
                raise ConfigError(f"{name}: is both trained on and held out. Leave it out of one of the two.")
        self._files: list[tuple[Part, str]] = [("train", name) for name in train]
        self._files += [("heldout", name) for name in heldout]
        self.cards: list[Card] = []

    def blocks(self) -> Iterator[Block]:
        for part, name in self._files:
            digest, lines = hashlib.sha256(), 0
            for block in read_blocks(name, part, digest.update):
                lines = block.first_line + block.data.removesuffix(b"\n").count(b"\n")
                yield block
            # Of the text itself, so that a file and its compressed copy are the same source.
            self.cards.append(
                {"name": Path(name).name, "part": part, "lines": lines, "sha256_of_text": digest.hexdigest()}
            )


@contextlib.contextmanager
def _replacing(out: Path) -> Iterator[Callable[[], None]]:
    """A function that moves an older folder aside; in the end it is removed, or put back if no new one came."""
    aside = out.with_name(f".{out.name}.{os.getpid()}.old")

    def move_aside() -> None:
        if out.exists():
            os.rename(out, aside)

    try:
        yield move_aside
    finally:
        if aside.exists() and not out.exists():
            os.rename(aside, out)
        shutil.rmtree(aside, ignore_errors=True)


def _check_out(out: Path, overwrite: bool) -> None:
    """Everything about the target that can be known before the work."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise OutputExistsError(
            f"{out}: expected a new or empty folder, found something there. Choose another --out, or replace "
            "prepared text with --overwrite."
        )
    if not (out / "card.json").is_file():
        raise OutputExistsError(
            f"{out}: only prepared text is overwritten, and this has no card.json. Choose another --out."
        )
