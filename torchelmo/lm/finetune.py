"""Continue training a biLM on other text, with its vocabulary. A model without a softmax gets one first.

    out/                 at the end: a model folder with the best model; run.json, metrics.jsonl
    out/run/data/        the prepared text
    out/run/softmax/     the run that trains a new softmax, if the model has none
    out/run/model/       the run that trains the whole model

Everything in out/run is removed at the end, so an interrupted call never looks like a finished one.
"""

import hashlib
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torchelmo.bilm.model import BiLM
from torchelmo.config import Config, NonNegativeInt, build_config, override
from torchelmo.errors import InputError
from torchelmo.files import content_hash
from torchelmo.formats.load import load
from torchelmo.lm.config import PretrainConfig
from torchelmo.lm.corpus import Corpus
from torchelmo.lm.loop import Pretrained, pretrain
from torchelmo.lm.preparation import describe, expand, prepare
from torchelmo.lm.run import MODEL_FILES, HeldOutPerplexity, Perplexities, publish
from torchelmo.runs.resume import MARKER, RunFolder, Stop, check_inputs, check_settings
from torchelmo.text.vocabulary import Vocabulary

KIND = "fine-tune"
# Everything that fine-tuning writes.
OWNED = (*MODEL_FILES, "metrics.jsonl", "run")
# Gentler than training from the start: two evaluations without a gain end the run.
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
    "checkpoint_every": "5m",
    "log_every": 50,
    "patience": 2,
    "tensorboard": False,
    "evaluate_first": True,
    "optim": {"name": "adamw", "lr": 1e-3, "warmup": 0.05, "decay": "linear", "final": 0.1},
}
_EVALUATIONS_PER_EPOCH = 4
_NEW_SOFTMAX_LR = 4e-3
_MAX_FULL_SOFTMAX = 5000  # words up to which the exact loss is fast enough
log = logging.getLogger(__name__)


class FineTuned(NamedTuple):
    """The outcome of `fine_tune`. Perplexities are of the held-out text."""

    before: HeldOutPerplexity | None  # with a new softmax: after the softmax alone was trained
    after: HeldOutPerplexity | None  # of the model that was kept, the best one
    step: int  # step of the best model; 0 if nothing was gained
    finished: bool  # False if it was stopped: then `out` holds no model yet


@dataclass(frozen=True)
class _Result(Config):
    """The result in run.json."""

    before: Perplexities
    after: Perplexities
    step: NonNegativeInt


def fine_tune(
    model: str | Path,
    texts: Iterable[str | Path],
    out: str | Path,
    *,
    heldout: float | Iterable[str | Path] = 0.05,
    vocab_size: int = 50_000,
    lang: str | None = None,
    pretokenized: bool | None = None,
    settings: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    stop: Stop | None = None,
) -> FineTuned:
    """Train a model on texts until held-out perplexity no longer falls, and keep the best model.

    Args:
        model: Anything that `torchelmo.load` accepts.
        texts: Text files or globs.
        out: The model folder to write.
        heldout: The share of lines to hold out, or files. Held-out perplexity decides when to stop.
        vocab_size: The number of words of a new softmax, for a model without one.
        lang: The language of the text; default: that of the model, or English.
        pretokenized: Whether a line is a sentence with spaces between its tokens; default: as the model was trained.
        settings: "key=value" settings of `PretrainConfig`, which override `DEFAULTS`.
        resume: Continue an interrupted call. If it has already finished, return its result.
        overwrite: Replace the model that an earlier call wrote to `out`.
        stop: Ends training after the current step; call again with `resume` to continue.

    Returns:
        The perplexities before and after.

    Raises:
        ConfigError: A setting is wrong, or differs from that of the interrupted call.
        InputError: The model has no vocabulary, or the text has no held-out part.
        OutputExistsError: `out` holds something that must not be replaced.
    """
    out, stop = Path(out), stop or Stop()
    _config("model", out / "run" / "data", out / "run" / "model", settings)  # report a wrong setting at once
    with RunFolder(out, KIND, owned=OWNED, resume=resume, overwrite=overwrite) as folder:
        if folder.details.get("finished"):
            shutil.rmtree(out / "run", ignore_errors=True)  # of a process that was killed while it removed the folder
            found = build_config(_Result, folder.details.get("result", {}), where=str(out / MARKER))
            return FineTuned(HeldOutPerplexity(*found.before), HeldOutPerplexity(*found.after), found.step, True)
        bilm = load(model)
        if lang is None and pretokenized is None:
            lang, pretokenized = bilm.lang, bilm.pretokenized
        files = expand(texts)
        heldout_files = [] if isinstance(heldout, (int, float)) else expand(heldout)
        options: dict[str, Any] = {
            "vocab_size": vocab_size,
            "heldout": heldout if isinstance(heldout, (int, float)) else None,
            "lang": None if pretokenized else lang or "en",
            "settings": list(settings),
        }
        inputs = {"model": bilm.fingerprint(), "texts": _hash(files), "heldout": _hash(heldout_files)}
        if folder.details:
            check_settings(out, _table(folder.details, "options"), options)
            check_inputs(out, _table(folder.details, "inputs"), inputs, paths={"model": model})
        else:
            folder.start(options=options, inputs=inputs)
        if not (out / "run" / "data").exists():
            try:
                card = prepare(
                    files,
                    out / "run" / "data",
                    vocab_size=vocab_size,
                    vocabulary=_words(bilm, model),
                    heldout=heldout_files or options["heldout"] or 0.0,
                    lang=options["lang"] or "en",
                    pretokenized=bool(pretokenized),
                    max_characters=bilm.config.max_characters,
                )
                _require_heldout(card)
            except BaseException:
                folder.abandon()  # nothing was trained: the next call starts afresh
                raise
            for line in describe(card):
                log.info("%s", line)
        done = _train(bilm, str(model), out / "run", settings, stop)
        if done.finished:
            publish(done.out / "best", out)
            shutil.copyfile(done.out / "metrics.jsonl", out / "metrics.jsonl")
            result = {"before": done.first, "after": done.best, "step": done.best_step}
            folder.mark(options=options, inputs=inputs, finished=True, result=result)
            shutil.rmtree(out / "run", ignore_errors=True)
        return FineTuned(done.first, done.best, done.best_step, done.finished)


def _train(bilm: BiLM, start: str, work: Path, settings: Sequence[str], stop: Stop) -> Pretrained:
    """Train on work/data: first a new softmax if there is none, then the whole model."""
    corpus = Corpus(work / "data")
    loss = "full" if len(corpus.vocabulary) <= _MAX_FULL_SOFTMAX else "sampled"
    settings = [f"loss={loss}", f"objective={bilm.config.objective}", *settings]
    if not bilm.config.softmax_words:
        log.info("the model has no softmax: training a new one over %d words first", len(corpus.vocabulary))
        only = ["trained=softmax", f"optim.lr={_NEW_SOFTMAX_LR}", *settings]
        done = pretrain(_config(start, work / "data", work / "softmax", only, corpus), resume=True, stop=stop)
        if not done.finished:
            return done
        start = str(work / "softmax" / "best")
    return pretrain(_config(start, work / "data", work / "model", settings, corpus), resume=True, stop=stop)


def _config(start: str, data: Path, out: Path, settings: Sequence[str], corpus: Corpus | None = None) -> PretrainConfig:
    """Return DEFAULTS with `settings`; how often to evaluate depends on the size of the corpus."""
    plain = override(DEFAULTS, settings, PretrainConfig)
    plain |= {"data": str(data), "out": str(out), "init": start}
    config = build_config(PretrainConfig, plain, where="fine-tune")
    if corpus is None or "evaluate_every" in plain:
        return config
    epoch = (corpus.n_tokens + corpus.n_sentences) / (config.batch_size * config.unroll)
    return replace(config, evaluate_every=max(1, round(epoch / _EVALUATIONS_PER_EPOCH)))


def _words(bilm: BiLM, model: str | Path) -> Vocabulary | None:
    """Return the words of the model's softmax or input; None if a new softmax can have any words."""
    if not bilm.config.softmax_words and bilm.config.input != "words":
        return None
    if bilm.vocabulary is None:
        raise InputError(
            f"{model}: expected a model with a vocabulary, but it has none. Put its vocab.txt into the model folder."
        )
    return bilm.vocabulary


def _require_heldout(card: Mapping[str, Any]) -> None:
    if "heldout" not in card["parts"]:
        raise InputError(
            "fine-tune: expected held-out text, which decides when to stop, but no line was held out. "
            "Use a larger `heldout`, or a file."
        )


def _hash(files: Sequence[str]) -> str:
    """Return a hash of the content of files, in their order. Standard input is read only once, so it has none."""
    return hashlib.sha256("\n".join(name if name == "-" else content_hash(name) for name in files).encode()).hexdigest()


def _table(details: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = details.get(name)
    return table if isinstance(table, dict) else {}
