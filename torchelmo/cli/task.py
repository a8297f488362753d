"""torchelmo task: train, evaluate and use the task models."""

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from torchelmo.cli.exit import echo, stopped
from torchelmo.cli.options import (
    AsJson,
    Device,
    Overwrite,
    Pretokenized,
    Resume,
    Settings,
    Threads,
    check_resume,
    check_text,
    use_device,
)
from torchelmo.errors import InputError, WrongCallError
from torchelmo.files import source_name
from torchelmo.progress import count

Place = Literal["none", "input", "output", "both"]
Output = Literal["text", "json", "conll"]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that task train wrote.")]

# Settings that change nothing if ELMo is not used, and their flags.
_ELMO_FLAGS = {
    "elmo.model": "--model",
    "elmo.layers": "--layers",
    "elmo.l2": "--lambda",
    "elmo.layer_norm": "--layer-norm",
    "elmo.dropout": "--elmo-dropout",
    "elmo.unfreeze": "--unfreeze",
}


def train(
    name: Annotated[str, typer.Argument(metavar="NAME", help="ner, pos, srl, sentiment, nli, qa or coref.")],
    train_file: Annotated[Path | None, typer.Option("--train", help="Labeled data to train on.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Labeled data that decides which epoch is best.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write, with everything predict needs.")] = None,
    config: Annotated[str | None, typer.Option(help="A TOML file, or a recipe by name, such as ner-small.")] = None,
    settings: Settings = None,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of runs, with seeds 1, 2, …; each in OUT/seed-N.")
    ] = 1,
    vectors: Annotated[Path | None, typer.Option(help="Static word vectors: GloVe or word2vec text.")] = None,
    elmo: Annotated[
        Place | None, typer.Option(help="Where ELMo enters the task model. Without it, ELMo is not used.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The biLM for ELMo: a model folder or a name. Default: english-small.")
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="all: learn a mix of the layers; top, average or an index: a fixed choice.")
    ] = None,
    l2: Annotated[float | None, typer.Option("--lambda", help="λ of the penalty on the mix weights.")] = None,
    layer_norm: Annotated[bool, typer.Option("--layer-norm", help="Normalize each layer before the mix.")] = False,
    elmo_dropout: Annotated[float | None, typer.Option(help="Dropout on the mixes.")] = None,
    unfreeze: Annotated[bool, typer.Option("--unfreeze", help="Train the biLM with the task; no cache.")] = False,
    head: Annotated[str | None, typer.Option(help="pos: bilstm, or linear as in pos-probe.toml.")] = None,
    min_phrase: Annotated[int | None, typer.Option(help="sentiment: shortest phrase of a tree to train on.")] = None,
    device: Annotated[str | None, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:1, …")] = None,
    threads: Threads = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a task model, with or without ELMo, and keep the best epoch on dev.

    Settings come from the TOML file, then from the flags, then from --set. A frozen biLM runs once over every sentence,
    and its layers are cached.
    """
    from torchelmo.config import build_config, find_recipe, override, read_toml
    from torchelmo.runs.resume import Stop
    from torchelmo.runtime import keep_freed_memory
    from torchelmo.tasks.config import TaskConfig
    from torchelmo.tasks.runner import train_seeds
    from torchelmo.tasks.task import find_task

    check_resume(resume, overwrite)
    path = None if config is None else find_recipe("tasks", config)
    given: dict[str, Any] = copy.deepcopy(dict(find_task(name).defaults)) if path is None else read_toml(path)
    if given.setdefault("task", name) != name:
        raise WrongCallError(f"{path}: is a configuration for {given['task']!r}, not for {name!r}.")
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
        "device": device,
        "threads": threads,
    }
    for key, value in flags.items():
        if value is not None:
            _set(given, key, value)
    if vectors is not None:
        given["words"].pop("dim", None)  # the file determines it
    given = override(given, settings or [], TaskConfig)
    missing = [f"--{key}" for key in ("train", "dev", "out") if key not in given]
    if missing:
        raise WrongCallError(f"Expected {', '.join(missing)}: on the command line or in the configuration file.")
    found = build_config(TaskConfig, given, where=str(path or "task train"))
    if found.elmo.place == "none":
        _refuse_elmo_flags(flags)
    keep_freed_memory()
    with Stop().on_signals() as stop:
        outcome = train_seeds(found, seeds, resume=resume, overwrite=overwrite, stop=stop)
    if outcome.summary is None:
        if outcome.saved:
            echo(f"Stopped. Everything is saved in {found.out}. To continue, repeat the command with --resume.")
        else:
            echo("Stopped before the first step. Nothing was saved. To start again, repeat the command.")
        raise stopped(stop.signal)
    for result in outcome.summary.results:
        echo(result.line())
        for mix in result.mixes:
            weights = " ".join(f"{weight:.3f}" for weight in mix.weights)
            echo(f"  mix at the {mix.place}: weights {weights}, gamma {mix.gamma:.3f}")
    if len(outcome.summary.results) > 1:
        echo(outcome.summary.line())


def evaluate(
    folder: Folder,
    data: Annotated[Path, typer.Argument(metavar="FILE", help="Labeled data.")],
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Score a trained task model on labeled data, as the official script of the task does."""
    from torchelmo.tasks import load

    scored = load(folder, device=use_device(device, threads)).evaluate(data)
    if as_json:
        labels = {label: counts.to_dict() for label, counts in scored.labels.items()}
        about = {"examples": scored.n_examples, "scores": scored.scores, "labels": labels, "report": scored.report}
        echo(json.dumps(about, indent=2, ensure_ascii=False))
        return
    if scored.report:
        echo(scored.report)
    scores = ", ".join(f"{name} {value:.2f}" for name, value in scored.scores.items())
    echo(f"{data}: {count(scored.n_examples, 'examples')}: {scores}")


def predict(
    folder: Folder,
    text: Annotated[str, typer.Argument(metavar="INPUT", help="Text (also .gz, .bz2, .xz), or - for standard input.")],
    lang: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Language of the text: en, de, xx, … Default: as in training."),
    ] = None,
    pretokenized: Pretokenized = False,
    question: Annotated[
        list[str] | None, typer.Option("--question", help="qa: ask this about the text; can be repeated.")
    ] = None,
    predicate: Annotated[
        list[str] | None,
        typer.Option("--predicate", help="srl: label the arguments of this word; can be repeated."),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    output: Annotated[
        Output | None, typer.Option("--format", help="text (default), json lines, or the columns of conll.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Apply a trained task model to text, and print readable predictions, JSON lines or CoNLL columns.

    The columns are those of the training data: token and tag for ner, CoNLL-U for pos, CoNLL-2005 for srl, CoNLL-2012
    for coref. The other tasks have none.
    """
    from torchelmo.progress import progress
    from torchelmo.tasks import Source, load

    if pretokenized and lang is not None:
        raise WrongCallError("Expected --lang, for raw text, or --pretokenized; got both.")
    if as_json and output not in (None, "json"):
        raise WrongCallError(f"Expected --json or --format {output}; got both.")
    output = "json" if as_json else output
    check_text(text)
    trained = load(folder, device=use_device(device, threads))
    if question and not trained.task.answers_questions:
        raise WrongCallError(f"--question is only valid for qa; {folder} is a {trained.task.name} model.")
    if predicate and not trained.task.labels_predicates:
        raise WrongCallError(f"--predicate is only valid for srl; {folder} is a {trained.task.name} model.")
    source = Source(text, None if pretokenized else lang or "auto", question or [], predicate or [])
    task, n_predictions = trained.task, 0
    with progress("predict", unit="examples") as advance:

        def predictions() -> Iterator[tuple[Any, Any]]:
            nonlocal n_predictions
            for pair in trained.predict_source(source):
                yield pair
                n_predictions += 1
                advance(1)

        if output == "conll":
            blocks = task.conll(predictions(), trained.data_options)
        elif output == "json":
            blocks = (json.dumps(task.record(*pair), ensure_ascii=False) for pair in predictions())
        else:
            blocks = (task.show(*pair) for pair in predictions())
        for block in blocks:
            echo(block)
    if not n_predictions:
        raise InputError(f"{source_name(text)}: expected text, found none.")


def table(
    experiments: Annotated[Path, typer.Argument(metavar="TABLE.toml", help="Rows and columns of the table.")],
    out: Annotated[Path, typer.Option(help="The folder for the runs, table.md, table.json and table.png.")],
    settings: Settings = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Run only this column; can be repeated. Other columns are shown if they were run before."),
    ] = None,
    row: Annotated[list[str] | None, typer.Option(help="Run only this row, as for --column; can be repeated.")] = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at the same time; they share the cores.")] = 1,
    cache: Annotated[
        Path | None, typer.Option(help="The folder for biLM layers, which all runs share. Default: OUT/cache.")
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="The folder for biLMs that columns train. Default: OUT/models.")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="A folder for runs that several tables share: equal settings are trained once."),
    ] = None,
) -> None:
    """Run a table of experiments, each with several seeds, and write it as Markdown, JSON and a plot.

    Finished runs are kept, and an interrupted table is continued.
    """
    from torchelmo.tasks.table.run import run_table

    run_table(
        experiments,
        out,
        settings=settings or [],
        jobs=jobs,
        columns=column or [],
        rows=row or [],
        cache=cache,
        models=models,
        runs=runs,
    )
    echo((out / "table.md").read_text(encoding="utf-8"))


def _set(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set a key such as "elmo.model" in nested dicts."""
    *tables, last = key.split(".")
    for table in tables:
        settings = settings.setdefault(table, {})
        if not isinstance(settings, dict):
            raise WrongCallError(f"[{table}]: expected a table of keys in the configuration file, found a value.")
    settings[last] = str(value) if isinstance(value, Path) else value


def _refuse_elmo_flags(flags: Mapping[str, Any]) -> None:
    """Refuse flags that would change nothing, because the run would not be the intended one."""
    given = [flag for key, flag in _ELMO_FLAGS.items() if flags[key] is not None]
    if given:
        raise WrongCallError(f"{given[0]}: has no effect without ELMo. Add --elmo input, output or both.")
