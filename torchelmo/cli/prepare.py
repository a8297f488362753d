"""torchelmo prepare: text → the folder that training reads."""

from pathlib import Path
from typing import Annotated

import typer

from torchelmo.cli.ending import WrongCallError, echo


def prepare(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT…", help="Files (also .gz, .bz2, .xz), globs, or -.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    vocab_size: Annotated[
        int, typer.Option(min=4, help="Words of the softmax: the most frequent, the three marks among them.")
    ] = 50_000,
    vocab: Annotated[
        Path | None, typer.Option(help="A vocab.txt whose words to take instead, as a run with init needs.")
    ] = None,
    heldout: Annotated[
        list[str] | None,
        typer.Option(help="Share of the lines to hold out, or a file; may be given again. Else 0.01."),
    ] = None,
    lang: Annotated[str, typer.Option(help="Split by spaCy's rules for this language (en, de, xx, …).")] = "en",
    pretokenized: Annotated[
        bool, typer.Option("--pretokenized", help="A line is a sentence, with spaces between its tokens.")
    ] = False,
    max_characters: Annotated[
        int, typer.Option(min=3, help="Bytes of a word that the model reads, with its two marks.")
    ] = 50,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else one for each core.")] = None,
    seed: Annotated[int, typer.Option(help="Chooses the lines that are held out.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace prepared text.")] = False,
) -> None:
    """Turn text into memory-mapped arrays for `torchelmo pretrain`.

    TEXT has one paragraph per line; blank lines do not matter. What comes out depends on the text and the
    settings alone, not on the number of processes. A run that ends early leaves nothing.
    """
    from torchelmo.text.vocabulary import Vocabulary
    from torchelmo.train.prepare import describe
    from torchelmo.train.prepare import prepare as run

    card = run(
        texts,
        out,
        vocab_size=vocab_size,
        vocabulary=None if vocab is None else Vocabulary.read(vocab),
        heldout=heldout_part(heldout, default=0.01),
        lang=lang,
        pretokenized=pretokenized,
        max_characters=max_characters,
        workers=workers,
        seed=seed,
        overwrite=overwrite,
    )
    for line in describe(card):
        echo(line)
    echo(f"{out}: ready for torchelmo pretrain")


def heldout_part(values: list[str] | None, *, default: float) -> float | list[str]:
    """What --heldout means: a number is a share, unless there is a file of that name."""
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
