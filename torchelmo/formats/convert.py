"""Describe a model, and convert it between model folders and official files."""

import contextlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchelmo.bilm.encoder import CharCNN
from torchelmo.bilm.model import BiLM
from torchelmo.config import config_to_dict
from torchelmo.errors import OutputError, OutputExistsError, WrongCallError, shorten
from torchelmo.files import read_bounded
from torchelmo.formats.load import DEFAULT_MODEL, find_model, is_hdf5, load, model_kind, open_folder
from torchelmo.formats.official import save_official

Form = Literal["official", "folder"]
FILES: dict[Form, tuple[str, str]] = {
    "folder": ("config.json", "model.safetensors"),
    "official": ("options.json", "weights.hdf5"),
}

_LISTS = ("symbols.json", "vocab.txt", "vocab.txt.gz")  # they alone are no model
_DESCRIPTIONS = ("meta.json", "README", "README.txt")
_SAMPLE = (
    "The actors took a bow while the whole house stood and cheered .",
    "She drew her bow , and the arrow flew .",
    "Zürich , São Paulo , 東京 and Ελλάδα are places .",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "?",
)
_TOLERANCE = 1e-5  # for float32 files, whose output should be equal


class Converted(NamedTuple):
    """What `convert` wrote."""

    target: Path
    files: dict[str, int]  # their sizes in bytes
    difference: float  # the largest difference between the outputs of source and target
    n_sentences: int  # that were compared


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: Form | None = None,
    dtype: Literal["float32", "float16", "int8"] = "float32",
    overwrite: bool = False,
) -> Converted:
    """Convert a model to a model folder or to official files, and compare the output of both.

    Args:
        source: Anything that `torchelmo.load` accepts.
        target: The folder to write.
        to: "folder" for config.json + model.safetensors, "official" for options.json + weights.hdf5. Default: the form
            that `source` does not have.
        dtype: The type of the numbers in the file; float16 and int8 only for model folders. "int8" rounds the weights
            of the LSTMs to int8, and the large ones of the encoder to float16.
        overwrite: Replace a model of the same form in `target`.

    Returns:
        The files, and the largest difference of all layers on a few sentences.

    Raises:
        WrongCallError: The arguments do not fit together.
        OutputExistsError: `target` holds a model.
        OutputError: The output of the converted model differs from that of the source.
    """
    target = Path(target)
    folder = find_model(source)
    form: Form = to or ("official" if model_kind(folder) == "folder" else "folder")
    if form == "official" and dtype != "float32":
        raise WrongCallError(f"`dtype` {dtype}: official files are float32. Leave it out, or use `to` folder.")
    _check_target(folder, target, form, overwrite)
    bilm = load(source)
    if form == "folder":
        bilm.save(target, dtype=getattr(torch, dtype))
    else:
        if bilm.vocabulary is None:
            (target / "vocab.txt").unlink(missing_ok=True)  # of the model that is replaced
        save_official(bilm, *(target / name for name in FILES["official"]))
    exact = bilm.dequantized() if dtype == "float32" else bilm  # an int8 model rounds its activations, too
    difference = largest_difference(exact, load(target.resolve()))
    if dtype == "float32" and not difference <= _TOLERANCE:
        raise OutputError(
            f"{target}: was written, but its output differs from that of {source} by {difference:.1e}. "
            "Do not use it; please report this."
        )
    files = {path.name: path.stat().st_size for path in sorted(model_files(target))}
    return Converted(target, files, difference, len(_SAMPLE))


def describe(model: str | Path | None = None) -> dict[str, Any]:
    """Load a model and describe it: shape, parameters, vocabulary, language, origin, files and card.

    Args:
        model: Anything that `torchelmo.load` accepts.

    Returns:
        Plain data for JSON.

    >>> describe()["dim"]
    384
    """
    folder, bilm = find_model(model), load(model)
    parts = {"encoder": 0, "lstm": 0, "softmax": 0, "mask_vector": 0}
    for name, tensor in bilm.own_tensors().items():
        part = name.partition(".")[0]
        if not name.endswith("_scale"):  # of int8 weights
            parts["lstm" if part.endswith("_lstms") else part] += tensor.numel()
    card = folder / "README.md"
    return {
        "model": str(model or DEFAULT_MODEL),
        "origin": bilm.origin,
        "files": {path.name: path.stat().st_size for path in sorted(model_files(folder))},
        "config": config_to_dict(bilm.config),
        "dim": bilm.config.dim,
        "parameters": {name: n for name, n in parts.items() if n or name != "mask_vector"}
        | {"total": sum(parts.values())},
        "int8": bilm.is_int8,
        "vocabulary": None if bilm.vocabulary is None else len(bilm.vocabulary),
        "lang": bilm.lang,
        "pretokenized": bilm.pretokenized,
        "mixes": len(bilm.mixes),
        "description": _description(folder),
        "card": str(card) if card.exists() else None,
    }


def largest_difference(one: BiLM, other: BiLM) -> float:
    """Return the largest difference between the outputs of two models, over all layers of a few sentences."""
    ids = _sample(one)
    with torch.inference_mode():
        return float((one(ids).layers - other(ids).layers).abs().max())


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model in a folder, in any form; an archive is one file."""
    if folder.is_file():
        return [folder]
    named = [folder / name for name in (*FILES["folder"], *_LISTS)]
    patterns = ("*options*.json", "*.hdf5", "*.index", "*.data-*", "variables/variables.*", "*.pkl", "*.dic", "*.th")
    return [path for path in named if path.exists()] + [path for pattern in patterns for path in folder.glob(pattern)]


def _description(path: Path) -> str | None:
    """Return the text that was published with a model, such as the meta.json of NLPL; None if there is none."""
    with contextlib.ExitStack() as stack:
        folder = path if path.is_dir() else path.parent if is_hdf5(path) else stack.enter_context(open_folder(path))
        for name in _DESCRIPTIONS:
            if (folder / name).is_file():
                content = read_bounded(folder / name, "the description of a model", max_bytes=2**20)
                return shorten(" ".join(content.decode("utf-8", "replace").split()), 2000)
    return None


def _sample(bilm: BiLM) -> Tensor:
    if not isinstance(bilm.encoder, CharCNN):  # any words serve, and there may be no vocabulary
        generator = torch.Generator().manual_seed(0)
        return torch.randint(1, bilm.config.n_words + 1, (len(_SAMPLE), 12), generator=generator)
    return torch.from_numpy(bilm.encoder.characters.batch([sentence.split() for sentence in _SAMPLE]))


def _check_target(source: Path, target: Path, form: Form, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise WrongCallError(f"{target}: expected a folder to write to, found a file. Choose another name.")
    if target.exists() and target.samefile(source):
        raise WrongCallError(f"{target}: is SOURCE itself. Choose another folder.")
    found = [path.name for path in model_files(target) if path.name not in _LISTS]
    other = sorted(set(found) - set(FILES[form]))
    if other:
        raise OutputExistsError(
            f"{target}: holds {', '.join(other)}, of a model in another form. Choose another folder."
        )
    if found and not overwrite:
        raise OutputExistsError(f"{target}: holds a model. Choose another folder, or add overwrite=True.")
