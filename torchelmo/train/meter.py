"""Time and losses of a run, agreed upon by all ranks, and the reports made of them."""

import time

from torchelmo.train.heldout import Result
from torchelmo.train.metrics import Report, perplexity_of
from torchelmo.train.objective import ObjectiveOutput
from torchelmo.train.run import Run


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

    def add(self, outputs: list[ObjectiveOutput], *, stop_asked: bool) -> float:
        """Count the losses of the windows of a step; returns their mean."""
        world, n = self.run.world, len(outputs)
        clock = self.first_second + time.perf_counter() - self._start if world.rank == 0 else 0.0
        forward, backward = (
            sum(float(loss) for output in outputs if (loss := getattr(output, direction)) is not None) / n
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
