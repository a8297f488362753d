"""`--plan`: a few windows are trained and thrown away, to tell what the run will take."""

import logging
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from torchelmo.errors import TrainingError
from torchelmo.lm.config import PretrainConfig
from torchelmo.lm.corpus import Corpus
from torchelmo.lm.losses import ObjectiveOutput
from torchelmo.lm.predict import perplexity
from torchelmo.lm.run import Run, open_run
from torchelmo.runs import checkpoint as files
from torchelmo.runs.checkpoint import Progress
from torchelmo.runs.config import Every
from torchelmo.runs.distributed import World, joined
from torchelmo.runs.metrics import Metrics, Report, draw_curve, duration, perplexity_of
from torchelmo.runs.optim import clip_gradients, set_learning_rate
from torchelmo.runs.signals import Stop

log = logging.getLogger(__name__)


class Result(NamedTuple):
    """Exact perplexities; None for a direction that the model lacks."""

    forward: float | None
    backward: float | None
    average: float


class HeldOut:
    """About `evaluate_tokens` tokens of the held-out part; nothing where the text has no such part."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.sentences: list[list[str]] = []
        if run.corpus.has_part("heldout"):
            corpus = Corpus.open(run.config.data, "heldout")
            self.sentences = list(spread(corpus, run.config.evaluate_tokens))
        else:
            log.info("%s has no held-out part: perplexity is not measured on the way", run.config.data)

    def measure(self) -> Result | None:
        """The same result on every rank."""
        if not self.sentences:
            return None
        world, directions = self.run.world, self.run.bilm.config.directions
        losses, n_targets = [0.0] * len(directions), 0
        if mine := self.sentences[world.rank :: world.size]:
            found = perplexity(self.run.bilm, mine)
            losses, n_targets = [found.loss(direction) for direction in directions], found.n_targets
        *losses, n_all = world.total([*losses, n_targets])
        each = {direction: math.exp(loss / n_all) for direction, loss in zip(directions, losses)}
        return Result(each.get("forward"), each.get("backward"), sum(each.values()) / len(each))

    def keep_best(self, result: Result | None, progress: Progress) -> Progress:
        """Save the model to out/best if none before was better; count the evaluations since the best."""
        if result is None:
            return progress
        if progress.best is not None and result.average >= progress.best:
            return progress._replace(stale=progress.stale + 1)
        if self.run.world.rank == 0:
            self.run.bilm.save(self.run.config.out / "best")
        return progress._replace(best=result.average, best_step=progress.step, stale=0)


def spread(corpus: Corpus, n_tokens: int) -> Iterator[list[str]]:
    """Sentences of about `n_tokens` tokens in all, as far apart as can be: each source has its share."""
    share = min(1.0, n_tokens / corpus.n_tokens)
    for i in range(corpus.n_sentences):
        if math.floor(i * share) > math.floor((i - 1) * share):
            yield corpus.sentence(i)


class Meter:
    """All ranks see the same numbers, so that they decide alike: rank 0's clock, the mean of their losses."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.first_step, self.first_second = run.progress.step, run.progress.seconds
        self.seconds = run.progress.seconds  # of training, over all pieces of the run
        self.stop_asked = False  # by a signal to any of the ranks
        self._start = time.perf_counter()
        self._began = self._start  # the step
        self._forget()

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self) -> None:
        self._steps += 1
        self._work += time.perf_counter() - self._began

    def add(self, output: ObjectiveOutput, *, stop_asked: bool) -> float:
        """Count the losses of a step; return their mean over the directions."""
        world = self.run.world
        clock = self.first_second + time.perf_counter() - self._start if world.rank == 0 else 0.0
        forward, backward = (
            0.0 if (loss := getattr(output, direction)) is None else float(loss)
            for direction in ("forward", "backward")
        )
        asked, self.seconds, forward, backward = world.total([float(stop_asked), clock, forward, backward])
        self.stop_asked = asked > 0
        self._forward += forward / world.size
        self._backward += backward / world.size
        return (forward + backward) / world.size / len(self.run.bilm.config.directions)

    def report(self, step: int, *, lr: float, gradient_norm: float, heldout: Result | None = None) -> Report:
        """The means since the report before."""
        run, directions = self.run, self.run.bilm.config.directions
        forward, backward = self._forward / self._steps, self._backward / self._steps
        report = Report(
            step=step,
            n_steps=run.n_steps,
            tokens=step * run.tokens_per_step,
            seconds=self.seconds,
            tokens_per_second=self._steps * run.tokens_per_step / self._work,
            loss=(forward + backward) / len(directions),
            forward=perplexity_of(forward) if "forward" in directions else None,
            backward=perplexity_of(backward) if "backward" in directions else None,
            lr=lr,
            gradient_norm=gradient_norm,
            remaining=self._remaining(step),
            heldout_forward=heldout and heldout.forward,
            heldout_backward=heldout and heldout.backward,
            heldout=heldout and heldout.average,
        )
        self._forget()
        return report

    def _remaining(self, step: int) -> float:
        if self.run.config.hours is not None:
            return max(0.0, self.run.config.hours * 3600.0 - self.seconds)
        assert self.run.n_steps is not None
        pace = (self.seconds - self.first_second) / (step - self.first_step)
        return pace * (self.run.n_steps - step)

    def _forget(self) -> None:
        self._steps, self._work, self._forward, self._backward = 0, 0.0, 0.0, 0.0


def pretrain(config: PretrainConfig, *, resume: bool = False, overwrite: bool = False) -> Report | None:
    """Train to the end, logging on the way; the last report, or None where nothing was left to do."""
    report = None
    with joined(config.device) as world:
        for report in train(open_run(config, world, resume=resume, overwrite=overwrite)):
            if world.rank == 0:
                log.info("%s", report.line())
    return report


def train(run: Run, stop: Stop | None = None) -> Iterator[Report]:
    """Take the steps that are left, with a report every `log_every` steps and at every evaluation.

    Ends after the last step, when the patience is over, or after the step in which `stop` was asked for:
    always with a checkpoint and a report.
    """
    if run.is_over(run.progress):
        return
    config, optimizer, stop = run.config, run.optimizer, stop or Stop()
    evaluate_every = Every.parse("evaluate_every", config.evaluate_every)
    checkpoint_every = Every.parse("checkpoint_every", config.checkpoint_every)
    heldout, meter, progress = HeldOut(run), Meter(run), run.progress
    evaluated = saved = progress.seconds

    with Metrics(config.out, progress.step, tensorboard=config.tensorboard, writes=run.world.rank == 0) as metrics:
        for step in run.steps:
            meter.begin()
            lr = run.learning_rate(step, meter.seconds)
            set_learning_rate(optimizer, lr)

            batch, negatives = run.next_batch(), run.draw(step)
            output = run.objective(batch, run.state_before(batch), negatives)
            (output.loss * config.loss_scale).backward()
            run.state = output.state
            run.average_softmax(batch, negatives)

            norm = clip_gradients(run.parameters, config.clip)
            loss = meter.add(output, stop_asked=stop.asked)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise TrainingError(_explain_not_finite(run, step, loss, norm))
            optimizer.step()
            optimizer.zero_grad()
            meter.end()

            progress, result = progress._replace(step=step, seconds=meter.seconds), None
            if run.is_over(progress) or evaluate_every.due(step, meter.seconds, evaluated):
                result = heldout.measure()
                progress = heldout.keep_best(result, progress)
                evaluated = meter.seconds
            last = meter.stop_asked or run.is_over(progress)
            report = None
            if last or result or step % config.log_every == 0:
                report = meter.report(step, lr=lr, gradient_norm=norm, heldout=result)
                metrics.write(report)  # before the checkpoint: what is recorded after one is dropped by a resume
            if last or checkpoint_every.due(step, meter.seconds, saved):
                run.save(progress)
                saved = meter.seconds
            if report:
                yield report
            if last:
                break
    if run.world.rank == 0 and config.curve:
        draw_curve(config.out)


def _explain_not_finite(run: Run, step: int, loss: float, norm: float) -> str:
    saved = files.checkpoints(run.config.out)
    kept = f"The last good checkpoint is {saved[-1]}." if saved else "There was no checkpoint yet."
    return (
        f"step {step}: expected finite numbers, got a loss of {loss} and a gradient norm of {norm}; this step "
        f"was not taken. {kept} Try a lower optim.lr (now {run.config.optim.peak:g}), a smaller clip (now "
        f"{run.config.clip:g}) or a longer optim.warmup (now {run.config.optim.warmup:g}), in a new run with "
        "another out; init = the checkpoint begins with its weights."
    )


class Plan(NamedTuple):
    n_parameters: int
    text_tokens: int  # of the training part, without marks
    windows_per_epoch: int
    tokens_per_step: int
    n_steps: int  # for a run of hours, by the pace that was measured
    tokens: int  # read over the whole run
    epochs: float
    tokens_per_second: float
    memory: float  # bytes: the largest that this process had
    checkpoint: float  # bytes of one
    seconds: float  # to the end, without evaluations

    def lines(self) -> list[str]:
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


def make_plan(config: PretrainConfig, world: World, *, seconds: float = 5.0, most: int = 50) -> Plan:
    """Train for about `seconds` and at most `most` steps in a folder that is then removed."""
    speeds = []
    with tempfile.TemporaryDirectory(prefix="torchelmo-plan-") as folder:
        never = sys.maxsize
        probe = replace(
            config, out=Path(folder), log_every=1, checkpoint_every=never, evaluate_every=0, tensorboard=False
        )
        run = Run(probe, world)
        for report in train(run):
            speeds.append(report.tokens_per_second)
            # By the clock that all ranks agree upon: one that went on alone would wait for the others for ever.
            if len(speeds) >= most or (len(speeds) > 2 and report.seconds > seconds):
                break
    speed = median(speeds[1:] or speeds)  # the first step prepares memory and threads
    n_steps = run.n_steps or max(1, round((config.hours or 0.0) * 3600.0 * speed / run.tokens_per_step))
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
        tokens_per_step=run.tokens_per_step,
        n_steps=n_steps,
        tokens=n_steps * run.tokens_per_step,
        epochs=n_steps / run.stream.windows_per_epoch,
        tokens_per_second=speed,
        memory=peak_memory(world.device),
        checkpoint=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        seconds=n_steps * run.tokens_per_step / speed,
    )


def peak_memory(device: torch.device) -> float:
    """Bytes: the most that this process has held so far, on the device that it computes on."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return float("nan")
    import resource  # not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
