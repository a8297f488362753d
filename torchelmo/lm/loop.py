"""The pre-training loop. LSTM state is carried from window to window."""

import contextlib
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from torchelmo.bilm.model import BiLM
from torchelmo.lm.cloze import pseudo_perplexity
from torchelmo.lm.config import PretrainConfig
from torchelmo.lm.corpus import Corpus
from torchelmo.lm.losses import ObjectiveOutput
from torchelmo.lm.predict import perplexity
from torchelmo.lm.run import HeldOutPerplexity, Progress, Run, open_run
from torchelmo.progress import progress as show_progress
from torchelmo.runs.config import Every
from torchelmo.runs.distributed import World, distributed_context
from torchelmo.runs.metrics import RecordLog, duration, read_records
from torchelmo.runs.optim import clip_gradients, set_learning_rate
from torchelmo.runs.resume import Stop, require_sound
from torchelmo.runtime import onednn_products

log = logging.getLogger(__name__)
_WORSE = 10.0  # training diverges if the loss exceeds that of guessing by more


class Report(NamedTuple):
    """The state of a run after a step; means are over the steps since the previous report."""

    step: int
    n_steps: int | None  # None if `hours` gives the length of the run
    tokens: int  # read so far; each counts once, though both directions predict it
    seconds: float  # of training, over all parts of the run
    tokens_per_second: float
    loss: float  # mean of the directions
    forward: float | None  # perplexity by the training loss
    backward: float | None
    lr: float
    gradient_norm: float
    remaining: float  # estimated seconds to the end
    heldout_forward: float | None = None  # exact perplexities, if this step was evaluated
    heldout_backward: float | None = None
    heldout: float | None = None  # their average; of a masked model, its only one
    masked: float | None = None  # perplexity of a masked model by the training loss

    def line(self) -> str:
        """Format the report as one line of text."""
        of = f"/{self.n_steps}" if self.n_steps else ""
        parts = [f"step {self.step}{of}", f"{self.tokens_per_second:,.0f} tokens/s", f"loss {self.loss:.3f}"]
        perplexities = [f"{value:.1f}" for value in (self.forward, self.backward, self.masked) if value is not None]
        parts.append(f"perplexity {' / '.join(perplexities)}")
        parts += [f"lr {self.lr:.2g}", f"{duration(self.remaining)} left"]
        if self.heldout is not None:
            ways = (self.heldout_forward, self.heldout_backward)
            both = " / ".join(f"{value:.2f}" for value in ways if value is not None)
            parts.append(f"held-out perplexity {self.heldout:.2f}{both and f' ({both})'}")
        return "  ".join(parts)


class Pretrained(NamedTuple):
    """The outcome of a call of `pretrain`."""

    out: Path  # a model folder with the weights of the last checkpoint
    step: int  # the last step of the run
    finished: bool  # False if the run was stopped before its end
    report: Report | None  # the last report of this call; None if the run had already finished
    first: HeldOutPerplexity | None  # before the first step, if `evaluate_first` is set
    best: HeldOutPerplexity | None  # the lowest held-out perplexity; its model is in out/best
    best_step: int


def pretrain(
    config: PretrainConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    stop: Stop | None = None,
    on_report: Callable[[Report], object] | None = None,
) -> Pretrained:
    """Train a biLM to the end of its run, or until `stop` is requested.

    Under torchrun, all processes call it and train together.

    Args:
        config: The settings.
        resume: Resume from the last checkpoint in `config.out`, if there is one.
        overwrite: Replace the run in `config.out`.
        stop: Ends the run after the current step, with a checkpoint. Default: only an exception ends it early.
        on_report: Called with every report, on every rank.

    Returns:
        What was reached. A run that has already finished is not an error.

    Raises:
        ConfigError: The settings do not fit the data, or a resumed run.
        OutputExistsError: `config.out` holds something that must not be replaced.
        TrainingError: A loss or a gradient is not finite, or training diverges.
    """
    report = None
    with (
        distributed_context(config.device) as world,
        open_run(config, world, resume=resume, overwrite=overwrite) as run,
    ):
        if world.rank == 0:
            log.info("%s", describe_run(run))
        with _progress_bar(run) as advance:
            for report in train(run, stop):
                advance(report.step)
                if world.rank == 0:
                    log.info("%s", report.line())
                if on_report is not None:
                    on_report(report)
        done = run.progress
        return Pretrained(
            config.out,
            done.step,
            run.is_over(done),
            report,
            done.first and HeldOutPerplexity(*done.first),
            done.best and HeldOutPerplexity(*done.best),
            done.best_step,
        )


def train(run: Run, stop: Stop | None = None) -> Iterator[Report]:
    """Take the remaining steps, and yield a report every `log_every` steps and at every evaluation.

    The loop ends after the last step, when the patience is exhausted, or after the step during which `stop` was
    requested: always with a checkpoint and a report.
    """
    if run.is_over(run.progress):
        return
    config, world, stop, progress = run.config, run.world, stop or Stop(), run.progress
    evaluate_every = Every.parse("evaluate_every", config.evaluate_every)
    checkpoint_every = Every.parse("checkpoint_every", config.checkpoint_every)
    heldout = HeldOut(run.bilm, heldout_sentences(run.corpus, config.evaluate_tokens), world)
    if config.evaluate_first and progress.first is None and (first := heldout.measure()) is not None:
        progress = run.keep_best(first, replace(progress, first=first))
        log.info("before training: held-out perplexity %.2f", first.average)
    meter = Meter(
        progress,
        world,
        run.bilm.config.predictions,
        tokens_per_step=run.stream.tokens_per_window,
        n_steps=run.n_steps,
        hours=config.hours,
    )
    evaluated = saved = progress.seconds
    most = math.log(run.bilm.config.softmax_words) + _WORSE
    events = config.out / "tensorboard" if config.tensorboard else None

    with RecordLog(config.out / "metrics.jsonl", progress.step, events=events, writes=world.rank == 0) as metrics:
        for step in run.steps:
            meter.start_step()
            lr = run.learning_rate(step, meter.seconds)
            set_learning_rate(run.optimizer, lr)

            batch, negatives = run.next_batch(), run.draw(step)
            output = run.objective(batch, run.state_before(batch), negatives)
            (output.loss * config.loss_scale).backward()
            run.state = output.state
            run.average_softmax(batch, negatives)

            norm = clip_gradients(run.parameters, config.clip)
            loss = meter.add(output, stop_requested=stop.requested)
            require_sound(step, loss, norm, out=config.out, optim=config.optim, clip=config.clip, most=most)
            run.optimizer.step()
            run.optimizer.zero_grad()
            meter.end_step()

            progress, result = replace(progress, step=step, seconds=meter.seconds), None
            if run.is_over(progress) or evaluate_every.due(step, meter.seconds, evaluated):
                result = heldout.measure()
                progress = run.keep_best(result, progress)
                evaluated = meter.seconds
            last = meter.stop_requested or run.is_over(progress)
            report = None
            if last or result or step % config.log_every == 0:
                report = meter.report(step, lr=lr, gradient_norm=norm, heldout=result)
                metrics.write(report._asdict())  # before the checkpoint: a resumed run removes later records
            if last or checkpoint_every.due(step, meter.seconds, saved):
                run.save(progress)
                saved = meter.seconds
            if report:
                yield report
            if last:
                break


class HeldOut:
    """Measure the perplexity of the same held-out sentences again and again.

    Args:
        bilm: The model.
        sentences: The sentences; if there are none, nothing is measured.
        world: The ranks, which share the work.
    """

    SPACING = 7  # a masked model predicts every word once, with every seventh word hidden: about 15 % of them

    def __init__(self, bilm: BiLM, sentences: Sequence[Sequence[str]], world: World | None = None) -> None:
        self.bilm, self.sentences, self.world = bilm, sentences, world or World()

    def measure(self) -> HeldOutPerplexity | None:
        """Return the perplexity over all ranks, the same on every rank; None without sentences."""
        if not self.sentences:
            return None
        names = self.bilm.config.predictions
        losses, n_targets = [0.0] * len(names), 0
        if mine := self.sentences[self.world.rank :: self.world.size]:
            if names == ("masked",):
                hidden = pseudo_perplexity(self.bilm, mine, spacing=self.SPACING)
                losses, n_targets = [hidden.loss], hidden.n_tokens
            else:
                found = perplexity(self.bilm, mine)
                losses, n_targets = [found.loss(direction) for direction in names], found.n_targets
        *losses, n_all = self.world.sum_over_ranks([*losses, n_targets])
        each = {name: perplexity_of(loss / n_all) for name, loss in zip(names, losses)}
        return HeldOutPerplexity(each.get("forward"), each.get("backward"), sum(each.values()) / len(each))


def heldout_sentences(corpus: Corpus, n_tokens: int) -> list[list[str]]:
    """Return about `n_tokens` tokens of the held-out part; an empty list if the text has no such part."""
    if not corpus.has_part("heldout"):
        log.info("%s has no held-out part: perplexity is not measured during training", corpus.folder)
        return []
    return list(sample_evenly(Corpus(corpus.folder, "heldout"), n_tokens))


def sample_evenly(corpus: Corpus, n_tokens: int) -> Iterator[list[str]]:
    """Yield sentences of about `n_tokens` tokens in total, spread evenly, so that each source has its share."""
    share = min(1.0, n_tokens / corpus.n_tokens)
    for i in range(corpus.n_sentences):
        if math.floor(i * share) > math.floor((i - 1) * share):
            yield corpus.sentence(i)


class Meter:
    """Measure losses and speed. All ranks get the same numbers, so that they make the same decisions.

    The clock is that of rank 0; losses are means over the ranks.
    """

    def __init__(
        self,
        progress: Progress,
        world: World,
        predictions: Sequence[str],
        *,
        tokens_per_step: int,
        n_steps: int | None,
        hours: float | None,
    ) -> None:
        self.world, self.predictions = world, predictions
        self.tokens_per_step, self.n_steps, self.hours = tokens_per_step, n_steps, hours
        self.first_step, self.first_second = progress.step, progress.seconds
        self.seconds = progress.seconds  # of training, over all parts of the run
        self.stop_requested = False  # by a signal to any of the ranks
        self._start = self._step_start = time.perf_counter()
        self._losses: list[float] = []  # sums since the previous report, by prediction
        self._reset_window()

    def start_step(self) -> None:
        """Start the clock of a step."""
        self._step_start = time.perf_counter()

    def end_step(self) -> None:
        """Stop the clock of a step."""
        self._steps += 1
        self._work += time.perf_counter() - self._step_start

    def add(self, output: ObjectiveOutput, *, stop_requested: bool) -> float:
        """Add the losses of a step; return their mean over ranks and directions."""
        clock = self.first_second + time.perf_counter() - self._start if self.world.rank == 0 else 0.0
        own = [float(getattr(output, name)) for name in self.predictions]
        stops, self.seconds, *losses = self.world.sum_over_ranks([float(stop_requested), clock, *own])
        self.stop_requested = stops > 0
        self._losses = [total + loss / self.world.size for total, loss in zip(self._losses, losses)]
        return sum(losses) / self.world.size / len(self.predictions)

    def report(self, step: int, *, lr: float, gradient_norm: float, heldout: HeldOutPerplexity | None = None) -> Report:
        """Return the means since the previous report."""
        losses = [total / self._steps for total in self._losses]
        each = {name: perplexity_of(loss) for name, loss in zip(self.predictions, losses)}
        report = Report(
            step=step,
            n_steps=self.n_steps,
            tokens=step * self.tokens_per_step,
            seconds=self.seconds,
            tokens_per_second=self._steps * self.tokens_per_step / self._work,
            loss=sum(losses) / len(losses),
            forward=each.get("forward"),
            backward=each.get("backward"),
            masked=each.get("masked"),
            lr=lr,
            gradient_norm=gradient_norm,
            remaining=self._remaining(step),
            heldout_forward=heldout and heldout.forward,
            heldout_backward=heldout and heldout.backward,
            heldout=heldout and heldout.average,
        )
        self._reset_window()
        return report

    def _remaining(self, step: int) -> float:
        if self.hours is not None:
            return max(0.0, self.hours * 3600.0 - self.seconds)
        assert self.n_steps is not None
        pace = (self.seconds - self.first_second) / (step - self.first_step)
        return pace * (self.n_steps - step)

    def _reset_window(self) -> None:
        self._steps, self._work, self._losses = 0, 0.0, [0.0] * len(self.predictions)


class Plan(NamedTuple):
    """The estimated cost of a run."""

    n_parameters: int
    text_tokens: int  # of the training part, without sentence marks
    windows_per_epoch: int
    tokens_per_step: int
    n_steps: int  # for a run of hours, by the measured speed
    tokens: int  # read over the whole run
    epochs: float
    tokens_per_second: float
    memory: float  # bytes: the peak of this process so far
    checkpoint: float  # bytes of one checkpoint
    seconds: float  # to the end, without evaluations

    def lines(self) -> list[str]:
        """Format the plan as lines of text."""
        return [
            f"parameters      {self.n_parameters:,}",
            f"text            {self.text_tokens:,} tokens, {self.windows_per_epoch:,} windows per epoch",
            f"run             {self.n_steps:,} steps of {self.tokens_per_step:,} tokens",
            f"                = {self.tokens:,} tokens, {self.epochs:.2f} epochs",
            f"speed           {self.tokens_per_second:,.0f} tokens/s",
            f"memory          {self.memory / 1e9:.2f} GB",
            f"checkpoint      {self.checkpoint / 1e6:,.0f} MB each",
            f"time            {duration(self.seconds)} ({self.seconds / 3600:.2f} hours)",
        ]


def make_plan(config: PretrainConfig, world: World, *, seconds: float = 5.0, max_steps: int = 50) -> Plan:
    """Train for about `seconds` and at most `max_steps` steps in a temporary folder, and estimate the whole run."""
    speeds = []
    with tempfile.TemporaryDirectory(prefix="torchelmo-plan-") as folder, onednn_products(world.device):
        probe = replace(
            config,
            out=Path(folder),
            log_every=1,
            checkpoint_every=sys.maxsize,
            evaluate_first=False,
            evaluate_every=0,
            tensorboard=False,
        )
        run = Run(probe, world)
        for report in train(run):
            speeds.append(report.tokens_per_second)
            # All ranks share this clock: a rank that continued alone would wait for the others forever.
            if len(speeds) >= max_steps or (len(speeds) > 2 and report.seconds > seconds):
                break
    speed = median(speeds[1:] or speeds)  # the first step allocates memory and starts threads
    tokens_per_step = run.stream.tokens_per_window
    n_steps = run.n_steps or max(1, round((config.hours or 0.0) * 3600.0 * speed / tokens_per_step))
    state = run.optimizer.state_dict()["state"].values()
    tensors = [
        *run.bilm.parameters(),
        *(tensor for values in state for tensor in values.values()),
        *run.state,
    ]
    return Plan(
        n_parameters=sum(parameter.numel() for parameter in run.bilm.parameters()),
        text_tokens=run.corpus.n_tokens,
        windows_per_epoch=run.stream.windows_per_epoch,
        tokens_per_step=tokens_per_step,
        n_steps=n_steps,
        tokens=n_steps * tokens_per_step,
        epochs=n_steps / run.stream.windows_per_epoch,
        tokens_per_second=speed,
        memory=peak_memory(world.device),
        checkpoint=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        seconds=n_steps * tokens_per_step / speed,
    )


def peak_memory(device: torch.device) -> float:
    """Return the largest number of bytes that this process has held so far, on the device it computes on."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return float("nan")
    import resource  # not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def describe_run(run: Run) -> str:
    """Describe a run in one line: data, output, size, length, device."""
    config, n_parameters = run.config, sum(parameter.numel() for parameter in run.bilm.parameters())
    length = f"{config.hours:g} hours" if run.n_steps is None else f"{run.n_steps:,} steps"
    return (
        f"{config.data} ({run.corpus.n_tokens:,} tokens) -> {config.out}: {n_parameters:,} parameters, {length} of "
        f"{run.stream.tokens_per_window:,} tokens, on {run.world.device} (threads: {torch.get_num_threads()})"
    )


def read_evaluations(out: Path) -> list[dict[str, float]]:
    """Return the records of a run that have a held-out perplexity."""
    return [record for record in read_records(out / "metrics.jsonl") if "heldout" in record]


def perplexity_of(loss: float) -> float:
    """Return the perplexity of a loss; losses above 700 are clipped to avoid overflow."""
    return math.exp(min(loss, 700.0))


@contextlib.contextmanager
def _progress_bar(run: Run) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the last step; it draws a bar on a terminal, and does nothing elsewhere."""
    if run.world.rank > 0 or not sys.stderr.isatty():
        yield lambda step: None
        return
    done = run.progress.step
    with show_progress("pretrain", run.n_steps, done=done, unit="steps") as advance:

        def advance_to(step: int) -> None:
            nonlocal done
            advance(step - done)
            done = step

        yield advance_to
