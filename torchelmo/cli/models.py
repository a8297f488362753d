"""torchelmo info and torchelmo convert: what a model is, and the two forms of its files."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from torchelmo.cli.exit import echo
from torchelmo.config import config_to_dict
from torchelmo.errors import OutputError, WrongCallError

if TYPE_CHECKING:
    from torch import Tensor

    from torchelmo import BiLM

OURS, OFFICIAL = ("config.json", "model.safetensors"), ("options.json", "weights.hdf5")
_SAMPLE = (
    "The actors took a bow while the whole house stood and cheered .",
    "She drew her bow , and the arrow flew .",
    "Zürich , São Paulo , 東京 and Ελλάδα are places .",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "?",
)
_LARGEST_DIFFERENCE = 1e-5  # of float32 files; they should be equal


def info(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="Model folder, folder with official files, or name; default: english-small."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show what a model is: shape, parameters, vocabulary, origin, and where its card is."""
    from torchelmo import load
    from torchelmo.formats.load import DEFAULT_MODEL

    model = model or DEFAULT_MODEL
    about = describe(load(model), model)
    if as_json:
        echo(json.dumps(about, indent=2, ensure_ascii=False))
    else:
        _print_rows(_rows(about), title=model)


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The model: anything that info takes.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The folder to write.")],
    to: Annotated[
        Literal["official", "folder"] | None,
        typer.Option(help="Form to write; else the one that SOURCE does not have."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16"],
        typer.Option(help="Numbers in the file; float16 for model folders only."),
    ] = "float32",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model in TARGET.")] = False,
) -> None:
    """Turn official files into a model folder, or back.

    Official files are options.json + weights.hdf5. What was written is read again and compared with SOURCE.
    """
    import torch

    from torchelmo import load, save_official

    form = to or ("official" if (find_folder(source) / "config.json").exists() else "folder")
    if form == "official" and dtype != "float32":
        raise WrongCallError(f"--dtype {dtype}: official files are float32. Leave it out, or use --to folder.")
    _check_target(source, target, form, overwrite)
    bilm = load(source)
    if form == "folder":
        bilm.save(target, dtype=getattr(torch, dtype))
    else:
        if bilm.vocabulary is None:
            (target / "vocab.txt").unlink(missing_ok=True)  # of the model that is replaced
        save_official(bilm, *(target / name for name in OFFICIAL))
    difference, n_sentences = largest_difference(bilm, load(target))
    if dtype == "float32" and not difference <= _LARGEST_DIFFERENCE:
        raise OutputError(
            f"{target}: was written, but its output differs from that of {source} by {difference:.1e}. "
            "Do not use it; please report this."
        )
    names = sorted(path.name for path in _model_files(target))
    echo(f"{target}: {', '.join(names)} ({_megabytes(target)})")
    echo(f"largest output difference on {n_sentences} sentences, all layers: {difference:.1e}")


def describe(bilm: "BiLM", model: str) -> dict[str, Any]:
    """All that `info` shows, ready for JSON."""
    parts = {"encoder": 0, "lstm": 0, "softmax": 0}
    for name, parameter in bilm.named_parameters():  # tied weights come once
        part = name.partition(".")[0]
        parts["lstm" if part.endswith("_lstms") else part] += parameter.numel()
    folder = find_folder(model)
    card = folder / "README.md"
    return {
        "model": model,
        "origin": bilm.origin,
        "files": {path.name: path.stat().st_size for path in sorted(_model_files(folder))},
        "config": config_to_dict(bilm.config),
        "dim": bilm.config.dim,
        "parameters": parts | {"total": sum(parts.values())},
        "vocabulary": None if bilm.vocabulary is None else len(bilm.vocabulary),
        "card": str(card) if card.exists() else None,
    }


def find_folder(model: str) -> Path:
    """Return the folder of a model that `load` accepts."""
    from torchelmo.formats.load import find_model

    return find_model(model)


def largest_difference(one: "BiLM", other: "BiLM") -> tuple[float, int]:
    """Over all layers of some sentences, and how many sentences those were."""
    import torch

    ids = _sample(one)
    with torch.inference_mode():
        return float((one(ids).layers - other(ids).layers).abs().max()), len(ids)


def _sample(bilm: "BiLM") -> "Tensor":
    import torch

    from torchelmo import Elmo

    if bilm.config.input == "words":  # any words do, and there may be no vocabulary to look them up in
        generator = torch.Generator().manual_seed(0)
        return torch.randint(1, bilm.config.n_words + 1, (len(_SAMPLE), 12), generator=generator)
    return Elmo(bilm).encode([sentence.split() for sentence in _SAMPLE])


def _check_target(source: str, target: Path, form: str, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise WrongCallError(f"{target}: expected a folder to write to, found a file. Choose another name.")
    if target.exists() and find_folder(source).exists() and target.samefile(find_folder(source)):
        raise WrongCallError(f"{target}: is SOURCE itself. Choose another folder.")
    written = OURS if form == "folder" else OFFICIAL
    found = [path.name for path in _model_files(target) if path.name != "vocab.txt"]
    other = sorted(set(found) - set(written))
    if other:
        raise WrongCallError(
            f"{target}: holds {', '.join(other)}, of a model in another form; the two would be mixed up. "
            "Choose another folder."
        )
    if found and not overwrite:
        raise WrongCallError(f"{target}: holds a model. Choose another folder, or add --overwrite.")


def _model_files(folder: Path) -> list[Path]:
    named = [folder / name for name in (*OURS, "options.json", "vocab.txt")]
    return [path for path in named if path.exists()] + list(folder.glob("*.hdf5"))


def _megabytes(folder: Path) -> str:
    return f"{sum(path.stat().st_size for path in _model_files(folder)) / 1e6:,.1f} MB"


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
    if config["input"] == "characters":
        filters = " ".join(f"{width}×{count}" for width, count in config["filters"])
        n_filters = sum(count for _, count in config["filters"])
        n_bytes = config["max_characters"] - 2  # without the begin and end marks of the token
        rows["input"] = f"the first {n_bytes} bytes (UTF-8) of every token, {config['char_dim']} dimensions each"
        rows["filters"] = f"{filters} = {n_filters}, {config['activation']}"
        rows["highways"] = str(config["n_highway"])
    else:
        rows["input"] = f"{config['n_words']:,} whole words"
    rows |= {f"parameters, {name}": f"{count:,}" for name, count in parameters.items() if count}
    rows["vocabulary"] = "none" if about["vocabulary"] is None else f"{about['vocabulary']:,} words"
    rows["on disk"] = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in about["files"].items())
    if about["card"]:
        rows["card"] = about["card"]
    return rows


def _or_none(clip: float | None) -> str:
    return "none" if clip is None else f"±{clip:g}"


def _print_rows(rows: dict[str, str], title: str) -> None:
    """A table on a terminal, plain lines for other programs."""
    if not sys.stdout.isatty():
        echo("\n".join(f"{name}: {value}" for name, value in rows.items()))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), Text(value))
    Console().print(table)
