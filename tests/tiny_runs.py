"""Tiny training runs: a text with a grammar that is learnt in seconds, and settings for it."""

import random
from pathlib import Path
from typing import Any

from torchelmo.config import build_config
from torchelmo.lm.config import PretrainConfig
from torchelmo.lm.corpus import write_corpus

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
        "curve": False,
        "tensorboard": False,
        "model": MODEL,
        "optim": {"name": "adamw", "lr": 0.02, "warmup": 0.1, "decay": "linear", "final": 0.1},
        **changes,
    }
    if not {"steps", "epochs", "hours"} & changes.keys():
        settings["steps"] = 10
    return build_config(PretrainConfig, settings)
