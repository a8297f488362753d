"""Train a task model: score it on the dev data after every epoch, keep the best, stop when it no longer improves."""

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.bilm.model import BiLM
from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import ConfigError, WeightsError
from torchelmo.files import content_hash, open_bytes, require_file
from torchelmo.formats.load import load as load_bilm
from torchelmo.progress import progress as show_progress
from torchelmo.runs.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint
from torchelmo.runs.config import Every, flatten
from torchelmo.runs.metrics import RecordLog
from torchelmo.runs.optim import (
    MovingAverage,
    build_optimizer,
    clip_gradients,
    learning_rate,
    optimizer_shapes,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)
from torchelmo.runs.resume import RunFolder, Stop, check_inputs, check_settings, out_of_patience, require_sound
from torchelmo.runtime import choose_device, onednn_products, step_seed
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenInput, build_characters, build_words
from torchelmo.tasks.task import (
    MixResult,
    Outcome,
    Progress,
    Result,
    Scores,
    SeedsOutcome,
    TaskModel,
    find_task,
    summarize,
    write_result,
    write_summary,
)
from torchelmo.tasks.trained import (
    TrainedTask,
    all_sentences,
    example_length,
    require_examples,
    save_task,
    task_tensors,
    trained_parameters,
)
from torchelmo.tensors import write_tensors
from torchelmo.text.batching import draw_share, training_batches

log = logging.getLogger(__name__)

KIND = "task"
# Everything that a run writes into its folder, except for checkpoints.
_OWNED = (
    *("words.json", "words.safetensors", "model.safetensors", "metrics.json", "epochs.jsonl", "task.json"),
    *("bilm/config.json", "bilm/model.safetensors", "bilm/vocab.txt"),
)
# Settings that a resumed run may change: they do not change the steps already taken. Inputs are compared by content.
_CHANGEABLE = frozenset(
    "out epochs patience checkpoint_every threads device elmo.memory_mb elmo.disk_mb "
    "elmo.cache elmo.cache_mb train dev words.vectors elmo.model".split()
)


def train(config: TaskConfig, *, resume: bool = False, overwrite: bool = False, stop: Stop | None = None) -> Outcome:
    """Train a task model in the folder `config.out`.

    The folder holds everything that `load` needs, with the weights of the best epoch. A run that was stopped or killed
    can be resumed; the result is the same as without the interruption, bit for bit.

    Args:
        config: The settings.
        resume: Resume the run in the folder, if there is one. A finished run returns its result at once.
        overwrite: Replace the run in the folder, if there is one.
        stop: Ends the run after its current step, with a checkpoint, when it is requested.

    Returns:
        The result of the best epoch, and whether the run was stopped before its end.

    Raises:
        ConfigError: A setting is wrong, or differs from those of the run to resume.
        InputError: The data, the word vectors or the biLM cannot be read.
        OutputExistsError: The folder holds a run already, or files that no run wrote.
        OutputError: Another process is writing to the folder, or it cannot be written.
        TrainingError: The loss or a gradient became NaN or infinite.

    Example:
        >>> from torchelmo import tasks
        >>> config = tasks.TaskConfig("pos", "train.conllu", "dev.conllu", out="runs/pos")
        >>> tasks.train(config).result.score  # doctest: +SKIP
        93.1
    """
    stop = stop or Stop()
    with RunFolder(config.out, KIND, owned=_OWNED, resume=resume, overwrite=overwrite) as folder:
        checkpoint, bilm = folder.checkpoint, _load_bilm(config)
        inputs = fingerprint(config, bilm)
        if checkpoint is not None:
            progress = _check_resumable(config, checkpoint, inputs)
            if progress.is_finished(config):
                result = Result.of(config, progress)
                write_result(config.out, result)
                return Outcome(result, stopped=False, saved=True)
        if config.threads:
            torch.set_num_threads(config.threads)
        setup = set_up(config, bilm=bilm, stop=stop)
        if setup is None:
            return Outcome(None, stopped=True, saved=checkpoint is not None)
        run = _Run(setup, inputs)
        if checkpoint is None:
            folder.start()
            save_task(config.out, setup.trained)
        else:
            run.restore(checkpoint, progress)
        with onednn_products(choose_device(config.device)):
            return run.train(stop)


def train_seeds(
    config: TaskConfig, n_seeds: int, *, resume: bool = False, overwrite: bool = False, stop: Stop | None = None
) -> SeedsOutcome:
    """Train the same configuration with the seeds `config.seed`, `config.seed + 1` and so on.

    Args:
        config: The settings. Each run is written to out/seed-N, or to `out` if there is only one seed.
        n_seeds: The number of seeds.
        resume: As for `train`.
        overwrite: As for `train`.
        stop: As for `train`.

    Returns:
        The results with their mean and standard deviation, or that it was stopped.
    """
    stop = stop or Stop()
    results: list[Result] = []
    for seed in range(config.seed, config.seed + n_seeds):
        out = config.out if n_seeds == 1 else config.out / f"seed-{seed}"
        outcome = train(replace(config, seed=seed, out=out), resume=resume, overwrite=overwrite, stop=stop)
        if outcome.stopped or outcome.result is None:
            return SeedsOutcome(None, stopped=True, saved=outcome.saved or bool(results))
        results.append(outcome.result)
    summary = summarize(results)
    if n_seeds > 1:
        write_summary(config.out, summary)
    return SeedsOutcome(summary, stopped=False, saved=True)


def find_finished(config: TaskConfig) -> Result | None:
    """Return the result of the run in `config.out` if it is finished, else None.

    Raises:
        ConfigError: The run there has other settings or inputs.
        WeightsError: Its checkpoint is damaged.
    """
    checkpoint = latest_checkpoint(config.out, KIND)
    if checkpoint is None:
        return None
    progress = _check_resumable(config, checkpoint, fingerprint(config, _load_bilm(config)))
    return Result.of(config, progress) if progress.is_finished(config) else None


class Setup(NamedTuple):
    """The data and the model of a run before its first step."""

    trained: TrainedTask  # with random weights
    examples: list[Any]  # to train on
    dev: list[Any]
    bilm_seconds: float


def set_up(config: TaskConfig, *, bilm: BiLM | None = None, stop: Stop | None = None) -> Setup | None:
    """Read the data, build the model, and run a frozen biLM over all sentences.

    Settings and the names of files are checked before the data is read.

    Args:
        config: The settings.
        bilm: The biLM of `config.elmo.model`. Default: it is loaded.
        stop: Ends the work early when it is requested.

    Returns:
        The setup, or None if `stop` was requested in the meantime.
    """
    task = find_task(config.task)
    options = build_config(task.data_config, config.data, where="data")
    model_options = build_config(task.model_config, config.model, where="model")
    device = choose_device(config.device)
    if config.words.vectors is not None:
        require_file(config.words.vectors, "word vectors")
    elmo = None
    if config.elmo.place != "none":
        bilm = bilm or _load_bilm(config)
        assert bilm is not None
        elmo = ElmoLayers(bilm, config.elmo, folder=config.out)
    everything, dev = task.read(config.train, options), task.read(config.dev, options)
    labeled = draw_share(everything, config.share, seed=step_seed(config.seed, 0, "share"))
    examples = task.training(labeled, options)
    for path, part in ((config.train, examples), (config.dev, dev)):
        require_examples(part, path, task)
    place = {"none": "without ELMo", "both": "ELMo at the input and the output"}
    counts = f"{_plural(len(examples), 'training example')}, {_plural(len(dev), 'dev example')}"
    log.info("%s: %s, %s", task.name, counts, place.get(config.elmo.place, f"ELMo at the {config.elmo.place}"))
    torch.manual_seed(step_seed(config.seed, 0, "weights"))
    inputs = TokenInput(
        build_words(config.words, all_sentences(task, examples)), build_characters(config.characters), elmo
    )
    vocabularies = task.vocabularies(labeled, options)
    model = task.build(model_options, inputs, vocabularies).to(device)
    start = time.perf_counter()
    if elmo is not None:
        # Runs with other shares and seeds use the shared cache, too: fill it with all sentences in the same order.
        cached = task.training(everything, options) if config.elmo.cache is not None else examples
        elmo.precompute(all_sentences(task, [*cached, *dev]), stop)
    if stop is not None and stop.requested:
        return None
    return Setup(TrainedTask(task, config, model, vocabularies), examples, dev, time.perf_counter() - start)


class StepResult(NamedTuple):
    """The result of one training step."""

    loss: float  # of the task, without the penalty
    norm: float  # of the gradient before clipping

    @property
    def is_finite(self) -> bool:
        """Whether both numbers are finite; if not, the weights were not changed."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


def take_step(
    model: TaskModel[Any, Any],
    parameters: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    average: MovingAverage | None,
    examples: Sequence[Any],
    clip: float,
) -> StepResult:
    """Take one optimizer step: loss and ELMo penalty, gradients, clipping, update.

    The weights are not changed if the loss or the gradient norm is not finite.
    """
    loss = model.loss(examples)
    total = loss if model.inputs.elmo is None else loss + model.inputs.elmo.penalty()
    total.backward()
    step = StepResult(loss.item(), clip_gradients(parameters, clip))
    if step.is_finite:
        optimizer.step()
        optimizer.zero_grad()
        if average:
            average.update(model)
    return step


def fingerprint(config: TaskConfig, bilm: BiLM | None) -> dict[str, str]:
    """Return a hash of the content of each input, by the setting that names it."""
    hashes = {"train": input_hash(config.train), "dev": input_hash(config.dev)}
    if config.words.vectors is not None:
        hashes["words.vectors"] = input_hash(config.words.vectors)
    if bilm is not None:
        hashes["elmo.model"] = bilm.fingerprint()
    return hashes


class _Run:
    """The epochs of a run, and its checkpoints."""

    def __init__(self, setup: Setup, inputs: dict[str, str]) -> None:
        self.trained, self.examples, self.dev, bilm_seconds = setup
        self.task, self.model, self.config = self.trained.task, self.trained.model, self.trained.config
        parameters = trained_parameters(self.model)
        self.names, self.parameters = list(parameters), list(parameters.values())
        self.optimizer = build_optimizer(self.config.optim, self.parameters)
        self.average = MovingAverage(self.model, self.config.ema) if self.config.ema else None
        self.inputs = inputs
        n_values = sum(parameter.numel() for parameter in self.parameters)
        self.progress = Progress(bilm_seconds=bilm_seconds, parameters=n_values)

    def train(self, stop: Stop) -> Outcome:
        config, task, model = self.config, self.task, self.model
        lengths = [example_length(task, example) for example in self.examples]
        checkpoint_every = Every.parse("checkpoint_every", config.checkpoint_every)
        progress = self.progress
        start, saved_at = time.perf_counter() - progress.seconds, progress.seconds
        records = RecordLog(config.out / "epochs.jsonl", progress.step)
        while True:
            epoch = progress.epoch + 1
            batches = training_batches(lengths, config.batch_size, seed=step_seed(config.seed, epoch, "batches"))
            n_steps = len(batches) * config.epochs
            model.train()
            name = f"{task.name}, epoch {epoch}"
            with show_progress(name, len(batches), done=progress.batch, unit="batches") as advance:
                for batch in batches[progress.batch :]:
                    step = progress.step + 1
                    torch.manual_seed(step_seed(config.seed, step, "dropout"))
                    rate = learning_rate(config.optim, step=step, before=progress.step / n_steps, after=step / n_steps)
                    set_learning_rate(self.optimizer, rate * progress.rate)

                    chosen = [self.examples[i] for i in batch]
                    taken = take_step(model, self.parameters, self.optimizer, self.average, chosen, config.clip)
                    require_sound(step, taken.loss, taken.norm, out=config.out, optim=config.optim, clip=config.clip)

                    seconds = time.perf_counter() - start
                    progress = replace(
                        progress, step=step, batch=progress.batch + 1, loss=progress.loss + taken.loss, seconds=seconds
                    )
                    advance(1)
                    if stop.requested or checkpoint_every.due(step, seconds, saved_at):
                        self.save(progress)
                        saved_at = seconds
                    if stop.requested:
                        result = Result.of(config, progress) if progress.best is not None else None
                        return Outcome(result, stopped=True, saved=True)

            loss = progress.loss / len(batches)
            scores, mixes, tensors = self.score()
            progress = replace(progress, epoch=epoch, batch=0, loss=0.0, seconds=time.perf_counter() - start)
            if progress.best is None or scores[task.metric] > progress.best[task.metric]:
                progress = replace(progress, best=scores, best_epoch=epoch, mixes=mixes)
                write_tensors(config.out / "model.safetensors", tensors)
            elif out_of_patience(epoch - max(progress.best_epoch, progress.halved_epoch), config.optim.halve_after):
                progress = replace(progress, rate=progress.rate / 2, halved_epoch=epoch)
            records.write(
                {"epoch": epoch, "step": progress.step, "loss": loss, "seconds": progress.seconds, "scores": scores}
            )
            result = Result.of(config, progress)
            write_result(config.out, result)
            self.save(progress)
            log.info(
                "%s, epoch %d: loss %.4f, %s %.2f on dev (best %.2f, epoch %d)",
                *(task.name, epoch, loss, task.metric, scores[task.metric]),
                *(result.score, progress.best_epoch),
            )
            if result.finished:
                return Outcome(result, stopped=False, saved=True)

    def score(self) -> tuple[Scores, tuple[MixResult, ...], dict[str, Tensor]]:
        """Return the scores on dev with the mixes and weights that were scored: the moving average, if there is one."""
        if self.average is None:
            return self._dev_scores(), self._mixes(), task_tensors(self.model)
        with self.average.in_place(self.model):
            tensors = {name: tensor.clone() for name, tensor in task_tensors(self.model).items()}
            return self._dev_scores(), self._mixes(), tensors

    def save(self, progress: Progress) -> None:
        """Write a checkpoint."""
        optimizer = optimizer_tensors(self.optimizer, self.names)
        tensors = {"model": task_tensors(self.model), "optimizer": optimizer}
        if self.average:
            tensors["average"] = self.average.tensors
        save_checkpoint(
            self.config.out,
            kind=KIND,
            step=progress.step,
            settings=config_to_dict(self.config),
            inputs=self.inputs,
            progress=progress,
            tensors=tensors,
            keep=1,
        )

    def restore(self, checkpoint: Checkpoint, progress: Progress) -> None:
        """Continue from a checkpoint: weights, optimizer state and moving average."""
        self.progress = replace(progress, parameters=self.progress.parameters)
        tensors = checkpoint.read("model", _shapes(task_tensors(self.model)))
        shapes = optimizer_shapes(self.optimizer, self.names)
        # Parameters that no example has reached yet have no state.
        state = checkpoint.read("optimizer", shapes, optional=shapes.keys())
        average = checkpoint.read("average", _shapes(self.average.tensors)) if self.average else {}
        self.model.load_state_dict(tensors, strict=False)
        restore_optimizer(self.optimizer, self.names, state, str(checkpoint.folder), complete=False)
        if self.average:
            self.average.n_updates = progress.step
            for name, tensor in self.average.tensors.items():
                tensor.copy_(average[name])

    def _dev_scores(self) -> Scores:
        return self.task.score(self.dev, self.trained.predict_examples(self.dev))

    def _mixes(self) -> tuple[MixResult, ...]:
        elmo = self.model.inputs.elmo
        if elmo is None:
            return ()
        named = zip(elmo.config.places, elmo.mixes)
        return tuple(MixResult(place, mix.weights.tolist(), mix.gamma.item()) for place, mix in named)


def _load_bilm(config: TaskConfig) -> BiLM | None:
    return load_bilm(config.elmo.model or None) if config.elmo.place != "none" else None


def _check_resumable(config: TaskConfig, checkpoint: Checkpoint, inputs: dict[str, str]) -> Progress:
    """Return the progress of a checkpoint, if it belongs to a run with these settings and inputs."""
    before = flat_settings(build_config(TaskConfig, checkpoint.settings, str(checkpoint.folder)))
    now, changeable = flat_settings(config), set(_CHANGEABLE)
    if config.optim.decay != "none" or 0 < config.optim.warmup < 1:
        changeable.remove("epochs")  # the learning rate of every step depends on it
    if "none" in (before["elmo.place"], now["elmo.place"]):  # then the other settings of ELMo have no effect
        changeable |= {name for name in now if name.startswith("elmo.") and name != "elmo.place"}
    check_settings(config.out, before, now, changeable=changeable)
    check_inputs(config.out, checkpoint.inputs, inputs, paths={name: now[name] or "default" for name in inputs})
    progress, metric = checkpoint.read_progress(Progress), find_task(config.task).metric
    if progress.best is not None and not isinstance(progress.best.get(metric), (int, float)):
        raise WeightsError(f"{checkpoint.folder}: expected the dev score {metric!r} of the best epoch, found none.")
    if progress.epoch > config.epochs:
        raise ConfigError(
            f"{config.out}: this run has {progress.epoch} epochs already, and epochs is {config.epochs}: its best "
            "epoch may be a later one. Increase epochs, or start a new run with another out."
        )
    return progress


def flat_settings(config: TaskConfig) -> dict[str, Any]:
    """Return every setting by its name on the command line, with the defaults of [data] and [model] filled in."""
    task, plain = find_task(config.task), config_to_dict(config)
    for table, cls in (("data", task.data_config), ("model", task.model_config)):
        plain[table] = config_to_dict(build_config(cls, plain[table], where=table))
    return flatten(plain)


def input_hash(path: Path) -> str:
    """Hash the decompressed content of a file, so that a file may be moved or compressed; or all files of a folder."""
    if path.is_dir():
        return content_hash(path)
    digest = hashlib.sha256()
    with open_bytes(path) as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
