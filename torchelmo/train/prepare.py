"""Text → the folder that training reads: `torchelmo prepare`. The same text and settings give the same bytes."""

import contextlib
import glob
import hashlib
import importlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from torchelmo.errors import ConfigError, MissingFileError, OutputExistsError
from torchelmo.files import require_file, writing
from torchelmo.progress import progress
from torchelmo.text.vocabulary import Vocabulary
from torchelmo.train.blocks import Block, read_blocks, split_blocks
from torchelmo.train.corpus import Part
from torchelmo.train.writer import Card, CorpusWriter

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
    with _replacing(out) as move_aside, writing(out) as temporary, CorpusWriter(temporary) as writer:
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
