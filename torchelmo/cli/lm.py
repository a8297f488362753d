"""torchelmo perplexity, surprisal and substitutes: what a language model expects of a text."""

import json
import logging
import shlex
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from torchelmo.cli.exit import echo, stopped
from torchelmo.errors import WrongCallError
from torchelmo.files import require_file


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
    from torchelmo.lm.preparation import describe
    from torchelmo.lm.preparation import prepare as run
    from torchelmo.text.vocabulary import Vocabulary

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
    from torchelmo.lm.config import PretrainConfig
    from torchelmo.lm.loop import make_plan
    from torchelmo.lm.loop import pretrain as run
    from torchelmo.runs.distributed import distributed_context
    from torchelmo.runs.resume import Stop
    from torchelmo.runtime import keep_freed_memory

    check_resume(resume, overwrite)
    found = load_config(PretrainConfig, config, settings or [])
    keep_freed_memory()  # the process is ours: the library itself leaves such settings alone
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
                words = ["pretrain", str(config), *(part for item in settings or [] for part in ("--set", item))]
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
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted call.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model that out holds.")] = False,
) -> None:
    """Train a model further, as a language model, on the text of a task or a domain.

    Its vocabulary stays. A model without a softmax, such as the official ones, is given one first, with the rest
    frozen. It ends when held-out perplexity no longer falls, and the best model is kept.
    """
    from torchelmo.lm.finetune import fine_tune as run
    from torchelmo.runs.resume import Stop
    from torchelmo.runtime import keep_freed_memory

    check_resume(resume, overwrite)
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
            resume=resume,
            overwrite=overwrite,
            stop=stop,
        )
    for name, result in (("before", tuned.before), ("after", tuned.after)):
        if result is not None:
            ways = " / ".join(f"{value:.2f}" for value in (result.forward, result.backward) if value is not None)
            echo(f"held-out perplexity {name}: {result.average:.2f} ({ways})")
    if not tuned.finished:
        echo("Stopped; checkpoint saved. Resume with the same call and --resume.")
        raise stopped(stop.signal)
    echo(f"{out}: the model after step {tuned.step}")


def check_resume(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise WrongCallError(
            "Expected --resume, which goes on with the run in out, or --overwrite, which replaces it; got both."
        )


if TYPE_CHECKING:
    from torchelmo.lm.predict import Perplexity
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Model folder with a softmax, or name.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="A file (also .gz, .bz2, .xz), or -.")]
Lang = Annotated[str, typer.Option(help="Split by spaCy's rules for this language (en, de, xx, …).")]
Pretokenized = Annotated[
    bool, typer.Option("--pretokenized", help="A line is a sentence, with spaces between its tokens.")
]
State = Annotated[
    Literal["reset", "carry"],
    typer.Option(help="reset: every sentence starts from zero; carry: one running text, as in training."),
]
BatchTokens = Annotated[int, typer.Option(min=1, help="Tokens at once; fewer need less memory.")]


def perplexity(
    model: Model,
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT…", help="Files, globs, -, or a prepared folder for its held-out part."),
    ],
    lang: Lang = "en",
    pretokenized: Pretokenized = False,
    state: State = "reset",
    batch_tokens: BatchTokens = 2048,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Measure how well a language model expects a text: exactly, forward, backward, and their mean.

    Targets are all tokens and the mark that closes a sentence; a word outside of the vocabulary counts as <UNK>,
    so perplexities can be compared only where vocabulary and text are the same.
    """
    from torchelmo import load
    from torchelmo.lm.predict import combine
    from torchelmo.lm.predict import perplexity as measure
    from torchelmo.lm.preparation import expand
    from torchelmo.progress import progress

    files = expand(texts, folders=True)
    bilm = load(model)
    found = {}
    for file in files:
        with progress(f"perplexity of {file}", unit="tokens") as advance:
            sentences = _sentences(file, None if pretokenized else lang)
            found[file] = measure(bilm, sentences, state=state, batch_tokens=batch_tokens, progress=advance)
    total = combine(list(found.values()))
    if as_json:
        each = {file: one._asdict() for file, one in found.items()}
        echo(json.dumps({"model": model, "state": state, "files": each, "all": total._asdict()}, indent=2))
        return
    if len(found) > 1:
        found["all"] = total
    for file, one in found.items():
        echo(f"{file}: {_in_words(one)}")


def surprisal(
    model: Model,
    text: Text,
    lang: Lang = "en",
    pretokenized: Pretokenized = False,
    state: State = "reset",
    batch_tokens: BatchTokens = 2048,
) -> None:
    """Print −log2 p of every token, in each direction, as tab-separated values.

    Lines and the tokens of a line are counted from 0. Where in_vocabulary is 0, the bits are those of <UNK>.
    """
    from torchelmo import load
    from torchelmo.lm.predict import language_model
    from torchelmo.lm.predict import surprisal as measure

    _check(text)
    bilm = load(model)
    language_model(bilm)  # an error now, not below the head of the table
    places: deque[tuple[int, int]] = deque()

    def noted() -> Iterator[list[str]]:
        for line, position, sentence in _places(text, None if pretokenized else lang):
            places.append((line, position))
            yield sentence

    results = measure(bilm, noted(), state=state, batch_tokens=batch_tokens)
    echo("line\tposition\ttoken\tforward\tbackward\tin_vocabulary")
    for tokens, forward, backward, known in results:
        line, first = places.popleft()
        rows = []
        for i, token in enumerate(tokens):
            bits = "\t".join("" if x is None else f"{x[i]:.4f}" for x in (forward, backward))
            rows.append(f"{line}\t{first + i}\t{token}\t{bits}\t{int(known[i])}")
        echo("\n".join(rows))


def substitutes(
    model: Model,
    text: Text,
    top: Annotated[int, typer.Option(min=1, help="How many words for each place.")] = 10,
    word: Annotated[
        list[str] | None, typer.Option(help="Only at places where this word stands; may be given again.")
    ] = None,
    lang: Lang = "en",
    pretokenized: Pretokenized = False,
) -> None:
    """Print the words that both directions expect at each place, as tab-separated values.

    The probability is the product of both directions over all words of the vocabulary, made to sum to 1. Lines
    and the tokens of a line are counted from 0.
    """
    from torchelmo import load
    from torchelmo.lm.predict import language_model
    from torchelmo.lm.predict import substitutes as expect

    _check(text)
    bilm = load(model)
    language_model(bilm)  # an error now, not below the head of the table
    echo("line\tposition\ttoken\trank\tsubstitute\tprobability")
    for line, first, sentence in _places(text, None if pretokenized else lang):
        positions = [i for i, token in enumerate(sentence) if not word or token in word]
        for i, found in zip(positions, expect(bilm, sentence, positions, top=top)):
            for rank, (other, p) in enumerate(found, 1):
                echo(f"{line}\t{first + i}\t{sentence[i]}\t{rank}\t{other}\t{p:.6g}")


def _check(text: str) -> None:
    """Before a model is loaded, which takes longer."""
    if text != "-":
        require_file(text, "a text file")


def _sentences(file: str, lang: str | None) -> Iterator[list[str]]:
    if Path(file).is_dir():
        from torchelmo.lm.corpus import Corpus

        return Corpus(file, "heldout").sentences()
    from torchelmo.text.reading import read_sentences

    return read_sentences(file, lang)


def _places(file: str, lang: str | None) -> Iterator[tuple[int, int, list[str]]]:
    """Line, place of the first token in it, and tokens of every sentence; `lang` None is for split text."""
    from torchelmo.text.reading import read_paragraphs

    for number, sentences in enumerate(read_paragraphs(file, lang)):
        position = 0
        for sentence in sentences:
            yield number, position, sentence
            position += len(sentence)


def _in_words(found: "Perplexity") -> str:
    values: dict[str, Any] = {"forward": found.forward, "backward": found.backward, "average": found.average}
    each = ", ".join(f"{name} {value:.2f}" for name, value in values.items() if value is not None)
    return f"perplexity {each}; {found.n_tokens:,} tokens, {found.oov_rate:.2%} outside of the vocabulary"
