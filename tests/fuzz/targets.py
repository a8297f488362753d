"""The kinds of input that are fuzzed, each with a good input to start from and a check of the result."""

import contextlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from official_files import WORDS, random_official
from tiny_runs import sentences, tiny_config, write_data
from tiny_senses import write_all
from tiny_squad import paragraphs, write_squad
from tiny_tasks import pos_config, tagged, write_ner, write_pos, write_vectors

import torchelmo
from fuzz.mutate import TEXTS, garbage, mutate_folder
from fuzz.run import SilentlyWrongError, Target
from torchelmo import BiLM, BiLMConfig, Elmo, SentenceEncoder
from torchelmo.bulk import VectorFile, embed_file, job, partial
from torchelmo.config import load_config
from torchelmo.lm import Corpus, PretrainConfig, pretrain
from torchelmo.tasks import load as load_task
from torchelmo.tasks import train as train_task
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.task import find_task
from torchelmo.text.rows import RowReader
from torchelmo.text.vocabulary import Vocabulary

SENTENCES = [["the", "bow", "and", "arrow"], ["a"]]
EMBED: dict[str, Any] = {"batch_tokens": 4, "pretokenized": True}
SHAPE = {"char_dim": 2, "filters": ((1, 2), (2, 3)), "n_highway": 1, "projection_dim": 4, "cell_dim": 5}
PAIR = {"gold_label": "neutral", "sentence1": "A b ."}
SRL = "Ann - (A0*)\nsees see (V*)\ndogs - (A1*)\n\n"  # word, predicate, roles
COREF = """#begin document (x); part 000
x 0 0 Ann NNP * - - - - * (0)
x 0 1 sees VBZ * - - - - * -
x 0 2 herself PRP * - - - - * (0)

#end document
"""


def damage(*names: str, pipes: bool = True) -> Callable[[Path, random.Random], str]:
    """Return a mutator of these files; all files of the folder if none is named."""

    def mutate(folder: Path, rng: random.Random) -> str:
        files = names or sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        return mutate_folder(folder, list(files), rng, pipes=pipes)

    return mutate


def check_vectors(bilm: BiLM) -> None:
    """Raise unless the vectors of a loaded model are finite."""
    for vectors in Elmo(bilm).embed(SENTENCES):
        if not np.isfinite(vectors).all():
            raise SilentlyWrongError("vectors that are not finite")


# Model folders and official files


def make_folder(folder: Path) -> None:
    bilm = BiLM(BiLMConfig(**SHAPE, softmax_words=len(WORDS)), Vocabulary(WORDS))  # type: ignore[arg-type]
    bilm.save(folder)


def run_folder(folder: Path, extra: None, rng: random.Random) -> None:
    check_vectors(torchelmo.load(folder))


def make_encoder(folder: Path) -> None:
    bilm = BiLM(BiLMConfig(**SHAPE))  # type: ignore[arg-type]
    SentenceEncoder(bilm).fit([*SENTENCES, ["b"]]).save(folder / "encoder")


def run_encoder(folder: Path, extra: None, rng: random.Random) -> None:
    if not np.isfinite(SentenceEncoder.load(folder / "encoder").encode(SENTENCES)).all():
        raise SilentlyWrongError("sentence vectors that are not finite")


def make_official(folder: Path) -> None:
    random_official(seed=3).write(folder)


def run_official(folder: Path, extra: None, rng: random.Random) -> None:
    check_vectors(torchelmo.load_official(folder / "options.json", folder / "weights.hdf5"))


def make_checkpoint(folder: Path) -> None:
    copy_fixture("tf_checkpoint_chars", folder)
    for name in ("model.hdf5", "expected_nll.json"):
        (folder / name).unlink(missing_ok=True)


def make_efml(folder: Path) -> None:
    copy_fixture("efml_tiny.model", folder)
    (folder / "expected.npz").unlink()


def copy_fixture(name: str, folder: Path) -> None:
    shutil.copytree(Path(__file__).parents[1] / "fixtures" / name, folder, dirs_exist_ok=True)


def archive(kind: str, suffix: str) -> Target:
    """Return the target for a model in an archive."""

    def make(folder: Path) -> None:
        small = random_official(filters=((1, 2),), projection_dim=2, cell_dim=2, n_layers=1, char_dim=1)
        small.write(folder.parent / "small")
        shutil.make_archive(str(folder / "model"), kind, folder.parent / "small")

    def run(folder: Path, extra: None, rng: random.Random) -> None:
        check_vectors(torchelmo.load(folder / f"model{suffix}"))

    return Target(f"model in {suffix}", make, damage(), run)


# Vectors on disk


def unfinished(suffix: str) -> Target:
    """Return the target for an unfinished output of `embed`."""

    def make(folder: Path) -> tuple[Elmo, bytes]:
        (folder / "text.txt").write_text("".join(" ".join(tokens) + "\n" for tokens in sentences(12)))
        make_folder(folder.parent / "model")
        elmo = Elmo(torchelmo.load(folder.parent / "model"))
        embed_file(folder / "text.txt", folder.parent / f"good{suffix}", model=elmo, **EMBED)
        append = partial.PartialOutput.append

        def interrupt(self: partial.PartialOutput, record: bytes) -> None:
            if self._n_written == 8:
                raise KeyboardInterrupt
            append(self, record)

        job.COMMIT_SECONDS = 0.0  # after every block
        partial.PartialOutput.append = interrupt  # type: ignore[method-assign]
        with contextlib.suppress(KeyboardInterrupt):
            embed_file(folder / "text.txt", folder / f"out{suffix}", model=elmo, **EMBED)
        partial.PartialOutput.append = append  # type: ignore[method-assign]
        return elmo, (folder.parent / f"good{suffix}").read_bytes()

    def mutate(folder: Path, rng: random.Random) -> str:
        inside = folder / f"out{suffix}.partial"
        return mutate_folder(inside, sorted(path.name for path in inside.iterdir() if path.name != "lock"), rng)

    def run(folder: Path, extra: tuple[Elmo, bytes], rng: random.Random) -> None:
        elmo, expected = extra
        embed_file(folder / "text.txt", folder / f"out{suffix}", model=elmo, resume=True, **EMBED)
        if (folder / f"out{suffix}").read_bytes() != expected:
            raise SilentlyWrongError("a resumed run wrote another file")

    return Target(f"embed --resume, {suffix}", make, mutate, run)


def vector_file(suffix: str) -> Target:
    """Return the target for a finished output of `embed` that is read back."""

    def make(folder: Path) -> None:
        (folder.parent / "text.txt").write_text("".join(" ".join(tokens) + "\n" for tokens in sentences(6)))
        make_folder(folder.parent / "model")
        embed_file(folder.parent / "text.txt", folder / f"out{suffix}", model=folder.parent / "model", **EMBED)

    def run(folder: Path, extra: None, rng: random.Random) -> None:
        with VectorFile(folder / f"out{suffix}") as file:
            _ = file.settings, file.n_tokens
            for line in range(min(len(file), 100)):
                if file[line].shape[-2] != len(file.tokens(line)):
                    raise SilentlyWrongError(f"line {line} has not one vector for each token")

    return Target(f"vectors in {suffix}", make, damage(pipes=False), run)


# Trained tasks, and runs that are resumed


def make_task(folder: Path) -> Any:
    write_pos(folder)
    train_task(pos_config(folder, folder / "out", epochs=1))
    return None


def run_task(folder: Path, extra: Any, rng: random.Random) -> None:
    trained = load_task(folder / "out")
    for name, tensor in trained.model.state_dict().items():
        if not bool(torch.isfinite(tensor.float()).all()):
            raise SilentlyWrongError(f"{name} is not finite")
    trained.predict_examples(tagged(2))


def damage_task(folder: Path, rng: random.Random) -> str:
    files = sorted(str(p.relative_to(folder)) for p in (folder / "out").iterdir() if p.is_file())
    return mutate_folder(folder, files, rng)


def damage_run(folder: Path, rng: random.Random) -> str:
    out = folder / "out"
    files = sorted(str(p.relative_to(folder)) for p in out.rglob("*") if p.is_file() and "lock" not in p.name)
    inner = [name for name in files if "checkpoints" in name]
    return mutate_folder(folder, inner if rng.random() < 0.8 else files, rng)


def weights(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def make_pretrain_resume(folder: Path) -> bytes:
    write_data(folder / "data")
    pretrain(tiny_config(folder / "data", folder / "out", steps=4, checkpoint_every=2))
    copy = folder.parent / "undisturbed"
    shutil.copytree(folder, copy)
    run = tiny_config(copy / "data", copy / "out", steps=6, checkpoint_every=2)
    pretrain(run, resume=True)
    return weights(copy / "out")


def run_pretrain_resume(folder: Path, expected: bytes, rng: random.Random) -> None:
    pretrain(tiny_config(folder / "data", folder / "out", steps=6, checkpoint_every=2), resume=True)
    if weights(folder / "out") != expected:
        raise SilentlyWrongError("a resumed run ended with other weights")


def make_task_resume(folder: Path) -> bytes:
    write_pos(folder)
    train_task(pos_config(folder, folder / "out", epochs=1))
    copy = folder.parent / "undisturbed"
    shutil.copytree(folder, copy)
    train_task(pos_config(copy, copy / "out", epochs=2), resume=True)
    return weights(copy / "out")


def run_task_resume(folder: Path, expected: bytes, rng: random.Random) -> None:
    train_task(pos_config(folder, folder / "out", epochs=2), resume=True)
    if weights(folder / "out") != expected:
        raise SilentlyWrongError("a resumed run ended with other weights")


# Prepared text


def make_corpus(folder: Path) -> None:
    write_data(folder / "data", n=40)


def run_corpus(folder: Path, extra: None, rng: random.Random) -> None:
    corpus = Corpus(folder / "data")
    _ = [corpus.sentence(i) for i in range(corpus.n_sentences)], corpus.vocabulary
    pretrain(tiny_config(folder / "data", folder / "out", steps=1))


# Settings


def make_toml(folder: Path) -> None:
    (folder / "run.toml").write_text(
        'data = "d"\nout = "o"\nsteps = 10\nbatch_size = 4\ncheckpoint_every = "5m"\n'
        '[model]\ncell_dim = 8\nfilters = [[1, 2], [2, 2]]\n[optim]\nname = "adamw"\nlr = 0.01\nbetas = [0.9, 0.99]\n'
    )
    (folder / "task.toml").write_text(
        'task = "pos"\ntrain = "a"\ndev = "b"\nout = "o"\nepochs = 2\n[words]\ndim = 3\n[elmo]\nplace = "none"\n'
    )


def run_toml(folder: Path, extra: None, rng: random.Random) -> None:
    values = [json.dumps(garbage(rng)), rng.choice(TEXTS), "[" * 3_000, "9" * 5_000, "9" * 400, "nan", "1e400"]
    keys = ["optim.lr", "steps", "model.cell_dim", "optim", ".".join("a" * 5_000), "", "=", "model.filters"]
    changes = [f"{rng.choice(keys)}={rng.choice(values)}"] if rng.random() < 0.5 else []
    if rng.random() < 0.5:
        load_config(PretrainConfig, folder / "run.toml", changes)
    else:
        load_config(TaskConfig, folder / "task.toml", changes)


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


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def reader(name: str) -> Target:
    """Return the target for the labeled data of one task."""

    def make(folder: Path) -> str:
        return READERS[name](folder).name

    def run(folder: Path, file: str, rng: random.Random) -> None:
        task = find_task(name)
        task.read(folder / file, task.data_config())

    return Target(f"data of {name}", make, damage(pipes=False), run)


def all_targets() -> Iterator[Target]:
    yield Target("model folder", make_folder, damage(), run_folder)
    yield Target("sentence encoder", make_encoder, damage(), run_encoder)
    yield Target("official files", make_official, damage(), run_official)
    yield Target("TensorFlow checkpoint", make_checkpoint, damage(), run_folder)
    yield Target("ELMoForManyLangs", make_efml, damage(), run_folder)
    yield archive("zip", ".zip")
    yield archive("gztar", ".tar.gz")
    for suffix in (".h5", ".npz", *([".parquet"] if find_spec("pyarrow") else [])):
        yield unfinished(suffix)
        if suffix != ".h5":  # the HDF5 library itself can crash on damaged strings; docs/explanation/reliability.md
            yield vector_file(suffix)
    yield Target("trained task", make_task, damage_task, run_task)
    yield Target("pretrain --resume", make_pretrain_resume, damage_run, run_pretrain_resume, share=0.4)
    yield Target("task train --resume", make_task_resume, damage_run, run_task_resume)
    yield Target("prepared text", make_corpus, damage(), run_corpus)
    yield Target("TOML and --set", make_toml, damage(), run_toml)
    yield Target("Elmo.embed", make_elmo, lambda folder, rng: "sentences and options", run_embed)
    yield Target("word vectors", make_vectors, damage(pipes=False), run_vectors)
    yield Target("sense data", make_senses, damage(pipes=False), run_senses)
    yield Target("plain text", make_text, damage(pipes=False), run_text)
    for suffix in (*ROWS, *([".parquet"] if find_spec("pyarrow") else [])):
        yield rows(suffix)
    for name in READERS:
        yield reader(name)


TARGETS = {target.name: target for target in all_targets()}
