"""Fuzz targets: sentences in memory, text files, tables and labeled data."""

import json
import random
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_lm import tiny_lm
from tiny_runs import sentences
from tiny_senses import write_all
from tiny_squad import paragraphs, write_squad
from tiny_tasks import write_ner, write_pos, write_vectors

import torchelmo
from fuzz.models import make_folder
from fuzz.mutate import damage, garbage
from fuzz.run import SilentlyWrongError, Target
from torchelmo import BiLM, Elmo
from torchelmo.analysis.usages import read_targets, read_usages
from torchelmo.lm.pairs import read_pairs
from torchelmo.lm.words import surprisal_table
from torchelmo.tasks.task import find_task
from torchelmo.text.rows import RowReader

SRL = "Ann - (A0*)\nsees see (V*)\ndogs - (A1*)\n\n"  # word, predicate, roles
COREF = """#begin document (x); part 000
x 0 0 Ann NNP * - - - - * (0)
x 0 1 sees VBZ * - - - - * -
x 0 2 herself PRP * - - - - * (0)

#end document
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# Sentences in memory


def make_elmo(folder: Path) -> Elmo:
    make_folder(folder / "model")
    return Elmo(torchelmo.load(folder / "model"))


def any_sentences(rng: random.Random) -> Any:
    words = ["a", "bow", "", " ", "\ud800", "x" * 10_000, "日本", "\0", "a b", "<S>", "\u202e", "👩‍👩‍👧"]
    kind = rng.randrange(8)
    if kind < 3:
        return [[rng.choice(words) for _ in range(rng.randrange(6))] for _ in range(rng.randrange(4))]
    if kind < 6:
        return [" ".join(rng.choice(words) for _ in range(rng.randrange(6))) for _ in range(rng.randrange(4))]
    if kind == 6:
        return [garbage(rng) for _ in range(rng.randrange(4))]
    return garbage(rng)


def run_embed(folder: Path, elmo: Elmo, rng: random.Random) -> None:
    options = {
        "layers": ["all", "top", "average", "mix", 0, 2, 99, -1, "x", None, True, 1.5],
        "batch_tokens": [1, 7, 2048, 0, -1, "12", None, 2.5],
        "precision": ["float32", "float16", "int3", None],
        "state": ["reset", "carry", "x"],
        "lang": ["en", "de", "xx", "zz", "", None],
    }
    chosen = {name: rng.choice(values) for name, values in options.items() if rng.random() < 0.3}
    given = any_sentences(rng)
    found = elmo.embed(given, **chosen)
    if len(found) != len(given) or not all(np.isfinite(vectors).all() for vectors in found):
        raise SilentlyWrongError(f"{len(given)} sentences gave {len(found)} arrays, or some were not finite")


# Text and labeled data


def make_vectors(folder: Path) -> None:
    write_vectors(folder / "vectors.txt")


def run_vectors(folder: Path, extra: None, rng: random.Random) -> None:
    from torchelmo.tasks.words import read_vectors

    file = read_vectors(folder / "vectors.txt")
    if not bool(torch.isfinite(file.vectors).all()):
        raise SilentlyWrongError("vectors that are not finite")


def make_senses(folder: Path) -> None:
    write_all(folder)


def run_senses(folder: Path, extra: None, rng: random.Random) -> None:
    from torchelmo.analysis.senses import read_senses, read_tagged

    read_senses(folder / "index.sense")
    list(read_tagged(folder / "train.jsonl"))
    list(read_tagged(folder / "test.data.xml", folder / "test.gold.key.txt"))


def make_text(folder: Path) -> None:
    lines = [" ".join(tokens) for tokens in sentences(6)] + ["", "Äpfel und 日本 .", "a" * 300]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_text(folder: Path, extra: None, rng: random.Random) -> None:
    from torchelmo.text.reading import read_sentences

    for _ in read_sentences(folder / "text.txt", rng.choice(["en", "xx", None])):
        pass


ROWS = {
    ".csv": "name,text\n" + "".join(f'a{i},"I took a bow, {i} times."\n' for i in range(6)),
    ".tsv": "name\ttext\n" + "".join(f"a{i}\tI took a bow {i} times.\n" for i in range(6)),
    ".jsonl": "".join(json.dumps({"name": f"a{i}", "text": f"I took a bow {i} times."}) + "\n" for i in range(6)),
    ".conllu": "".join(
        f"# name = a{i}\n1\tAnn\tAnn\tPROPN\t_\t_\t2\tnsubj\t_\t_\n2\tsees\tsee\tVERB\t_\t_\t0\troot\t_\t_\n\n"
        for i in range(4)
    ),
    ".fasta": "".join(f">sp|P{i}|NAME some words\nMKTAYIAK\nQRQISFVK\n" for i in range(5)),
}


def rows(suffix: str) -> Target:
    """Return the target for one format of rows of text."""

    def make(folder: Path) -> None:
        if suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet

            columns = {"name": [f"a{i}" for i in range(6)], "text": [f"I took a bow {i} times." for i in range(6)]}
            pyarrow.parquet.write_table(pa.table(columns), folder / "text.parquet", row_group_size=2)
        else:
            write(folder / f"text{suffix}", ROWS[suffix])

    def run(folder: Path, extra: None, rng: random.Random) -> None:
        column = None if suffix == ".fasta" else rng.choice([None, "name"])
        reader = RowReader(folder / f"text{suffix}", id_column=column)
        found = list(reader.unique(reader.rows()))
        if any(not isinstance(row.text, str) for row in found):
            raise SilentlyWrongError("a row without text")

    return Target(f"rows in {suffix}", make, damage(pipes=False), run)


READERS: dict[str, Callable[[Path], Path]] = {
    "ner": lambda folder: write_ner(folder) / "train.conll",
    "pos": lambda folder: write_pos(folder) / "train.conllu",
    "srl": lambda folder: write(folder / "train.conll", SRL * 3),
    "sentiment": lambda folder: write(folder / "train.txt", "(3 (2 It) (4 (2 's) (4 good)))\n(1 (2 Bad) (2 .))\n"),
    "nli": lambda folder: write(
        folder / "train.jsonl",
        "".join(
            json.dumps({"gold_label": "neutral", "sentence1": "A b .", "sentence2": f"C {i} ."}) + "\n"
            for i in range(5)
        ),
    ),
    "qa": lambda folder: write_squad(folder / "train.json", paragraphs()),
    "coref": lambda folder: write(folder / "train.conll", COREF * 2),
}


def reader(name: str) -> Target:
    """Return the target for the labeled data of one task."""

    def make(folder: Path) -> str:
        return READERS[name](folder).name

    def run(folder: Path, file: str, rng: random.Random) -> None:
        task = find_task(name)
        task.read(folder / file, task.data_config())

    return Target(f"data of {name}", make, damage(pipes=False), run)


# Studies

PAIRS = "".join(
    json.dumps({"sentence_good": "Keys are .", "sentence_bad": "Keys is .", "UID": f"a{i}"}) + "\n" for i in range(5)
)
WORDS = "item\tzone\tword\n" + "".join(
    f"{i // 4}\t{i}\t{word}\n" for i, word in enumerate("the bow rose .".split() * 3)
)
USES = "lemma\tidentifier\tgrouping\tcontext\tindexes_target_token\n" + "".join(
    f"bow\tu{i}\t{i % 2 + 1}\tThe bow rose .\t4:7\n" for i in range(5)
)


def run_pairs(folder: Path, extra: Path, rng: random.Random) -> None:
    for pair in read_pairs(folder / "pairs.jsonl"):
        if not (pair.good.strip() and pair.bad.strip()):
            raise SilentlyWrongError("a pair without sentences")


def make_words(folder: Path) -> BiLM:
    write(folder / "words.tsv", WORDS)
    return tiny_lm()


def run_words(folder: Path, bilm: BiLM, rng: random.Random) -> None:
    columns, found = surprisal_table(bilm, folder / "words.tsv", "word", group=rng.choice([None, "item"]), lang=None)
    if any(len(row) != len(columns) for row in found):
        raise SilentlyWrongError("a row with too few or too many columns")


def make_uses(folder: Path) -> None:
    write(folder / "uses.csv", USES)
    write(folder / "text.txt", "the bow rose .\nbows and arrows .\n" * 3)
    write(folder / "targets.txt", "bow, bows\narrow, arrows\n")


def run_uses(folder: Path, extra: None, rng: random.Random) -> None:
    targets = read_targets(folder / "targets.txt")
    files = [str(folder / "uses.csv"), str(folder / "text.txt")]
    for sentence in read_usages(files, targets, lang=None):
        if not sentence.usages or max(max(usage.positions) for usage in sentence.usages) >= len(sentence.tokens):
            raise SilentlyWrongError("a usage outside its sentence")


def text_targets() -> Iterator[Target]:
    """Yield the targets of this module."""
    yield Target("Elmo.embed", make_elmo, lambda folder, rng: "sentences and options", run_embed)
    yield Target("word vectors", make_vectors, damage(pipes=False), run_vectors)
    yield Target("sense data", make_senses, damage(pipes=False), run_senses)
    yield Target("plain text", make_text, damage(pipes=False), run_text)
    yield Target("minimal pairs", lambda folder: write(folder / "pairs.jsonl", PAIRS), damage(pipes=False), run_pairs)
    yield Target("words of a study", make_words, damage(pipes=False), run_words)
    yield Target("targets and DWUG", make_uses, damage(pipes=False), run_uses)
    for suffix in (*ROWS, *([".parquet"] if find_spec("pyarrow") else [])):
        yield rows(suffix)
    for name in READERS:
        yield reader(name)
