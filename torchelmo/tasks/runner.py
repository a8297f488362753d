"""One runner for all tasks: train, score on dev after every epoch, keep the best, stop when it no longer improves."""

import dataclasses
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchelmo.config import config_to_dict
from torchelmo.errors import TrainingError
from torchelmo.files import writing
from torchelmo.progress import progress as show_progress
from torchelmo.tasks.average import MovingAverage
from torchelmo.tasks.batches import training_batches
from torchelmo.tasks.checkpoint import Progress, restore, save_checkpoint
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.fingerprint import fingerprint
from torchelmo.tasks.folder import save_task
from torchelmo.tasks.result import MixResult, Result, Summary, summarise, write_result, write_summary
from torchelmo.tasks.resume import clear_folder, is_over, open_folder, result_of_finished
from torchelmo.tasks.start import start
from torchelmo.tasks.step import Step, take_step
from torchelmo.tasks.task import Scores
from torchelmo.tasks.trained import TrainedTask, example_length
from torchelmo.tasks.weights import save_tensors, task_tensors, trained_parameters
from torchelmo.train.checkpoint import checkpoints
from torchelmo.train.config import Every
from torchelmo.train.optim import build_optimizer, learning_rate, set_learning_rate
from torchelmo.train.signals import Stop

log = logging.getLogger(__name__)


def train_seeds(
    config: TaskConfig, n_seeds: int, *, resume: bool = False, overwrite: bool = False, stop: Stop | None = None
) -> Summary | None:
    """The same run with `n_seeds` seeds, each in out/seed-N; None if it was asked to stop."""
    stop, results = stop or Stop(), []
    for seed in range(config.seed, config.seed + n_seeds):
        out = config.out if n_seeds == 1 else config.out / f"seed-{seed}"
        result = train(dataclasses.replace(config, seed=seed, out=out), resume=resume, overwrite=overwrite, stop=stop)
        if result is None:
            return None
        results.append(result)
        log.info("%s", result.line())
    summary = summarise(results)
    if n_seeds > 1:
        write_summary(config.out, summary)
    return summary


def train(
    config: TaskConfig, *, resume: bool = False, overwrite: bool = False, stop: Stop | None = None
) -> Result | None:
    """One run; the result of its best epoch, or None if it was asked to stop before its end."""
    stop = stop or Stop()
    saved = open_folder(config, resume=resume, overwrite=overwrite)
    if saved is not None and (result := result_of_finished(config, saved)) is not None:
        return result
    if config.threads:
        torch.set_num_threads(config.threads)
    started = start(config, stop)
    if started is None:
        return None
    trained, examples, dev, bilm_seconds = started
    task, model = trained.task, trained.model
    parameters = list(trained_parameters(model).values())
    optimizer = build_optimizer(config.optim, parameters)
    average = MovingAverage(model, config.ema) if config.ema else None
    if saved is None:
        progress = Progress(bilm_seconds=bilm_seconds)
        elmo = model.inputs.elmo
        inputs = fingerprint(config, elmo.bilm if elmo is not None else None)
        clear_folder(config.out)
        save_task(config.out, task, config, model, trained.vocabularies)
    else:
        progress, inputs = saved.progress, saved.inputs
        restore(saved.folder, model, optimizer, average.tensors if average else None)
    lengths = [example_length(task, example) for example in examples]
    checkpoint_every = Every.parse("checkpoint_every", config.checkpoint_every)
    settings = config_to_dict(config)
    clock, kept_at = time.perf_counter() - progress.seconds, progress.seconds

    def save(progress: Progress) -> None:
        tensors = average.tensors if average else None
        save_checkpoint(config.out, model, optimizer, tensors, progress, settings, inputs)

    while True:
        epoch = progress.epoch + 1
        batches = training_batches(lengths, config.batch_size, seed=config.seed, epoch=epoch)
        n_steps = len(batches) * config.epochs
        model.train()
        with show_progress(f"{task.name}, epoch {epoch}", len(batches), done=progress.batch, unit="batches") as advance:
            for batch in batches[progress.batch :]:
                step = progress.step + 1
                _seed_step(config.seed, step)
                rate = learning_rate(config.optim, step=step, before=progress.step / n_steps, after=step / n_steps)
                set_learning_rate(optimizer, rate * progress.rate)

                chosen = [examples[i] for i in batch]
                taken = take_step(model, parameters, optimizer, average, chosen, config.clip)
                if not taken.is_finite:
                    raise TrainingError(_explain_not_finite(config, step, taken))

                seconds = time.perf_counter() - clock
                progress = progress._replace(
                    step=step, batch=progress.batch + 1, loss=progress.loss + taken.loss, seconds=seconds
                )
                advance(1)
                if stop.asked or checkpoint_every.due(step, seconds, kept_at):
                    save(progress)
                    kept_at = seconds
                if stop.asked:
                    return None

        scores, mixes, tensors = _score(trained, dev, average)
        loss_mean = progress.loss / len(batches)
        progress = progress._replace(epoch=epoch, batch=0, loss=0.0, seconds=time.perf_counter() - clock)
        if progress.best is None or scores[task.metric] > progress.best[task.metric]:
            progress = progress._replace(best=scores, best_epoch=epoch, mixes=mixes)
            save_tensors(config.out / "model.safetensors", tensors)
        elif _should_halve(config, progress):
            progress = progress._replace(rate=progress.rate / 2, halved_epoch=epoch)
        result = _result(trained, progress)
        _record_epoch(config, epoch, loss_mean, scores, progress)
        write_result(config.out, result)
        save(progress)
        log.info(
            "%s, epoch %d: loss %.4f, %s %.2f on dev (best %.2f, epoch %d)",
            *(task.name, epoch, loss_mean, task.metric, scores[task.metric]),
            *(result.score, progress.best_epoch),
        )
        if result.finished:
            return result


def _should_halve(config: TaskConfig, progress: Progress) -> bool:
    since = progress.epoch - max(progress.best_epoch, progress.halved_epoch)
    return 0 < config.optim.halve_after <= since


def _seed_step(seed: int, step: int) -> None:
    """Dropout and all else that is random in a step comes from its number: a resumed run draws the same."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))


def _score(
    trained: TrainedTask, dev: Sequence[Any], average: MovingAverage | None
) -> tuple[Scores, list[MixResult], dict[str, Tensor]]:
    """The scores on dev, and the mixes and weights that were scored: with a moving average, that."""
    if average is None:
        return trained.task.score(dev, trained.predict(dev)), _mixes(trained), task_tensors(trained.model)
    with average.in_place(trained.model):
        scores = trained.task.score(dev, trained.predict(dev))
        tensors = {name: tensor.clone() for name, tensor in task_tensors(trained.model).items()}
        return scores, _mixes(trained), tensors


def _mixes(trained: TrainedTask) -> list[MixResult]:
    elmo, place = trained.model.inputs.elmo, trained.config.elmo.place
    if elmo is None:
        return []
    places = ["input", "output"] if place == "both" else [place]
    return [MixResult(name, mix.weights.tolist(), mix.gamma.item()) for name, mix in zip(places, elmo.mixes)]


def _result(trained: TrainedTask, progress: Progress) -> Result:
    assert progress.best is not None
    return Result(
        task=trained.task.name,
        metric=trained.task.metric,
        seed=trained.config.seed,
        scores=progress.best,
        best_epoch=progress.best_epoch,
        epochs=progress.epoch,
        steps=progress.step,
        seconds=progress.seconds,
        bilm_seconds=progress.bilm_seconds,
        parameters=sum(parameter.numel() for parameter in trained_parameters(trained.model).values()),
        mixes=list(progress.mixes),
        finished=is_over(trained.config, progress),
    )


def _record_epoch(config: TaskConfig, epoch: int, loss: float, scores: Scores, progress: Progress) -> None:
    """One line for this epoch; those of epochs that a resumed run takes again are dropped."""
    path = config.out / "epochs.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()[: epoch - 1] if path.exists() else []
    record = {"epoch": epoch, "step": progress.step, "loss": loss, "seconds": progress.seconds, "scores": scores}
    with writing(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in [*lines, json.dumps(record)]), encoding="utf-8")


def _explain_not_finite(config: TaskConfig, step: int, taken: Step) -> str:
    kept = "and the last checkpoint is kept in" if checkpoints(config.out) else "and there is no checkpoint yet in"
    return (
        f"step {step}: expected finite numbers, got a loss of {taken.loss} and a gradient norm of {taken.norm}; this "
        f"step was not taken, {kept} {config.out}. Try a lower optim.lr (now {config.optim.peak:g}) or a smaller clip "
        f"(now {config.clip:g})."
    )
