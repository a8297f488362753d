"""Tiny training runs: a text with a grammar that is learnt in seconds, and settings for it."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchelmo.config import build_config
from torchelmo.lm.config import PretrainConfig
from torchelmo.lm.corpus import write_corpus
from torchelmo.lm.loop import Report, train
from torchelmo.lm.run import open_run
from torchelmo.runs.resume import Stop

NAMES = "ann bob cat dog eve fox gus hen ida jim".split()
VERBS = "sees hears likes knows".split()
MODEL = {
    "max_characters": 8,
    "char_dim": 4,
    "filters": [[1, 4], [2, 4]],
    "n_highway": 1,
    "projection_dim": 6,
    "cell_dim": 8,
}


def sentences(n: int, seed: int = 1) -> list[list[str]]:
    """ "ann sees the dog .", "bob knows eve ." and the like."""
    pick = random.Random(seed)
    return [[pick.choice(NAMES), pick.choice(VERBS), *["the"][: i % 2], pick.choice(NAMES), "."] for i in range(n)]


def write_data(folder: Path, n: int = 400, vocab_size: int = 100) -> Path:
    """Prepared text with a held-out part."""
    write_corpus(folder, sentences(n), sentences(40, seed=2), vocab_size=vocab_size, max_characters=8)
    return folder


def tiny_config(data: Path, out: Path, **changes: Any) -> PretrainConfig:
    settings = {
        "data": str(data),
        "out": str(out),
        "batch_size": 4,
        "unroll": 5,
        "dropout": 0.1,
        "negatives": 6,
        "log_every": 5,
        "tensorboard": False,
        "model": MODEL,
        "optim": {"name": "adamw", "lr": 0.02, "warmup": 0.1, "decay": "linear", "final": 0.1},
        **changes,
    }
    if not {"steps", "epochs", "hours"} & changes.keys():
        settings["steps"] = 10
    return build_config(PretrainConfig, settings)


def run_to_end(config: PretrainConfig, **options: bool) -> list[Report]:
    """Train, and return all reports."""
    with open_run(config, **options) as run:
        return list(train(run))


def stop_after(config: PretrainConfig, step: int, **options: bool) -> None:
    """Train, and request a stop so that `step` is the last one."""
    stop = Stop()
    with open_run(replace(config, log_every=1), **options) as run:
        for report in train(run, stop):
            stop.requested = report.step >= step - 1


def reopen(config: PretrainConfig) -> int:
    """Resume a run without taking a step; return the step after which it would continue."""
    with open_run(config, resume=True) as run:
        return run.progress.step
