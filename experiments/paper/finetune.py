"""The first half of table 7: train the biLM for one epoch on the text of each task, and measure perplexities.

`table.py table7` calls it. The biLMs are written to models/finetuned-ROW, the perplexities to table7/more.json. A biLM
that exists is kept.
"""

import json
import math
import random
import time
from pathlib import Path

from results import Settings, compare_pairs

import torchelmo
from torchelmo.config import build_config, load_config
from torchelmo.files import write_json
from torchelmo.lm import Scorer, fine_tune
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.table.spec import Row, read_table, slug
from torchelmo.tasks.task import find_task

CLAIM = "One epoch on the text of the task lowers its perplexity"
_MAX_SCORED = 500  # dev sentences for the perplexities
SETTINGS = ["epochs=1.0", "patience=0", "optim.lr=1e-3"]


def run(path: Path, out: Path, models: Path, model: str) -> Settings:
    """Write and return the perplexities before and after, and the claim."""
    previous = json.loads((out / "more.json").read_text(encoding="utf-8")) if (out / "more.json").exists() else {}
    start = time.perf_counter()
    rows, claims = [], []
    for row in read_table(path).rows:
        train, dev = texts_of(row, path.parent)
        files = {name: out / "text" / f"{slug(row.name)}-{name}.txt" for name in ("train", "dev")}
        for name, sentences in (("train", train), ("dev", dev)):
            files[name].parent.mkdir(parents=True, exist_ok=True)
            files[name].write_text("".join(f"{' '.join(tokens)}\n" for tokens in sentences), encoding="utf-8")
        target = models / f"finetuned-{slug(row.name)}"
        fine_tune(
            model, [files["train"]], target, heldout=[files["dev"]], pretokenized=True, settings=SETTINGS, resume=True
        )
        scored = random.Random(1).sample(dev, min(_MAX_SCORED, len(dev)))
        before, after = (surprisals(name, scored) for name in (model, str(target)))
        rows.append([row.name, f"{sum(map(len, train)):,}", perplexity(before, scored), perplexity(after, scored)])
        per_token = [[bits / len(tokens) for bits, tokens in zip(one, scored)] for one in (before, after)]
        claims.append(compare_pairs(CLAIM, row.name, per_token[0], per_token[1], "sentences"))
    head = ["text", "tokens", "perplexity before", "after one epoch"]
    table = {"title": "Perplexity of the task's dev text, mean of both directions", "head": head, "rows": rows}
    # A second call finds the biLMs, so its own time says little.
    minutes = previous.get("minutes", (time.perf_counter() - start) / 60)
    found = {"tables": [table], "claims": claims, "minutes": minutes}
    write_json(out / "more.json", found)
    return found


def texts_of(row: Row, folder: Path) -> tuple[list[list[str]], list[list[str]]]:
    """Return the distinct sentences of the training data and of the dev data of a task."""
    config = load_config(TaskConfig, folder / row.config, row.set)
    task = find_task(config.task)
    options = build_config(task.data_config, config.data, where="data")
    parts = []
    for path in (config.train, config.dev):
        sentences = (one for example in task.read(path, options) for one in task.sentences(example))
        distinct = dict.fromkeys(tuple(token for token in one if not token.isspace()) for one in sentences)
        parts.append([list(one) for one in distinct if one])
    return parts[0], parts[1]


def surprisals(model: str, sentences: list[list[str]]) -> list[float]:
    """Return −log p of each sentence in nats, as the mean of both directions."""
    scorer = Scorer(torchelmo.load(model), direction="both")
    return [-score for score in scorer.sequence_score(sentences, reduction=lambda scores: scores.sum().item())]


def perplexity(surprisals: list[float], sentences: list[list[str]]) -> float:
    return math.exp(sum(surprisals) / sum(map(len, sentences)))
