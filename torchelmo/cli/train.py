"""`torchelmo pretrain` and `torchelmo fine-tune`."""

import contextlib
import logging
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as optim.lr=0.1. May be repeated."),
]

log = logging.getLogger(__name__)


def pretrain(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The settings; see docs/training.md.")],
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in out, exactly, if there is one.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that out holds.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Try a few windows, tell how long the run will take, and exit.")
    ] = False,
) -> None:
    """Train a biLM on text that `torchelmo prepare` wrote."""
    from torchelmo.config import load_config
    from torchelmo.progress import progress
    from torchelmo.train.config import PretrainConfig
    from torchelmo.train.distributed import joined
    from torchelmo.train.loop import train
    from torchelmo.train.plan import make_plan
    from torchelmo.train.run import open_run
    from torchelmo.train.signals import Stop

    settings = load_config(PretrainConfig, config, overrides or [])
    with joined(settings.device) as world, Stop().on_signals() as stop:
        speaks = world.rank == 0
        if not speaks:
            logging.getLogger("torchelmo").setLevel(logging.WARNING)
        if plan:
            lines = make_plan(settings, world).lines()
            if speaks:
                print("\n".join(lines))
            return
        run = open_run(settings, world, resume=resume, overwrite=overwrite)
        report, done = None, run.progress.step
        with contextlib.ExitStack() as stack:
            advance = None
            if speaks and sys.stderr.isatty():
                bar = progress("pretrain", run.n_steps, done=done, unit="steps")
                advance = stack.enter_context(bar)
            for report in train(run, stop):
                log.info("%s", report.line())
                if advance is not None:
                    advance(report.step - done)
                    done = report.step
        if not speaks:
            return
        if report is None:
            print(f"Nothing left to do: {settings.out} is at step {run.progress.step}. Raise steps, epochs or hours.")
        elif not run.is_over(run.progress):
            again = ["torchelmo", "pretrain", str(config)]
            again += [part for item in overrides or [] for part in ("--set", item)]
            print(f"Stopped after step {report.step}; all is saved. Go on with: {shlex.join([*again, '--resume'])}")
        else:
            best = run.progress.best
            found = f", best held-out perplexity {best:.2f} at step {run.progress.best_step}" if best else ""
            print(f"Finished after step {report.step}{found}. The model is {settings.out}")
