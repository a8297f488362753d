"""`--plan`: a few windows are trained and thrown away, to tell what the run will take."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from torchelmo.train.config import PretrainConfig
from torchelmo.train.distributed import World
from torchelmo.train.loop import train
from torchelmo.train.metrics import duration
from torchelmo.train.run import Run


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
        epochs=n_steps * config.accumulate / run.stream.windows_per_epoch,
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
