"""One runner for all tasks: train, score on dev after every epoch, keep the best, stop when it no longer improves."""

import dataclasses
import json
import logging
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import TrainingError
from torchelmo.files import atomic_write
from torchelmo.formats.load import load as load_bilm
from torchelmo.progress import progress as show_progress
from torchelmo.runs.checkpoint import checkpoints
from torchelmo.runs.config import Every
from torchelmo.runs.distributed import choose_device
from torchelmo.runs.optim import MovingAverage, build_optimizer, clip_gradients, learning_rate, set_learning_rate
from torchelmo.runs.resume import Stop
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenInput, build_characters, build_words
from torchelmo.tasks.resume import (
    Progress,
    clear_folder,
    fingerprint,
    is_over,
    open_folder,
    restore,
    result_of_finished,
    save_checkpoint,
)
from torchelmo.tasks.task import Scores, TaskModel, find_task
from torchelmo.tasks.trained import (
    MixResult,
    Result,
    Summary,
    TrainedTask,
    all_sentences,
    example_length,
    require_examples,
    save_task,
    save_tensors,
    summarise,
    task_tensors,
    trained_parameters,
    write_result,
    write_summary,
)
from torchelmo.text.batching import training_batches

log = logging.getLogger(__name__)


class Start(NamedTuple):
    trained: TrainedTask  # with random weights yet
    examples: list[Any]  # to train on
    dev: list[Any]
    bilm_seconds: float


def start(config: TaskConfig, stop: Stop) -> Start | None:
    """None if it was asked to stop meanwhile: the biLM's run over all sentences can be long."""
    task = find_task(config.task)
    options = build_config(task.data_config, config.data, where="data")
    model_options = build_config(task.model_config, config.model, where="model")  # wrong keys are errors at once
    device = choose_device(config.device)
    labelled, dev = task.read(config.train, options), task.read(config.dev, options)
    examples = task.training(labelled, options)
    for path, part in ((config.train, examples), (config.dev, dev)):
        require_examples(part, path, task)
    log.info("%s: %s examples to train on, %s to score", task.name, f"{len(examples):,}", f"{len(dev):,}")
    torch.manual_seed(config.seed)  # before anything random is built
    elmo = None
    if config.elmo.place != "none":
        elmo = ElmoLayers(load_bilm(config.elmo.model or None), config.elmo, folder=config.out)
    words = build_words(config.words, all_sentences(task, examples))
    inputs = TokenInput(words, build_characters(config), elmo)
    vocabularies = task.vocabularies(labelled, options)
    model = task.build(model_options, inputs, vocabularies).to(device)
    before = time.perf_counter()
    if elmo is not None:
        elmo.fill(all_sentences(task, [*examples, *dev]), stop)
    if stop.requested:
        return None
    return Start(TrainedTask(task, config, model, vocabularies), examples, dev, time.perf_counter() - before)


class Step(NamedTuple):
    loss: float  # of the task, without the penalty
    norm: float  # of the whole gradient, before it was clipped

    @property
    def is_finite(self) -> bool:
        """Else no weight was moved."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


def take_step(
    model: TaskModel[Any, Any],
    parameters: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    average: MovingAverage | None,
    examples: Sequence[Any],
    clip: float,
) -> Step:
    """Move the `parameters` of the model, unless that would make them NaN or infinite."""
    loss = model.loss(examples)
    total = loss if model.inputs.elmo is None else loss + model.inputs.elmo.penalty()
    total.backward()
    step = Step(loss.item(), clip_gradients(parameters, clip))
    if step.is_finite:
        optimizer.step()
        optimizer.zero_grad()
        if average:
            average.update(model)
    return step


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
        if average:
            average.n_updates = progress.step
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
                if stop.requested or checkpoint_every.due(step, seconds, kept_at):
                    save(progress)
                    kept_at = seconds
                if stop.requested:
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
    with atomic_write(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in [*lines, json.dumps(record)]), encoding="utf-8")


def _explain_not_finite(config: TaskConfig, step: int, taken: Step) -> str:
    kept = "and the last checkpoint is kept in" if checkpoints(config.out) else "and there is no checkpoint yet in"
    return (
        f"step {step}: expected finite numbers, got a loss of {taken.loss} and a gradient norm of {taken.norm}; this "
        f"step was not taken, {kept} {config.out}. Try a lower optim.lr (now {config.optim.peak:g}) or a smaller clip "
        f"(now {config.clip:g})."
    )
