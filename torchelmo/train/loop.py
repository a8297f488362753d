"""The training loop: one window after the other, the state carried on, all that a step does in sight."""

import logging
import math
from collections.abc import Iterator

from torchelmo.errors import TrainingError
from torchelmo.train import checkpoint as files
from torchelmo.train.config import Every, PretrainConfig
from torchelmo.train.distributed import joined
from torchelmo.train.heldout import HeldOut
from torchelmo.train.meter import Meter
from torchelmo.train.metrics import Metrics, Report, draw_curve
from torchelmo.train.optim import clip_gradients, set_learning_rate
from torchelmo.train.run import Run, open_run
from torchelmo.train.signals import Stop

log = logging.getLogger(__name__)


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

    with Metrics(run.config, progress.step, writes=run.world.rank == 0) as metrics:
        for step in run.steps:
            meter.begin()
            lr = run.learning_rate(step, meter.seconds)
            set_learning_rate(optimizer, lr)

            outputs, batches, drawn = [], [], []
            for i in range(config.accumulate):
                batch, negatives = run.next_batch(), run.draw(step, i)
                with run.averaging(last=i == config.accumulate - 1):
                    output = run.objective(batch, run.state_before(batch), negatives)
                    (output.loss * (config.loss_scale / config.accumulate)).backward()
                run.state = output.state
                outputs.append(output)
                batches.append(batch)
                drawn.append(negatives)
            run.average_softmax(batches, drawn)

            norm = clip_gradients(run.parameters, config.clip)
            loss = meter.add(outputs, stop_asked=stop.asked)
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
