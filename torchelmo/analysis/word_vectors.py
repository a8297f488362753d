"""A vector for each word type: the mean of its vectors in context, in the text format of word2vec.

v(w) = 1/n Σ_i h(occurrence i of w)

Two such files, of two languages or models, are aligned by an orthogonal matrix W (Procrustes) that minimizes
Σ ‖s (x − x̄) W + ȳ − y‖² over pairs of anchors, such as a small dictionary.
"""

import logging
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.elmo import Elmo
from torchelmo.embedder import Embedder, EmbedSettings
from torchelmo.errors import ConfigError, InputError
from torchelmo.files import atomic_write, content_hash, os_errors_as_output_error, read_lines, require_file
from torchelmo.progress import count, progress
from torchelmo.sentences import check_layers
from torchelmo.tasks.words import read_vectors
from torchelmo.tensors import read_tensors, write_tensors
from torchelmo.text.reading import malformed, read_sentences
from torchelmo.unfinished import Unfinished, check_output, compare_settings, partial_folder

KIND = "words"
SAVE_SECONDS = 60.0
_SUMS = "sums.safetensors"  # in OUT.partial
_FILES = ("output", _SUMS)
_MAX_TYPES = 2_000_000  # in memory while words are counted; beyond it, the words that were seen once are forgotten
_BLOCK = 20_000  # tokens between two points at which the work can be saved
_SPACES = re.compile(r"\s+")
log = logging.getLogger(__name__)


class WordVectors(NamedTuple):
    """What `average_words` wrote."""

    path: Path
    n_words: int
    dim: int
    n_tokens: int  # occurrences of these words


def average_words(
    elmo: Elmo,
    texts: Sequence[str],
    out: str | Path,
    *,
    layers: int | str = "average",
    min_count: int = 5,
    max_words: int = 50_000,
    lang: str | None = "en",
    batch_tokens: int = 2048,
    resume: bool = False,
    overwrite: bool = False,
) -> WordVectors:
    """Write the mean vector of every frequent word of a text, in the text format of word2vec.

    The texts are read twice: once to count the words, once to compute the vectors. The memory depends on `max_words`,
    not on the size of the texts. An interrupted run leaves OUT.partial, which `resume` continues from; a resumed run
    gives the same bytes (on the same machine, with the same number of threads).

    Args:
        elmo: The model.
        texts: Text files (plain, .gz, .bz2 or .xz).
        out: The file to write. The words are in the order of their frequency.
        layers: "average", "top", "sum" or "concat" of all layers, or the index of a layer, 0 being the token layer.
        min_count: How often a word must occur.
        max_words: How many words to write at most: the most frequent ones.
        lang: The language whose rules split the text; None if it is tokenized, with a sentence on each line.
        batch_tokens: The number of tokens in a batch.
        resume: Continue an interrupted run. If the output exists, nothing is done.
        overwrite: Replace an existing output.

    Returns:
        The path and the size of the output.

    Raises:
        ConfigError: A setting has a wrong value.
        InputError: A text cannot be read, or no word is frequent enough.
        OutputExistsError: The output exists.
        WrongCallError: The interrupted run had other settings.
    """
    out = Path(out)
    check_layers(layers, elmo.bilm.config.n_layers + 1)
    for name, number in (("min_count", min_count), ("max_words", max_words)):
        if number < 1:
            raise ConfigError(f"{name}: expected at least 1, got {number}.")
    if "-" in texts:
        raise InputError(
            "Expected text files, which can be read twice; found - for standard input. Write it to a file."
        )
    check_output(out, KIND, resume=resume, overwrite=overwrite, inputs=texts)
    if resume and out.exists() and not (partial_folder(out) / "settings.json").exists():
        log.info("%s: was already complete; nothing was done.", out)
        # A process that was killed after the output had got its name leaves the folder.
        Unfinished(out, KIND, {}, _FILES).remove()
        return _measure(out)
    # The same kernels in every process: a resumed run must write the same bytes.
    choice: Any = layers
    embedder = elmo.embedder(EmbedSettings(choice, batch_tokens=batch_tokens, kernels="fixed"))
    settings = {
        "fingerprint": elmo.bilm.fingerprint(),
        "layers": str(layers),
        "lang": lang,
        "text": [content_hash(text) for text in texts],
        "min_count": min_count,
        "max_words": max_words,
        "batch_tokens": batch_tokens,
    }
    with Unfinished(out, KIND, settings, _FILES, unit="sentences").open() as job:
        card = job.read_card() if resume else None
        if card is None:
            job.clear()
            job.write_card(settings=settings)
        else:
            compare_settings(card.get("settings"), settings, job.folder)
        words, n_sentences = _count_words(texts, lang, min_count, max_words)
        sums = _Sums(words, elmo.dim * (elmo.bilm.config.n_layers + 1 if layers == "concat" else 1))
        if (job.folder / _SUMS).exists():
            sums.load(job)
        _add_all(sums, embedder, _read(texts, lang), n_sentences, job)
        with os_errors_as_output_error(out):
            _write(job.folder / "output", sums.words, (total / n for total, n in zip(sums.totals, sums.counts)))
        job.publish("output")
    return WordVectors(out, len(words), sums.totals.shape[1], int(sums.counts.sum()))


class AlignedWords(NamedTuple):
    """What `align_words` wrote."""

    path: Path
    n_words: int
    n_anchors: int  # pairs that both files have
    n_test: int
    precision: float | None  # share of the test pairs whose target word is the nearest of all; None without any


def align_words(
    source: str | Path,
    target: str | Path,
    anchors: str | Path,
    out: str | Path,
    *,
    test: str | Path | None = None,
    overwrite: bool = False,
) -> AlignedWords:
    """Move the word vectors of one file into the space of another, so that words of both can be compared.

    Args:
        source: Word vectors in text format, such as `average_words` writes.
        target: Word vectors of the same width.
        anchors: A file with a word of `source` and its translation in `target` on each line, separated by white space,
            or one word for both. Pairs that the files do not have are left out.
        out: The file to write: all words of `source` with their vectors in the space of `target`.
        test: Pairs, written as the anchors are, to measure the precision: how often the word of `target` with the
            highest cosine is the translation. Cosines are taken after the mean of the anchors is subtracted.
        overwrite: Replace an existing output.

    Returns:
        The number of words and anchors, and the precision.

    Raises:
        InputError: A file is malformed, the vectors have different widths, or there are fewer than two anchors.
        OutputExistsError: The output exists.
    """
    out = Path(out)
    check_output(out, "align", resume=False, overwrite=overwrite, inputs=[source, target, anchors])
    (words, x), (others, y) = (
        (file.words, file.vectors.double().numpy()) for file in map(read_vectors, (source, target))
    )
    if x.shape[1] != y.shape[1]:
        raise InputError(f"{target}: expected vectors of {x.shape[1]} numbers, as in {source}, found {y.shape[1]}.")
    row, other_row = ({word: i for i, word in enumerate(some)} for some in (words, others))
    pairs = _read_pairs(anchors, row, other_row)
    if len(pairs) < 2:
        raise InputError(f"{anchors}: expected pairs of words that are in {source} and {target}, found {len(pairs)}.")
    if len(pairs) < x.shape[1]:
        log.warning(
            "%s: %s determine only a part of a rotation in %s dimensions.",
            anchors,
            count(len(pairs), "pairs"),
            x.shape[1],
        )
    i, j = np.array(pairs).T
    x_mean, y_mean = x[i].mean(axis=0), y[j].mean(axis=0)
    u, singular, v = np.linalg.svd((x[i] - x_mean).T @ (y[j] - y_mean))
    moved = singular.sum() / max(((x[i] - x_mean) ** 2).sum(), 1e-12) * (x - x_mean) @ (u @ v)
    tested = [] if test is None else _read_pairs(test, row, other_row)
    precision = None
    if tested:
        unit = (y - y_mean) / np.maximum(np.linalg.norm(y - y_mean, axis=1, keepdims=True), 1e-12)
        precision = float(np.mean([int(np.argmax(unit @ moved[i])) == j for i, j in tested]))
    with atomic_write(out) as temporary:
        _write(temporary, words, moved + y_mean)
    return AlignedWords(out, len(words), len(pairs), len(tested), precision)


def _read_pairs(path: str | Path, row: dict[str, int], other_row: dict[str, int]) -> list[tuple[int, int]]:
    """Return the rows of both words of the pairs that both files have."""
    found = []
    for number, line in enumerate(read_lines(require_file(path, "pairs of words")), 1):
        pair = line.split() * (2 if len(line.split()) == 1 else 1)
        if len(pair) not in (0, 2):
            raise malformed(path, number, "a word and its translation", f"{len(pair)} words")
        if pair and pair[0] in row and pair[1] in other_row:
            found.append((row[pair[0]], other_row[pair[1]]))
    return found


class _Sums:
    """The sum of the vectors of every word so far."""

    def __init__(self, words: Sequence[str], dim: int) -> None:
        self.words = words
        self.row = {word: i for i, word in enumerate(words)}
        self.totals: npt.NDArray[np.float64] = np.zeros((len(words), dim))
        self.counts: npt.NDArray[np.int64] = np.zeros(len(words), dtype=np.int64)
        self.n_sentences = self.n_blocks = 0  # that were added

    def add(self, tokens: Sequence[str], vectors: npt.NDArray[np.float32]) -> None:
        places = [(i, self.row[token]) for i, token in enumerate(map(_spell, tokens)) if token in self.row]
        if places:
            of_token, of_word = map(list, zip(*places))
            np.add.at(self.totals, of_word, vectors[of_token])
            np.add.at(self.counts, of_word, 1)

    def save(self, job: Unfinished) -> None:
        tensors = {
            "totals": torch.from_numpy(self.totals),
            "counts": torch.from_numpy(self.counts).double(),
            "progress": torch.tensor([self.n_sentences, self.n_blocks], dtype=torch.float64),
        }
        tensors["checksum"] = _checksum(tensors)
        write_tensors(job.folder / _SUMS, tensors)
        job.n_committed = self.n_sentences

    def load(self, job: Unfinished) -> None:
        shapes = {"totals": self.totals.shape, "counts": self.counts.shape, "progress": (2,), "checksum": ()}
        again = "Start again with overwrite=True."
        tensors = read_tensors(
            job.folder / _SUMS, shapes, what="this run", dtypes=("F64",), dtype=torch.float64, advice=again
        )
        if tensors.pop("checksum") != _checksum(tensors):
            raise job.damaged(f"{_SUMS}: the checksum is wrong")
        self.totals, self.counts = tensors["totals"].numpy(), tensors["counts"].long().numpy()
        self.n_sentences, self.n_blocks = map(int, tensors["progress"].tolist())
        job.n_committed = self.n_sentences


def _checksum(tensors: Mapping[str, Tensor]) -> Tensor:
    content = b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))
    return torch.tensor(zlib.crc32(content), dtype=torch.float64)


def _count_words(texts: Sequence[str], lang: str | None, min_count: int, max_words: int) -> tuple[list[str], int]:
    """Return the most frequent words, and the number of sentences."""
    counts: Counter[str] = Counter()
    n_sentences = 0
    with progress("count words") as advance:
        for sentence in _read(texts, lang):
            counts.update(map(_spell, sentence))
            n_sentences += 1
            advance(1)
            if len(counts) > _MAX_TYPES:
                counts = Counter({word: n for word, n in counts.items() if n > 1})
    chosen = sorted((word for word, n in counts.items() if n >= min_count), key=lambda word: (-counts[word], word))
    if not chosen:
        most = max(counts.values(), default=0)
        raise InputError(
            f"{', '.join(texts)}: expected words that occur at least {min_count} times, found {len(counts):,} words "
            f"that occur at most {count(most, 'times')}. Give more text, or reduce `min_count`."
        )
    return chosen[:max_words], n_sentences


def _add_all(
    sums: _Sums, embedder: Embedder, sentences: Iterator[list[str]], n_sentences: int, job: Unfinished
) -> None:
    """Add the vectors of all sentences that are not in the sums yet, and save the sums from time to time."""

    def wanted(block: list[list[str]]) -> list[list[str]]:
        return [sentence for sentence in block if any(_spell(token) in sums.row for token in sentence)]

    last = time.monotonic()
    with progress("average words", n_sentences, done=sums.n_sentences) as advance:
        for block in embedder.resume_blocks(_blocks(sentences), sums.n_blocks, wanted):
            some = wanted(block)
            for sentence, vectors in zip(some, embedder(some), strict=True):
                sums.add(sentence, vectors)
            sums.n_sentences += len(block)
            sums.n_blocks += 1
            advance(len(block))
            if time.monotonic() - last >= SAVE_SECONDS:
                sums.save(job)
                last = time.monotonic()


def _blocks(sentences: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    """Yield lists of sentences with about 20,000 tokens each."""
    block: list[list[str]] = []
    n_tokens = 0
    for sentence in sentences:
        block.append(sentence)
        n_tokens += len(sentence)
        if n_tokens >= _BLOCK:
            yield block
            block, n_tokens = [], 0
    if block:
        yield block


def _write(path: Path, words: Sequence[str], vectors: Iterable[npt.NDArray[np.float64]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for i, (word, vector) in enumerate(zip(words, vectors, strict=True)):
            if i == 0:
                stream.write(f"{len(words)} {len(vector)}\n")
            stream.write(f"{word} {' '.join(f'{value:.6g}' for value in vector.tolist())}\n")


def _measure(out: Path) -> WordVectors:
    """Return the size of a complete output, from its header; the number of tokens is not known."""
    with out.open(encoding="utf-8") as stream:
        header = stream.readline().split()
    if len(header) != 2 or not all(part.isdecimal() for part in header):
        raise InputError(f"{out}: expected word vectors with a header 'WORDS DIM', found another file.")
    return WordVectors(out, int(header[0]), int(header[1]), 0)


def _read(texts: Sequence[str], lang: str | None) -> Iterator[list[str]]:
    for text in texts:
        yield from read_sentences(text, lang)


def _spell(token: str) -> str:
    """Return a token as the format can hold it: white space in it becomes "_".

    >>> _spell("EE. UU.")
    'EE._UU.'
    """
    return _SPACES.sub("_", token) if not token.isalnum() else token
