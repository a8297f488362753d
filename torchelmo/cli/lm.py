"""The commands that train language models: prepare, pretrain and fine-tune."""

import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from torchelmo.cli.exit import echo, log, stopped
from torchelmo.cli.options import (
    Lang,
    Model,
    ModelAndTexts,
    Overwrite,
    Pretokenized,
    Resume,
    Settings,
    check_resume,
    split_model_and_texts,
)
from torchelmo.errors import WrongCallError
from torchelmo.progress import count

if TYPE_CHECKING:
    pass

Texts = Annotated[
    list[str],
    typer.Argument(metavar="TEXT", help="Text files (also .gz, .bz2, .xz), globs, or -. A line is a paragraph."),
]


def prepare(
    texts: Texts,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    vocab_size: Annotated[
        int, typer.Option(min=4, metavar="N", help="Words of the softmax: the N most frequent, with <S>, </S>, <UNK>.")
    ] = 50_000,
    vocab: Annotated[
        Path | None, typer.Option(help="Use the words of this vocab.txt instead, as a run with `init` requires.")
    ] = None,
    heldout: Annotated[
        list[str] | None,
        typer.Option(help="Share of the lines to hold out, or a file; can be repeated. Default: 0.01."),
    ] = None,
    lang: Annotated[
        str,
        typer.Option(metavar="CODE", help="Language of the text, whose rules split it into tokens: en, de, xx, …"),
    ] = "en",
    pretokenized: Pretokenized = False,
    format_: Annotated[
        Literal["text", "fasta"],
        typer.Option("--format", help="fasta: proteins; each is a sentence, and each of its residues a token."),
    ] = "text",
    max_characters: Annotated[
        int, typer.Option(min=3, metavar="N", help="UTF-8 bytes of a word that the model reads, plus 2 marks.")
    ] = 50,
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Processes. Default: one per core.")] = None,
    seed: Annotated[int, typer.Option(help="Seed for the choice of held-out lines.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Turn text into memory-mapped arrays for `torchelmo pretrain`.

    Blank lines are ignored. The result depends only on the text and the settings, not on the number of processes. A
    run that is interrupted leaves nothing that looks finished.
    """
    from torchelmo.lm.preparation import describe
    from torchelmo.lm.preparation import prepare as run
    from torchelmo.text.vocabulary import Vocabulary

    log.info("prepare: %s for %s", count(len(texts), "inputs"), out)
    card = run(
        texts,
        out,
        vocab_size=vocab_size,
        vocabulary=None if vocab is None else Vocabulary.read(vocab),
        heldout=_heldout(heldout, default=0.01),
        lang=lang,
        pretokenized=pretokenized,
        format=format_,
        max_characters=max_characters,
        workers=workers,
        seed=seed,
        overwrite=overwrite,
    )
    for line in describe(card):
        echo(line)
    echo(f"{out}: ready for torchelmo pretrain")


def pretrain(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A TOML file, or a recipe by name: tiny, laptop, small, paper.")
    ],
    settings: Settings = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Time a few steps, print the estimated duration and memory, and exit.")
    ] = False,
) -> None:
    """Train a biLM on text that `torchelmo prepare` wrote.

    Ctrl-C and SIGTERM end a run after the current step, with a checkpoint. On several processes or machines: torchrun
    --nproc-per-node N -m torchelmo pretrain CONFIG.
    """
    from torchelmo.config import find_recipe, load_config
    from torchelmo.lm.config import PretrainConfig
    from torchelmo.lm.loop import make_plan
    from torchelmo.lm.loop import pretrain as run
    from torchelmo.runs.distributed import distributed_context
    from torchelmo.runs.resume import Stop
    from torchelmo.runtime import keep_freed_memory

    check_resume(resume, overwrite)
    found = load_config(PretrainConfig, find_recipe("pretrain", config), settings or [])
    keep_freed_memory()  # a setting of the whole process, which the library leaves alone
    with distributed_context(found.device) as world, Stop().on_signals() as stop:
        if world.rank > 0:  # only rank 0 logs
            logging.getLogger("torchelmo").setLevel(logging.WARNING)
        if plan:
            lines = make_plan(found, world).lines()
            if world.rank == 0:
                echo("\n".join(lines))
            return
        done = run(found, resume=resume, overwrite=overwrite, stop=stop)
        if not done.finished:
            if world.rank == 0:
                words = ["pretrain", config, *(part for item in settings or [] for part in ("--set", item))]
                call = shlex.join(["torchelmo", *words, "--resume"])
                again = call if world.size == 1 else "the same call and --resume"
                echo(f"Stopped after step {done.step}; checkpoint saved. Resume with: {again}")
            raise stopped(stop.signal)
        if world.rank == 0:
            best = done.best
            gained = f", best held-out perplexity {best.average:.2f} after step {done.best_step}" if best else ""
            echo(
                f"{found.out}: finished after step {done.step}{gained}. To train longer, increase steps, epochs or "
                "hours and use --resume."
            )


def fine_tune(
    arguments: ModelAndTexts,
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
    model: Model = None,
    heldout: Annotated[
        list[str] | None,
        typer.Option(help="Share of the lines to hold out, or a file; can be repeated. Default: 0.05."),
    ] = None,
    vocab_size: Annotated[
        int, typer.Option(min=4, metavar="N", help="Words of a new softmax, for a model without one.")
    ] = 50_000,
    lang: Lang = None,
    pretokenized: Pretokenized = False,
    settings: Settings = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Continue to train a model on the text of a task or a domain.

    Its vocabulary stays. A model without a softmax, such as the official ones, first gets one while the other weights
    are frozen. Training ends when held-out perplexity no longer falls, and the best model is kept.
    """
    from torchelmo.formats.load import DEFAULT_MODEL
    from torchelmo.lm.finetune import fine_tune as run
    from torchelmo.runs.resume import Stop
    from torchelmo.runtime import keep_freed_memory

    check_resume(resume, overwrite)
    model, texts = split_model_and_texts(arguments, model)
    keep_freed_memory()
    log.info("fine-tune: %s on %s", model or DEFAULT_MODEL, count(len(texts), "inputs"))
    with Stop().on_signals() as stop:
        tuned = run(
            model or DEFAULT_MODEL,
            texts,
            out,
            heldout=_heldout(heldout, default=0.05),
            vocab_size=vocab_size,
            lang=lang,
            pretokenized=pretokenized or None,
            settings=settings or [],
            resume=resume,
            overwrite=overwrite,
            stop=stop,
        )
    for name, result in (("before", tuned.before), ("after", tuned.after)):
        if result is not None:
            ways = " / ".join(f"{value:.2f}" for value in (result.forward, result.backward) if value is not None)
            echo(f"held-out perplexity {name}: {result.average:.2f}{ways and f' ({ways})'}")
    if not tuned.finished:
        echo("Stopped; checkpoint saved. Resume with the same call and --resume.")
        raise stopped(stop.signal)
    echo(f"{out}: the model after step {tuned.step}")


def _heldout(values: list[str] | None, *, default: float) -> float | list[str]:
    """Interpret --heldout: a number is a share, unless there is a file of that name."""
    if not values:
        return default
    shares = [share for value in values if not Path(value).exists() and (share := _number(value)) is not None]
    if not shares:
        return values
    if len(values) > 1:
        raise WrongCallError(f"--heldout {' '.join(values)}: expected one share, or files; not both.")
    return shares[0]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
