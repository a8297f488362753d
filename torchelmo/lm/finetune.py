"""Go on training a biLM on other text, with the same vocabulary; a model without a softmax is given one first."""

import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.bilm.model import BiLM
from torchelmo.config import build_config, override
from torchelmo.errors import InputError, OutputExistsError
from torchelmo.formats.load import load
from torchelmo.lm.config import PretrainConfig
from torchelmo.lm.corpus import Card, Corpus
from torchelmo.lm.loop import HeldOut, Result, train
from torchelmo.lm.prepare import describe, prepare
from torchelmo.lm.run import open_run
from torchelmo.runs import checkpoint as files
from torchelmo.runs.distributed import World, choose_device
from torchelmo.runs.signals import Stop
from torchelmo.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)
# Gentler than training from the start. Two looks at the held-out part without a gain end it.
DEFAULTS: dict[str, Any] = {
    "epochs": 3.0,
    "batch_size": 32,
    "unroll": 20,
    "dropout": 0.1,
    "negatives": 4096,
    "reset_state": True,
    "unigram_bias": True,
    "clip": 1.0,
    "keep": 1,
    "log_every": 50,
    "patience": 2,
    "tensorboard": False,
    "optim": {"name": "adamw", "lr": 1e-3, "warmup": 0.05, "decay": "linear", "final": 0.1},
}
_LOOKS_PER_EPOCH = 4
_NEW_SOFTMAX_LR = 4e-3
_FULL_SOFTMAX = 5000  # words up to which the exact loss is fast enough


class FineTuned(NamedTuple):
    """Held-out perplexities, and whether a stop was asked for before the end."""

    before: Result  # with a new softmax: once that alone was trained
    after: Result  # of the model that was kept, the best
    step: int  # after which it was that
    stopped: bool


def fine_tune(
    model: str | Path,
    texts: Iterable[str | Path],
    out: str | Path,
    *,
    heldout: float | Iterable[str | Path] = 0.05,
    vocab_size: int = 50_000,
    lang: str = "en",
    pretokenized: bool = False,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    stop: Stop | None = None,
) -> FineTuned:
    """Train `model` on `texts` until held-out perplexity no longer falls; `out` becomes a folder of the best one.

    `settings` are "key=value" for a PretrainConfig, beside DEFAULTS. `vocab_size` is for a new softmax.
    """
    out, stop = Path(out), stop or Stop()
    if not overwrite and (files.has_run(out) or (out / "data").exists()):
        raise OutputExistsError(f"{out}: holds a model or a run already. Choose another --out, or say --overwrite.")
    bilm = load(model)
    _config(str(model), out / "data", out, settings)  # a wrong setting is an error now, not after the text was read
    card = prepare(
        texts,
        out / "data",
        vocab_size=vocab_size,
        vocabulary=_words(bilm, model),
        heldout=heldout,
        lang=lang,
        pretokenized=pretokenized,
        max_characters=bilm.config.max_characters,
        overwrite=overwrite,
    )
    for line in describe(card):
        log.info("%s", line)
    try:
        tuned = _train_on(card, bilm, str(model), out, settings, stop)
    except BaseException:
        shutil.rmtree(out / "data", ignore_errors=True)  # else the next attempt would find it and not begin
        raise
    files.publish(out / "best", out)
    for name in ("data", "softmax", "checkpoints", "best"):
        shutil.rmtree(out / name, ignore_errors=True)
    return tuned


def _train_on(card: Card, bilm: BiLM, start: str, out: Path, settings: Sequence[str], stop: Stop) -> FineTuned:
    """Train on out/data, which `card` describes: first a new softmax, where there is none."""
    if "heldout" not in card["parts"]:
        raise InputError(
            "fine-tune: expected held-out text, which tells when to stop, but no line fell into that part. "
            "Use a larger --heldout, or a file."
        )
    few = card["vocabulary"] <= _FULL_SOFTMAX
    settings = [f"loss={'full' if few else 'sampled'}", *settings]
    if not bilm.config.softmax_words:
        log.info("the model has no softmax: a new one over %d words is trained first", card["vocabulary"])
        only = ["trained=softmax", f"optim.lr={_NEW_SOFTMAX_LR}", *settings]
        _train(start, out / "data", out / "softmax", only, stop)
        start = str(out / "softmax" / "best")
    return _train(start, out / "data", out, settings, stop)


def _train(start: str, data: Path, out: Path, settings: Sequence[str], stop: Stop) -> FineTuned:
    config = _config(start, data, out, settings, Corpus.open(data))
    run = open_run(config, World(device=choose_device(config.device)), overwrite=True)
    look = HeldOut(run)
    before = look.measure()
    assert before is not None
    run.progress = look.keep_best(before, run.progress)  # if nothing is gained, the model stays as it was
    log.info("before: held-out perplexity %.2f", before.average)
    after, step = before, 0
    for report in train(run, stop):
        log.info("%s", report.line())
        if report.heldout is not None and report.heldout < after.average:
            after = Result(report.heldout_forward, report.heldout_backward, report.heldout)
            step = report.step
    return FineTuned(before, after, step, stopped=stop.asked)


def _config(start: str, data: Path, out: Path, settings: Sequence[str], corpus: Corpus | None = None) -> PretrainConfig:
    """DEFAULTS and `settings`; how often to look at the held-out part depends on the corpus."""
    plain = override(DEFAULTS, settings, PretrainConfig)
    plain |= {"data": str(data), "out": str(out), "init": start}
    config = build_config(PretrainConfig, plain, where="fine-tune")
    if corpus is None or "evaluate_every" in plain:
        return config
    epoch = (corpus.n_tokens + corpus.n_sentences) / (config.batch_size * config.unroll)
    return replace(config, evaluate_every=max(1, round(epoch / _LOOKS_PER_EPOCH)))


def _words(bilm: BiLM, model: str | Path) -> Vocabulary | None:
    """The words that the model's softmax or input has; None where a new softmax is free to choose."""
    if not bilm.config.softmax_words and bilm.config.input != "words":
        return None
    if bilm.vocabulary is None:
        raise InputError(
            f"{model}: expected the words of the model, but it came without a vocabulary. "
            "Put its vocab.txt into the model folder."
        )
    return bilm.vocabulary
