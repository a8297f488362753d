"""torchelmo task: train, evaluate and use the task models."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from torchelmo.cli.exit import echo, stopped
from torchelmo.cli.options import check_resume
from torchelmo.errors import WrongCallError

Place = Literal["none", "input", "output", "both"]
_OF_ELMO = {
    "elmo.model": "--model",
    "elmo.layers": "--layers",
    "elmo.l2": "--lambda",
    "elmo.layer_norm": "--layer-norm",
    "elmo.dropout": "--elmo-dropout",
    "elmo.unfreeze": "--unfreeze",
}


def train(
    name: Annotated[str, typer.Argument(metavar="NAME", help="ner, pos, srl, sentiment, nli, qa or coref.")],
    train_file: Annotated[Path | None, typer.Option("--train", help="Labelled data to train on.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Labelled data that decides which epoch is best.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write: it holds all that predict needs.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file, such as those in experiments/tasks.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting (optim.lr=0.01); may be given again."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="So many runs with rising seeds; if several, each in OUT/seed-N.")
    ] = 1,
    vectors: Annotated[Path | None, typer.Option(help="Static word vectors: GloVe or word2vec text.")] = None,
    elmo: Annotated[Place | None, typer.Option(help="Where ELMo enters the task model.")] = None,
    model: Annotated[str | None, typer.Option(help="The biLM: a model folder or name; default: english-small.")] = None,
    layers: Annotated[
        str | None, typer.Option(help="all learns a mix of the layers; fixed: top, average, or one by its index.")
    ] = None,
    l2: Annotated[float | None, typer.Option("--lambda", help="λ of the penalty on the mix weights.")] = None,
    layer_norm: Annotated[bool, typer.Option("--layer-norm", help="Normalise each layer before the mix.")] = False,
    elmo_dropout: Annotated[float | None, typer.Option(help="Dropout on the mixes.")] = None,
    unfreeze: Annotated[bool, typer.Option("--unfreeze", help="Train the biLM with the task; no cache then.")] = False,
    head: Annotated[str | None, typer.Option(help="pos: bilstm, or linear, as in pos-probe.toml.")] = None,
    min_phrase: Annotated[int | None, typer.Option(help="sentiment: shortest phrase of a tree to train on.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that OUT holds.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that OUT holds.")] = False,
) -> None:
    """Train a task model, with or without ELMo; the best epoch on dev is kept.

    Settings come from the TOML file, then from the flags, then from --set. A frozen biLM runs once over every
    sentence; its layers are kept, so an epoch costs the task model only.
    """
    from torchelmo.config import build_config, override, read_toml
    from torchelmo.runs.resume import Stop
    from torchelmo.runtime import keep_freed_memory
    from torchelmo.tasks.config import TaskConfig
    from torchelmo.tasks.runner import train_seeds
    from torchelmo.tasks.task import find_task

    check_resume(resume, overwrite)
    given: dict[str, Any] = read_toml(config) if config else copy.deepcopy(dict(find_task(name).defaults))
    if given.setdefault("task", name) != name:
        raise WrongCallError(f"{config}: is a configuration for {given['task']!r}, not for {name!r}.")
    flags = {
        "train": train_file,
        "dev": dev,
        "out": out,
        "words.vectors": vectors,
        "elmo.place": elmo,
        "elmo.model": model,
        "elmo.layers": layers,
        "elmo.l2": l2,
        "elmo.layer_norm": layer_norm or None,
        "elmo.dropout": elmo_dropout,
        "elmo.unfreeze": unfreeze or None,
        "model.head": head,
        "data.min_phrase": min_phrase,
    }
    changes = [f"{key}={_toml(value)}" for key, value in flags.items() if value is not None]
    given = override(given, changes, TaskConfig)
    if vectors is not None:
        given["words"].pop("dim", None)  # that of the file
    given = override(given, settings or [], TaskConfig)
    missing = [f"--{key}" for key in ("train", "dev", "out") if key not in given]
    if missing:
        raise WrongCallError(f"Expected {', '.join(missing)}: on the command line or in the configuration file.")
    found = build_config(TaskConfig, given, where=str(config or "task train"))
    if found.elmo.place == "none":
        _refuse(flags, _OF_ELMO)
    keep_freed_memory()
    with Stop().on_signals() as stop:
        outcome = train_seeds(found, seeds, resume=resume, overwrite=overwrite, stop=stop)
    if outcome.summary is None:
        if outcome.saved:
            echo(f"Stopped. Everything is saved in {found.out}. To continue, repeat the command with --resume.")
        else:
            echo("Stopped before the first step. Nothing was saved. To start again, repeat the command.")
        raise stopped(stop.signal)
    summary = outcome.summary
    for result in summary.results:
        echo(result.line())
        for mix in result.mixes:
            shares = " ".join(f"{weight:.3f}" for weight in mix.weights)
            echo(f"  mix at the {mix.place}: weights {shares}, gamma {mix.gamma:.3f}")
    if len(summary.results) > 1:
        echo(summary.line())


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that task train wrote.")],
    data: Annotated[Path, typer.Argument(metavar="FILE", help="Labelled data.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Score a trained task model on labelled data, as the task's official script counts."""
    from torchelmo.tasks import load

    scored = load(folder).evaluate(data)
    if as_json:
        echo(json.dumps({"examples": scored.n_examples, "scores": scored.scores}, indent=2))
        return
    if scored.report:
        echo(scored.report)
    scores = ", ".join(f"{name} {value:.2f}" for name, value in scored.scores.items())
    echo(f"{data}: {scored.n_examples:,} examples: {scores}")


def predict(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that task train wrote.")],
    text: Annotated[str, typer.Argument(metavar="INPUT", help="Text (also .gz, .bz2, .xz), or - for standard input.")],
    lang: Annotated[str, typer.Option("--tokenize", help="Split by spaCy's rules for this language.")] = "en",
    pretokenized: Annotated[
        bool, typer.Option("--pretokenized", help="A line is a sentence, with spaces between its tokens.")
    ] = False,
    question: Annotated[
        list[str] | None, typer.Option("--question", help="qa: ask this of the text; may be given again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, for programs.")] = False,
) -> None:
    """Apply a trained task model to text, for people to read or as JSON lines."""
    from torchelmo.tasks import load
    from torchelmo.tasks.task import Source

    trained = load(folder)
    if question and not trained.task.answers_questions:
        raise WrongCallError(f"--question: {folder} is for {trained.task.name}, which answers none. Leave it out.")
    source = Source(text, None if pretokenized else lang, question or [])
    for example, prediction in trained.predict_source(source):
        if as_json:
            echo(json.dumps(trained.task.record(example, prediction), ensure_ascii=False))
        else:
            echo(trained.task.show(example, prediction))


def table(
    experiments: Annotated[Path, typer.Argument(metavar="TABLE.toml", help="Rows and columns of the table.")],
    out: Annotated[Path, typer.Option(help="The folder for the runs, table.md, table.json and table.png.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of every run; may be given again."),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Run this column only; may be given again. Others are shown if present.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time; the cores are shared out.")] = 1,
) -> None:
    """Run a table of experiments, each with several seeds, and write it as Markdown, JSON and a plot.

    What was run before is kept; a table that was interrupted goes on where it was.
    """
    from torchelmo.tasks.table import run_table

    run_table(experiments, out, settings=settings or [], jobs=jobs, columns=column or [])
    echo((out / "table.md").read_text(encoding="utf-8"))


def _refuse(flags: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Flags that would change nothing: the run would not be the one that was meant."""
    given = [flag for key, flag in names.items() if flags[key] is not None]
    if given:
        raise WrongCallError(
            f"{given[0]}: expected a place where ELMo enters the task model, found none. "
            "Add --elmo input, output or both."
        )


def _toml(value: Any) -> str:
    """JSON writes numbers, truth values and strings as TOML does."""
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
