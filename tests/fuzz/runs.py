"""Fuzz targets: trained tasks, runs that are resumed, prepared text, settings and the cache of layers."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_runs import tiny_config, write_data
from tiny_tasks import pos_config, tagged, write_pos

from fuzz.mutate import TEXTS, damage, garbage, mutate_folder
from fuzz.run import SilentlyWrongError, Target
from torchelmo.config import load_config
from torchelmo.lm import Corpus, PretrainConfig, pretrain
from torchelmo.tasks import load as load_task
from torchelmo.tasks import train as train_task
from torchelmo.tasks.cache import SharedLayers
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.table.spec import read_table


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


def make_table(folder: Path) -> None:
    (folder / "table.toml").write_text(
        'title = "t"\nshares = [1.0, 0.5]\nmax_epochs = 3\nplot = "bars"\n'
        '[[columns]]\nname = "plain"\nset = ["elmo.place=none"]\n[[columns]]\nname = "elmo"\n'
        '[[rows]]\nname = "pos"\nconfig = "pos.toml"\nseeds = 2\n'
        '[[claims]]\ntext = "better"\nbetter = "elmo"\nthan = "plain"\nshare = 0.5\n'
    )


def run_table(folder: Path, extra: None, rng: random.Random) -> None:
    read_table(folder / "table.toml")


# The cache of layers

SENTENCES = [["a", "bow"], ["and", "an", "arrow"]]


def layers(sentence: list[str]) -> Any:
    return np.arange(2 * len(sentence) * 3, dtype=np.float32).reshape(2, len(sentence), 3)


def make_cache(folder: Path) -> None:
    shared = SharedLayers(folder, "0" * 8, (2, 3), max_bytes=10**6)
    for sentence in SENTENCES:
        list(shared.add([sentence], [layers(sentence)]))


def run_cache(folder: Path, extra: None, rng: random.Random) -> None:
    shared = SharedLayers(folder, "0" * 8, (2, 3), max_bytes=10**6)
    missing = shared.missing(SENTENCES)
    for sentence in SENTENCES:
        found = shared.get(sentence)
        if (found is None) != (sentence in missing) or (found is not None and (found != layers(sentence)).any()):
            raise SilentlyWrongError(f"other layers of {sentence}")


def run_targets() -> Iterator[Target]:
    """Yield the targets of this module."""
    yield Target("trained task", make_task, damage_task, run_task)
    yield Target("pretrain --resume", make_pretrain_resume, damage_run, run_pretrain_resume, share=0.4)
    yield Target("task train --resume", make_task_resume, damage_run, run_task_resume)
    yield Target("prepared text", make_corpus, damage(), run_corpus)
    yield Target("TOML and --set", make_toml, damage(), run_toml)
    yield Target("table of experiments", make_table, damage(), run_table)
    yield Target("cache of layers", make_cache, damage(), run_cache)
