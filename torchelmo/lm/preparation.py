"""Text files -> the corpus folder that training reads: `torchelmo prepare`.

The same text and settings give the same bytes, whatever the number of worker processes.
"""

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
from typing import Literal, NamedTuple

import numpy as np

from torchelmo.errors import ConfigError, MissingFileError, OutputExistsError, TorchelmoError
from torchelmo.files import (
    atomic_write,
    decode_line,
    hold_lock,
    make_folders,
    open_bytes,
    os_errors_as_output_error,
    read_json,
    remove_empty_folders,
    require_file,
)
from torchelmo.lm.corpus import FILES, Card, CorpusWriter, Part
from torchelmo.progress import progress
from torchelmo.text.rows import RowReader
from torchelmo.text.tokenize import Tokenized, Tokenizer
from torchelmo.text.vocabulary import Vocabulary

_BLOCK_BYTES = 1 << 20
_FEW_BLOCKS = 16  # up to here, splitting takes less time than starting other processes
log = logging.getLogger(__name__)


def prepare(
    texts: Iterable[str | Path],
    out: str | Path,
    *,
    vocab_size: int = 50_000,
    vocabulary: Vocabulary | None = None,
    heldout: float | Iterable[str | Path] = 0.01,
    lang: str = "en",
    pretokenized: bool = False,
    format: Literal["text", "fasta"] = "text",
    max_characters: int = 50,
    workers: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> Card:
    """Read text files and write a corpus folder for `pretrain`.

    Args:
        texts: Plain, .gz, .bz2 or .xz files, globs, or "-" for standard input. A line is a paragraph.
        out: The folder to write.
        vocab_size: The number of words of the softmax: the most frequent ones, the three marks included. If they would
            cover the whole training text, words that occur only once are left out, so that `<UNK>` is trained.
        vocabulary: The words of the softmax, instead of `vocab_size`.
        heldout: The share of lines to hold out, or files.
        lang: The language whose spaCy rules split the text into sentences and tokens; "xx" for any language.
        pretokenized: Whether a line is a sentence with spaces between its tokens.
        format: "fasta" for proteins: each is a sentence, and each of its residues a token.
        max_characters: The number of character ids of a word, the two word marks included.
        workers: The number of processes; default: one per core if there is enough text.
        seed: Chooses the lines that are held out.
        overwrite: Replace prepared text in `out`.

    Returns:
        The content of card.json.

    Raises:
        ConfigError: A setting is wrong.
        InputError: A file is missing or damaged, or there is no text.
        OutputExistsError: `out` holds something that must not be replaced.
    """
    out = Path(out).resolve()  # a link stays, and the folder that it names is replaced
    share = float(heldout) if isinstance(heldout, (int, float)) else 0.0
    if not 0 <= share < 1:
        raise ConfigError(f"heldout: expected a share of at least 0 and below 1, or files; got {heldout}.")
    if format not in ("text", "fasta"):
        raise ConfigError(f"format: expected 'text' or 'fasta', got {format!r}.")
    pretokenized = pretokenized or format == "fasta"
    sources = _Sources(expand(texts), [] if isinstance(heldout, (int, float)) else expand(heldout), format)
    spacy = None if pretokenized else f"spaCy {importlib.import_module('spacy').__version__}"
    with (
        _claim(out, overwrite) as move_aside,
        atomic_write(out) as temporary,
        CorpusWriter(temporary) as writer,
    ):
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
                "tokenizer": {
                    "rules": spacy or ("residues" if format == "fasta" else "white space"),
                    "lang": None if pretokenized else lang,
                },
                "torchelmo": importlib.import_module("torchelmo").__version__,
                "settings": {"heldout": share, "seed": seed},
            },
            where=sources.name,
        )
        move_aside()
    _warn(card, share)
    return card


def expand(texts: Iterable[str | Path], *, folders: bool = False) -> list[str]:
    """Return the names of all files: globs are expanded and sorted, and every file is checked to be readable.

    Args:
        texts: Files, globs, or "-" for standard input.
        folders: Whether folders, such as prepared text, are accepted.

    Raises:
        MissingFileError: A file is missing, or a glob matches nothing.
    """
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
    """Describe a corpus: a line for each part, and one for the vocabulary."""
    for part, found in card["parts"].items():
        yield (
            f"{part}: {found['sentences']:,} sentences, {found['tokens']:,} tokens, {found['types']:,} types; "
            f"the vocabulary covers {1 - found['oov_rate']:.2%} of the tokens"
        )
    once = ", without words that occur once" if card["min_count"] > 1 else ""
    yield f"vocabulary: {card['vocabulary']:,} of {card['types']:,} types{once}"


class Block(NamedTuple):
    """Whole lines of a file."""

    path: str
    part: Part
    first_line: int  # counted from 1
    data: bytes


class Splitter:
    """Split a block into sentences, for each part.

    Lines of a training file are held out by a hash of their text and the seed, so that equal lines are always in the
    same part.

    Args:
        lang: The language whose rules split the text; None if a line is a sentence with spaces between its tokens.
        heldout: The share of lines to hold out.
        seed: Chooses these lines.
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
    """Read a file in blocks of whole lines. `seen` is called with all decompressed bytes."""
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


def read_protein_blocks(path: str | Path, part: Part, seen: Callable[[bytes], object]) -> Iterator[Block]:
    """Read a FASTA file in blocks of lines, one for each protein, with spaces between its residues."""
    line, waiting, size = 1, list[bytes](), 0
    for row in RowReader(path, format="fasta").rows():
        seen(row.text.encode() + b"\n")
        waiting.append(" ".join(row.text).encode() + b"\n")
        size += len(waiting[-1])
        if size >= _BLOCK_BYTES:
            yield Block(str(path), part, line, b"".join(waiting))
            line, waiting, size = line + len(waiting), [], 0
    if waiting:
        yield Block(str(path), part, line, b"".join(waiting))


def split_blocks(
    blocks: Iterable[Block], *, lang: str | None, heldout: float, seed: int, workers: int | None = None
) -> Iterator[list[tuple[Part, Tokenized]]]:
    """Yield the sentences of every block, in order; `workers` None: one process per core if there is enough text."""
    blocks = iter(blocks)
    first = list(islice(blocks, _FEW_BLOCKS))
    few = workers is None and len(first) < _FEW_BLOCKS
    n_workers = 1 if few else workers or _n_cores()
    blocks = chain(first, blocks)
    if n_workers == 1:
        yield from map(Splitter(lang, heldout, seed), blocks)
        return
    Splitter(lang, heldout, seed)  # report an unknown language here, not in a worker
    # Spawned, not forked: PyTorch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(n_workers, context, initializer=_start_worker, initargs=(lang, heldout, seed))
    try:
        # Read only a few blocks ahead of the workers, to bound the memory.
        waiting: deque[Future[list[tuple[Part, Tokenized]]]] = deque()
        for block in blocks:
            waiting.append(pool.submit(_work, block))
            if len(waiting) > 2 * n_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise TorchelmoError(
            "A worker process ended before its work was done: it was killed, perhaps because memory ran out, or it "
            "could not start. Try fewer `workers`; in a script, call prepare below `if __name__ == '__main__':`."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


class _Sources:
    """The files in their order, and a description of each for card.json."""

    def __init__(self, train: Sequence[str], heldout: Sequence[str], format: str = "text") -> None:
        self._read = read_protein_blocks if format == "fasta" else read_blocks
        for name in heldout:
            if name in train:
                raise ConfigError(f"{name}: is given as training text and as held-out text. Use it only once.")
        self._files: list[tuple[Part, str]] = [("train", name) for name in train]
        self._files += [("heldout", name) for name in heldout]
        self.cards: list[Card] = []

    @property
    def name(self) -> str:
        """The first file, and the number of others."""
        names = [name for _, name in self._files]
        return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else "".join(names) or "no file"

    def blocks(self) -> Iterator[Block]:
        """Read all files."""
        for part, name in self._files:
            digest, lines = hashlib.sha256(), 0
            for block in self._read(name, part, digest.update):
                lines = block.first_line + block.data.removesuffix(b"\n").count(b"\n")
                yield block
            # The hash is that of the text itself, so that a file and its compressed copy are the same source.
            self.cards.append(
                {"name": Path(name).name, "part": part, "lines": lines, "sha256_of_text": digest.hexdigest()}
            )


def _n_cores() -> int:
    """Return the number of cores that this process may use."""
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


_splitter: Splitter | None = None  # one per worker process


def _start_worker(lang: str | None, heldout: float, seed: int) -> None:
    global _splitter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main process handles it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _splitter = Splitter(lang, heldout, seed)


def _end_with_parent() -> None:
    """End this worker when the main process is killed, so that it does not wait for blocks forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(block: Block) -> list[tuple[Part, Tokenized]]:
    assert _splitter is not None
    return _splitter(block)


@contextlib.contextmanager
def _claim(out: Path, overwrite: bool) -> Iterator[Callable[[], None]]:
    """Lock the target and check it. Yield a function that moves an older corpus aside.

    The older corpus is removed in the end, or moved back if no new one was written. If a process was killed between
    these two moves, the next call moves it back.
    """
    aside = out.with_name(f".{out.name}.old")
    with os_errors_as_output_error(out):
        created = make_folders(out.parent)
    try:
        with hold_lock(out.with_name(f".{out.name}.lock"), str(out)):
            _settle(out, aside)
            _check_out(out, overwrite)
            try:
                yield lambda: _rename_if_present(out, aside)
            finally:
                _settle(out, aside)
    finally:
        remove_empty_folders(created)


def _settle(out: Path, aside: Path) -> None:
    """Move the older corpus back if there is no new one, and remove it if there is."""
    if not aside.is_dir() or not _is_corpus(aside):
        return
    if out.exists():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(aside, out)


def _rename_if_present(path: Path, target: Path) -> None:
    if path.exists():
        if any(path.iterdir()):
            os.rename(path, target)
        else:
            path.rmdir()


def _check_out(out: Path, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise OutputExistsError(
            f"{out}: expected a new or empty folder, found something there. Choose another `out`, or replace "
            "prepared text with overwrite=True."
        )
    if not _is_corpus(out):
        raise OutputExistsError(
            f"{out}: only prepared text can be overwritten, and this is something else, or holds other files too. "
            "It was left alone: choose another `out`."
        )


def _is_corpus(folder: Path) -> bool:
    """Return whether a folder holds prepared text and nothing else."""
    if not (folder / "card.json").is_file() or any(path.name not in FILES for path in folder.iterdir()):
        return False
    try:
        card = read_json(folder / "card.json", "the card of prepared text")
    except TorchelmoError:
        return False
    return isinstance(card, dict) and {"format", "types", "parts"} <= card.keys()


def _warn(card: Card, share: float) -> None:
    if share and "heldout" not in card["parts"]:
        log.warning("No line was held out: the text is short. Use a larger share, or files.")
    if card["min_count"] > 1:
        log.warning(
            "The vocabulary would have covered the whole training text, and %s would never have been trained: words "
            "that occur only once were left out. %d words remain.",
            "<UNK>",
            card["vocabulary"],
        )
    elif not card["parts"]["train"]["oov_rate"]:
        log.warning(
            "The vocabulary covers the whole training text, so a model cannot learn the probability of unknown words "
            "(<UNK>). Use a smaller `vocab_size`."
        )
