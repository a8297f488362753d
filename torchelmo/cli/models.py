"""torchelmo info, convert and models: describe models, and convert their files."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from torchelmo.cli.exit import echo, escape_control
from torchelmo.cli.options import AsJson, Overwrite
from torchelmo.errors import shorten


def info(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A folder or archive with a model, or a name. Default: english-small."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Describe a model: shape, parameters, vocabulary, language, origin, and its card."""
    from torchelmo.formats.convert import describe

    about = describe(model)
    if as_json:
        echo(json.dumps(about, indent=2, ensure_ascii=False))
    else:
        _print_rows(_rows(about), title=about["model"])


def models(
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="List only models of this language, such as no.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models in the package, and published models: their language, format, address, size and license.

    A published model is loaded by its name after its files were put into the folder TORCHELMO_HOME, by default
    ~/.cache/torchelmo. Unknown facts are left out.
    """
    from torchelmo.formats.registry import published_models

    found = published_models(lang)
    if as_json:
        echo(json.dumps([dataclasses.asdict(model) for model in found], indent=2, ensure_ascii=False))
        return
    for model in found:
        lemmas = {None: "", True: "trained on lemmas", False: "trained on word forms"}[model.lemmas]
        size = f"{model.megabytes} MB" if model.megabytes else ""
        facts = [model.lang, model.format, size, model.license, lemmas, model.note]
        echo(f"{model.name}: {', '.join(fact for fact in facts if fact)}")
        for address in model.addresses:
            echo(f"    {address}")
    if not found:
        echo(f"No model is listed for the language {escape_control(str(lang))}.")


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The model: anything that info accepts.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The folder to write.")],
    to: Annotated[
        Literal["official", "folder"] | None,
        typer.Option(help="The form to write. Default: the one that SOURCE does not have."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16", "int8"],
        typer.Option(
            help="Type of the numbers in the file; float16 and int8 only for model folders. int8: LSTMs in int8, the "
            "encoder in float16."
        ),
    ] = "float32",
    overwrite: Overwrite = False,
) -> None:
    """Convert a published model to a model folder, or a model folder to official files.

    SOURCE may be official files (options.json + weights.hdf5), a TensorFlow checkpoint of bilm-tf, a TF-Hub module, a
    model of ELMoForManyLangs or AllenNLP, an archive, or a name. The result is loaded and compared with SOURCE.
    """
    from torchelmo.formats.convert import convert as run

    done = run(source, target, to=to, dtype=dtype, overwrite=overwrite)
    echo(f"{target}: {', '.join(done.files)} ({sum(done.files.values()) / 1e6:,.1f} MB)")
    echo(f"largest output difference on {done.n_sentences} sentences, all layers: {done.difference:.1e}")


def _rows(about: dict[str, Any]) -> dict[str, str]:
    config, parameters = about["config"], about["parameters"]
    clips = f"cell {_or_none(config['cell_clip'])}, projection {_or_none(config['projection_clip'])}"
    rows = {
        "origin": about["origin"],
        "layers": f"{config['n_layers']} + the token layer, {config['direction']} direction"
        f"{'s' if config['direction'] == 'both' else ''}, {'' if config['residual'] else 'not '}residual",
        "vectors": f"{about['dim']} dimensions",
        "LSTM": f"{config['cell_dim']} cells, projected to {config['projection_dim']}; clipped: {clips}",
    }
    if config["input"] != "words":
        filters = " ".join(f"{width}×{count}" for width, count in config["filters"])
        n_filters = sum(count for _, count in config["filters"])
        unit = "bytes" if config["input"] == "characters" else "characters"
        rows["input"] = f"at most {config['max_characters'] - 2} {unit} per token, {config['char_dim']} dimensions each"
        if config["n_words"]:
            rows["input"] += f", and {config['n_words']:,} words"
        rows["filters"] = f"{filters} = {n_filters}, {config['activation']}"
        rows["highways"] = str(config["n_highway"])
    else:
        rows["input"] = f"{config['n_words']:,} whole words"
    if config["objective"] == "masked":
        rows["objective"] = f"masked: predicts hidden words{', joint layers' if config['joint'] else ''}"
    rows |= {f"parameters, {name}": f"{count:,}" for name, count in parameters.items() if count}
    rows["vocabulary"] = "none" if about["vocabulary"] is None else f"{about['vocabulary']:,} words"
    if about["lang"]:
        rows["language"] = about["lang"]
    if about["description"]:
        rows["description"] = shorten(about["description"], 500)
    if about["mixes"]:
        rows["mixes"] = str(about["mixes"])
    rows["on disk"] = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in about["files"].items())
    if about["card"]:
        rows["card"] = about["card"]
    return rows


def _or_none(clip: float | None) -> str:
    return "none" if clip is None else f"±{clip:g}"


def _print_rows(rows: dict[str, str], title: str) -> None:
    """Print a table on a terminal, and plain lines elsewhere."""
    if not sys.stdout.isatty():
        echo("\n".join(f"{name}: {escape_control(value)}" for name, value in rows.items()))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(escape_control(title)), title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), Text(escape_control(value)))
    Console().print(table)
