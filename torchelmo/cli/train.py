"""torchelmo pretrain and torchelmo fine-tune."""

import contextlib
import logging
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from torchelmo.cli.ending import WrongCallError, echo, stopped
from torchelmo.cli.prepare import heldout_part

log = logging.getLogger(__name__)


def pretrain(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The settings; see docs/training.md.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting (optim.lr=0.1); may be given again."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on exactly where the last checkpoint in out was, if there is one.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that out holds.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Try a few windows, say what the run will take, and end.")
    ] = False,
) -> None:
    """Train a biLM on text that `torchelmo prepare` wrote.

    Ctrl-C and SIGTERM end a run after its step, with all saved. On many processes or machines: torchrun
    --nproc-per-node N -m torchelmo pretrain CONFIG.toml.
    """
    from torchelmo.config import load_config
    from torchelmo.memory import keep_freed_memory
    from torchelmo.progress import progress
    from torchelmo.train.config import PretrainConfig
    from torchelmo.train.distributed import joined
    from torchelmo.train.loop import train
    from torchelmo.train.plan import make_plan
    from torchelmo.train.run import open_run
    from torchelmo.train.signals import Stop

    check_resume(resume, overwrite)
    found = load_config(PretrainConfig, config, settings or [])
    keep_freed_memory()  # the process is ours: the library itself leaves such settings alone
    with joined(found.device) as world, Stop().on_signals() as stop:
        if world.rank > 0:  # rank 0 speaks for all
            logging.getLogger("torchelmo").setLevel(logging.WARNING)
        if plan:
            lines = make_plan(found, world).lines()
            if world.rank == 0:
                echo("\n".join(lines))
            return
        run = open_run(found, world, resume=resume, overwrite=overwrite)
        done = run.progress.step
        with contextlib.ExitStack() as stack:
            advance = None
            if world.rank == 0 and sys.stderr.isatty():
                advance = stack.enter_context(progress("pretrain", run.n_steps, done=done, unit="steps"))
            for report in train(run, stop):
                log.info("%s", report.line())
                if advance is not None:
                    advance(report.step - done)
                done = report.step
        if not run.is_over(run.progress):
            if world.rank == 0:
                words = ["pretrain", str(config), *(part for item in settings or [] for part in ("--set", item))]
                call = shlex.join(["torchelmo", *words, "--resume"])
                again = call if world.size == 1 else "the same call and --resume"
                echo(f"Stopped after step {done}; all is saved. Go on with: {again}")
            raise stopped(stop.signal)
        if world.rank == 0:
            best = run.progress.best
            gained = f", best held-out perplexity {best:.2f} after step {run.progress.best_step}" if best else ""
            echo(f"{found.out}: finished after step {done}{gained}. A longer run goes on with --resume.")


def fine_tune(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model to begin with.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT…", help="Files (also .gz, .bz2, .xz), globs, or -.")],
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
    heldout: Annotated[
        list[str] | None,
        typer.Option(help="Share of the lines to hold out, or a file; may be given again. Else 0.05."),
    ] = None,
    vocab_size: Annotated[int, typer.Option(min=4, help="Words of a new softmax, for a model that has none.")] = 50_000,
    lang: Annotated[str, typer.Option(help="Split by spaCy's rules for this language (en, de, xx, …).")] = "en",
    pretokenized: Annotated[
        bool, typer.Option("--pretokenized", help="A line is a sentence, with spaces between its tokens.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting (epochs=1); may be given again."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model that out holds.")] = False,
) -> None:
    """Train a model further, as a language model, on the text of a task or a domain.

    Its vocabulary stays. A model without a softmax, such as the official ones, is given one first, with the rest
    frozen. It ends when held-out perplexity no longer falls, and the best model is kept.
    """
    from torchelmo.memory import keep_freed_memory
    from torchelmo.train.finetune import fine_tune as run
    from torchelmo.train.signals import Stop

    keep_freed_memory()
    with Stop().on_signals() as stop:
        tuned = run(
            model,
            texts,
            out,
            heldout=heldout_part(heldout, default=0.05),
            vocab_size=vocab_size,
            lang=lang,
            pretokenized=pretokenized,
            settings=settings or [],
            overwrite=overwrite,
            stop=stop,
        )
    for name, result in (("before", tuned.before), ("after", tuned.after)):
        ways = " / ".join(f"{value:.2f}" for value in (result.forward, result.backward) if value is not None)
        echo(f"held-out perplexity {name}: {result.average:.2f} ({ways})")
    echo(f"{out}: the model after step {tuned.step}{', stopped early' if tuned.stopped else ''}")
    if tuned.stopped:
        raise stopped(stop.signal)


def check_resume(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise WrongCallError(
            "Expected --resume, which goes on with the run in out, or --overwrite, which replaces it; got both."
        )
