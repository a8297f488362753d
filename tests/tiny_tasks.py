"""Tiny task runs: parts of speech and names of a grammar that is learnt in seconds, and settings for them."""

import json
import random
from pathlib import Path
from typing import Any

from torchelmo.config import build_config
from torchelmo.tasks import ner, pos
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.pos import PosData
from torchelmo.tasks.tagging import Tagged

TAGS = {
    "NAME": "Ann Bob Eve Gus Ida Jim".split(),
    "VERB": "sees hears likes knows".split(),
    "DET": ["the", "a"],
    "NOUN": "cat dog fox hen".split(),
    "END": [".", "?"],
}
PATTERNS = ["NAME VERB NAME END", "NAME VERB DET NOUN END", "DET NOUN VERB END", "NAME NAME VERB DET NOUN"]


def tagged(n: int, seed: int = 1) -> list[Tagged]:
    """Sentences of four or five words with their parts of speech."""
    pick = random.Random(seed)
    rows = [PATTERNS[pick.randrange(len(PATTERNS))].split() for _ in range(n)]
    return [Tagged([pick.choice(TAGS[tag]) for tag in tags], tags) for tags in rows]


def write_pos(folder: Path, n: int = 20) -> Path:
    """train.conllu and dev.conllu."""
    pos.write(folder / "train.conllu", tagged(n), PosData())
    pos.write(folder / "dev.conllu", tagged(12, seed=2), PosData())
    return folder


def write_ner(folder: Path, n: int = 20) -> Path:
    """train.conll and dev.conll, where every name is a person."""
    for name, sentences in (("train", tagged(n)), ("dev", tagged(12, seed=2))):
        named = [Tagged(s.tokens, ["B-PER" if tag == "NAME" else "O" for tag in s.tags or []]) for s in sentences]
        ner.write(folder / f"{name}.conll", named)
    return folder


def write_vectors(path: Path, dim: int = 3, seed: int = 3) -> Path:
    """Vectors for the nouns and verbs."""
    pick = random.Random(seed)
    rows = [[word, *(f"{pick.gauss(0, 1):.3f}" for _ in range(dim))] for word in TAGS["NOUN"] + TAGS["VERB"]]
    path.write_text("".join(" ".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def pos_settings(data: Path, out: Path, /, **changes: Any) -> dict[str, Any]:
    """A biLSTM tagger that takes 5 steps of a few milliseconds in an epoch; tables in `changes` add to those here."""
    settings: dict[str, Any] = {
        "task": "pos",
        "train": str(data / "train.conllu"),
        "dev": str(data / "dev.conllu"),
        "out": str(out),
        "epochs": 2,
        "patience": 0,
        "batch_size": 4,
        "model": {"hidden_dim": 4, "n_layers": 1, "dropout": 0.2},
        "words": {"dim": 5, "min_count": 1},
        "optim": {"lr": 0.02},
    }
    return merge(settings, changes)


def pos_config(data: Path, out: Path, /, **changes: Any) -> TaskConfig:
    return build_config(TaskConfig, pos_settings(data, out, **changes))


def write_toml(path: Path, settings: dict[str, Any]) -> Path:
    plain = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for table in settings.keys() - plain.keys():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in settings[table].items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def merge(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: {**settings[key], **value} if isinstance(value, dict) and key in settings else value
        for key, value in changes.items()
    }
    return {**settings, **both}
