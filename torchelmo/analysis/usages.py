"""Collect the vectors of every usage of target words in a text: one array (n_usages, dim) for each word.

Texts may have any size: sentences are read as they are needed, and vectors go to the disk at once.
"""

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchelmo.analysis.usage_files import (
    KIND,
    SUFFIXES,
    PartialUsages,
    Usage,
    UsageFile,
    UsageSentence,
    import_parquet,
)
from torchelmo.elmo import Elmo
from torchelmo.embedder import EmbedSettings
from torchelmo.errors import (
    ConfigError,
    InputError,
    WrongCallError,
    short_repr,
)
from torchelmo.files import (
    content_hash,
    read_lines,
    require_file,
)
from torchelmo.progress import progress
from torchelmo.text.reading import malformed
from torchelmo.text.tables import TableReader
from torchelmo.text.tokenize import Token, align, tokenizer_for
from torchelmo.unfinished import check_output, compare_settings

COMMIT_SECONDS = 5.0  # a killed run loses no more work than this
_BATCHES_AT_ONCE = 4  # batches that are sorted by length together; fixed, so that a resumed run forms the same batches
_DWUG = ("lemma", "context", "indexes_target_token")  # columns of uses.csv
log = logging.getLogger(__name__)


class UsagesResult(NamedTuple):
    """What `collect_usages` wrote."""

    path: Path
    counts: dict[str, int]  # usages of each target
    dim: int
    already_complete: bool = False  # there was nothing left to do for `resume`


def read_targets(path: str | Path) -> dict[str, str]:
    """Read target words: one per line, or a lemma and its forms, separated by commas.

    Returns:
        The lemma of every form; a lemma is a form of itself.

    Raises:
        InputError: The file has no words, or a form belongs to two lemmas.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(require_file(path, "a list of target words")), 1):
        lemma, *forms = (form.strip() for form in line.split(","))
        for form in [lemma, *forms]:
            if form and found.setdefault(form, lemma) != lemma:
                both = f"{short_repr(found[form])} and {short_repr(lemma)}"
                raise malformed(path, number, "forms of one lemma", f"{short_repr(form)} as a form of {both}")
    if not found:
        raise InputError(f"{path}: expected target words, one per line, found none.")
    return found


def read_usages(
    files: Iterable[str],
    targets: dict[str, str] | None,
    *,
    lang: str | None = "en",
    ignore_case: bool = False,
    grouping: str | None = None,
) -> Iterator[UsageSentence]:
    """Yield the sentences of texts that contain target words.

    Args:
        files: Text files, or `uses.csv` files of DWUG, which name the position of the target in characters.
        targets: The lemma of each form, see `read_targets`. None takes all uses of DWUG files.
        lang: The language whose rules split the text; None if it is already tokenized.
        ignore_case: Find forms in any case.
        grouping: Only the uses of DWUG files with this value in the column `grouping`, the period.

    Raises:
        InputError: A DWUG file is damaged, or a text was given without targets.
    """
    forms = targets
    if targets is not None and ignore_case:
        forms = {form.lower(): lemma for form, lemma in targets.items()}
    lemmas = None if targets is None else set(targets.values())
    for file in files:
        if _is_dwug(file):
            yield from _read_dwug(file, lemmas, lang, grouping)
            continue
        if forms is None:
            raise WrongCallError(
                f"{file}: expected `targets`, the words to look for. Only uses.csv of DWUG has its own."
            )
        for number, text in enumerate(read_lines(file), 1):
            for tokens in _split(text, lang):
                names = [token.text.lower() if ignore_case else token.text for token in tokens]
                found = [Usage(forms[name], [i]) for i, name in enumerate(names) if name in forms]
                if found:
                    yield UsageSentence(file, number, text, tokens, found)


def collect_usages(
    elmo: Elmo,
    files: Sequence[str],
    targets: dict[str, str] | None,
    out: str | Path,
    *,
    layers: str | int = "top",
    lang: str | None = "en",
    ignore_case: bool = False,
    grouping: str | None = None,
    max_usages: int | None = None,
    seed: int = 0,
    batch_tokens: int = 2048,
    resume: bool = False,
    overwrite: bool = False,
) -> UsagesResult:
    """Write the vectors of all usages of target words to a file.

    Args:
        elmo: The model.
        files: See `read_usages`.
        targets: See `read_usages`.
        out: The file to write. `.npz` has an array (n_usages, dim) for each target, under its name. `.parquet` has a
            row for each usage, with its sentence and offsets, and needs the extra `parquet`.
        layers: "top", "average", "sum", "concat" or the index of a layer (0 is the token layer).
        lang: See `read_usages`.
        ignore_case: See `read_usages`.
        grouping: See `read_usages`.
        max_usages: Take a random sample of this many usages of each target with more.
        seed: The seed of the sample.
        batch_tokens: The number of tokens in a batch.
        resume: Continue an interrupted run, which gives the same bytes as an uninterrupted one (on the same machine,
            with the same number of threads). If the output is already complete, nothing is done.
        overwrite: Replace an existing output, and start again if a run was interrupted.

    Returns:
        The number of usages of each target.

    Raises:
        WrongCallError: The arguments do not fit together, or not the run that should be resumed.
        InputError: The text has no usage of a target.
        OutputError: The output cannot be written.
    """
    out = Path(out)
    choice: Any = int(layers) if str(layers).isdecimal() else layers
    check_output(out, KIND, resume=resume, overwrite=overwrite, suffixes=SUFFIXES, inputs=files)
    if choice in ("all", "mix"):
        raise ConfigError(
            f"layers: expected one vector per word: 'top', 'average', 'sum', 'concat' or an index, got {layers!r}."
        )
    # The same kernels in every process: a resumed run must write the same bytes.
    embedder = elmo.embedder(EmbedSettings(choice, batch_tokens=batch_tokens, kernels="fixed"))
    if out.suffix == ".parquet":
        import_parquet()
    settings = {
        "fingerprint": elmo.bilm.fingerprint(),
        "layers": str(layers),
        "lang": lang,
        "targets": None if targets is None else _hash(sorted(targets.items())),
        "text": _hash([content_hash(file) for file in files]),
        "ignore_case": ignore_case,
        "grouping": grouping,
        "max_usages": max_usages,
        "seed": seed,
        "batch_tokens": batch_tokens,
    }
    if resume and PartialUsages(out, settings, []).is_complete():
        with UsageFile(out) as usages:
            compare_settings(usages.settings, settings, out)
            PartialUsages(out, settings, []).remove()
            return UsagesResult(out, usages.counts(), usages.dim, already_complete=True)

    def sentences() -> Iterator[UsageSentence]:
        return read_usages(files, targets, lang=lang, ignore_case=ignore_case, grouping=grouping)

    counts = dict.fromkeys(dict.fromkeys((targets or {}).values()), 0)
    with progress("find usages", unit="sentences") as advance:
        for sentence in sentences():
            for usage in sentence.usages:
                counts[usage.target] = counts.get(usage.target, 0) + 1
            advance(1)
    if not sum(counts.values()):
        names = ", ".join(map(str, files))
        raise InputError(
            f"{names}: expected usages of the target words, found none. Are the targets written as in the text?"
        )
    if rare := [word for word, n in counts.items() if not n]:
        log.warning("No usage of %s of the %s targets: %s", len(rare), len(counts), ", ".join(rare[:10]))
    chosen = _sample(counts, max_usages, seed)
    with PartialUsages(out, settings, list(counts)).open() as job:
        job.begin(resume=resume)
        n_blocks = int(job.state.get("blocks", 0))
        total = sum(min(n, max_usages or n) for n in counts.values())
        with progress("usages", total, done=job.n_committed, unit="usages") as advance:
            last = time.monotonic()
            blocks = _blocks(_only(sentences(), chosen), batch_tokens)
            for block in embedder.resume_blocks(blocks, n_blocks, _tokens):
                for sentence, vectors in zip(block, embedder(_tokens(block))):
                    for usage in sentence.usages:
                        job.append(sentence, usage, vectors[usage.positions].mean(axis=0))
                    advance(len(sentence.usages))
                n_blocks += 1
                if time.monotonic() - last >= COMMIT_SECONDS:
                    job.commit_blocks(n_blocks)
                    last = time.monotonic()
        job.commit_blocks(n_blocks)
        dim = job.finish()
    return UsagesResult(out, {word: min(n, max_usages or n) for word, n in counts.items()}, dim)


def _is_dwug(file: str) -> bool:
    first = next(read_lines(file), "").split("\t")
    return all(column in first for column in _DWUG)


def _read_dwug(file: str, lemmas: set[str] | None, lang: str | None, grouping: str | None) -> Iterator[UsageSentence]:
    table = TableReader(file)
    lemma, context, indexes = (table.columns.index(name) for name in _DWUG)
    period = None if grouping is None else table.index("grouping", "`grouping`")
    identifier = table.columns.index("identifier") if "identifier" in table.columns else None
    for line, row in table:
        if (lemmas is not None and row[lemma] not in lemmas) or (period is not None and row[period] != grouping):
            continue
        try:
            spans = [tuple(map(int, span.split(":"))) for span in row[indexes].split(",")]
            pairs = [(start, end) for start, end in spans]
        except ValueError:
            raise malformed(file, line, "indexes_target_token as start:end", short_repr(row[indexes])) from None
        for tokens in _split(row[context], lang):
            inside = [
                i
                for i, token in enumerate(tokens)
                if any(token.start < end and start < token.end for start, end in pairs)
            ]
            if inside:
                usage = Usage(row[lemma], inside, None if identifier is None else row[identifier])
                yield UsageSentence(file, line, row[context], tokens, [usage])
                break
        else:
            raise malformed(file, line, f"a word at the characters {row[indexes]} of the context", "none")


def _split(text: str, lang: str | None) -> list[list[Token]]:
    if lang is not None:
        return tokenizer_for(lang).spans(text)
    return align([words], text) if (words := text.split()) else []


def _sample(counts: dict[str, int], size: int | None, seed: int) -> dict[str, set[int]]:
    """Return the numbers of the chosen usages of each target that has more than `size`."""
    chosen = {}
    for word, n in counts.items():
        if size is not None and n > size:
            # The sample of a word depends on nothing but the word, its count and the seed.
            generator = np.random.default_rng([seed, int(_hash(word)[:8], 16)])
            chosen[word] = set(generator.choice(n, size, replace=False).tolist())
    return chosen


def _only(sentences: Iterable[UsageSentence], chosen: dict[str, set[int]]) -> Iterator[UsageSentence]:
    """Keep the chosen usages, and the sentences that have one."""
    seen = dict.fromkeys(chosen, -1)
    for sentence in sentences:
        kept = []
        for usage in sentence.usages:
            if usage.target in chosen:
                seen[usage.target] += 1
                if seen[usage.target] not in chosen[usage.target]:
                    continue
            kept.append(usage)
        if kept:
            yield sentence._replace(usages=kept)


def _tokens(sentences: Iterable[UsageSentence]) -> list[list[str]]:
    return [[token.text for token in sentence.tokens] for sentence in sentences]


def _blocks(sentences: Iterable[UsageSentence], batch_tokens: int) -> Iterator[list[UsageSentence]]:
    block: list[UsageSentence] = []
    n_tokens = 0
    for sentence in sentences:
        block.append(sentence)
        n_tokens += len(sentence.tokens) + 2
        if n_tokens >= _BATCHES_AT_ONCE * batch_tokens:
            yield block
            block, n_tokens = [], 0
    if block:
        yield block


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
