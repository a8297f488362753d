"""The registry of published models, models.toml, and where their downloaded files are: TORCHELMO_HOME."""

import os
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from torchelmo.config import Config, NonNegativeInt, build_config, read_toml
from torchelmo.errors import ConfigError, MissingFileError, WeightsError, short_repr
from torchelmo.files import content_hash

REGISTRY = Path(__file__).with_name("models.toml")
_NLPL = re.compile(r"nlpl:(\d{1,6})")
_MAX_SERIES = 1000  # models
_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar")


@dataclass(frozen=True)
class PublishedModel(Config):
    """A published model. Unknown facts are empty, or None.

    Args:
        name: The name that `torchelmo.load` takes.
        lang: Language code, or "protein".
        format: "folder" (in the package), "official", "checkpoint", "tf-hub" or "efml".
        addresses: The files to download. They were found in programs and papers, and may no longer work.
        megabytes: The size of the download.
        sha256: The checksum of the only file.
        license: The license of the weights.
        lemmas: Whether the model was trained on lemmas instead of word forms.
        note: Anything else.
    """

    name: str
    lang: str = ""
    format: str = ""
    addresses: tuple[str, ...] = ()
    megabytes: NonNegativeInt | None = None
    sha256: str = ""
    license: str = ""
    lemmas: bool | None = None
    note: str = ""


def published_models(lang: str | None = None) -> list[PublishedModel]:
    """Return the models of the registry.

    Args:
        lang: Only models of this language.

    Returns:
        The models, in the order of the registry.

    Example:
        >>> from torchelmo.formats.registry import published_models
        >>> [model.name for model in published_models("no")]
        ['nlpl:210', 'nlpl:211', 'nlpl:217', 'nlpl:218']
    """
    return [model for model in _read_registry(REGISTRY) if lang is None or model.lang == lang.lower()]


def find_published(name: str) -> PublishedModel | None:
    """Return the model of this name; None if the registry does not have it."""
    for model in published_models():
        if model.name == name:
            return model
    match = _NLPL.fullmatch(name)
    if match is None:
        return None
    return PublishedModel(name, addresses=(f"http://vectors.nlpl.eu/repository/20/{match[1]}.zip",))


def model_home() -> Path:
    """Return the folder of downloaded models: TORCHELMO_HOME, or by default ~/.cache/torchelmo."""
    return Path(os.environ.get("TORCHELMO_HOME") or Path.home() / ".cache" / "torchelmo").expanduser()


def find_download(model: PublishedModel) -> Path:
    """Return the folder or file of a published model in TORCHELMO_HOME.

    Args:
        model: The model.

    Returns:
        A folder, an archive, or the weights.hdf5 of official files.

    Raises:
        MissingFileError: It has not been downloaded. The message says where to get it and where to put it.
        WeightsError: The file has another checksum than the published one.
    """
    home, folder = model_home(), re.sub(r"[^\w.+-]", "-", model.name)
    files = [address.rsplit("/", 1)[-1] for address in model.addresses]
    single = files[0] if len(files) == 1 else ""
    archives = [*([single] if single.endswith(_ARCHIVES) else []), *(folder + suffix for suffix in _ARCHIVES)]
    for path in (home / folder, *(home / name for name in archives), *(home / folder / name for name in archives)):
        if path.is_file() or (path.is_dir() and not any((path / name).is_file() for name in archives)):
            return _check_sha256(path, model)
    if len(files) > 1 and all((home / name).is_file() for name in files):
        return next((home / name for name in files if name.endswith(".hdf5")), home / files[-1])
    if not files:
        advice = f"Its address is not known. Put its files into {home / folder}"
    elif single.endswith(_ARCHIVES):
        advice = f"Download {model.addresses[0]} to {home / single}"
    elif single:
        advice = f"Download the files of {model.addresses[0]} to {home / folder}"
    else:
        advice = f"Download {' and '.join(model.addresses)} to {home / folder}"
    raise MissingFileError(
        f"{model.name}: expected its files in {home}, found none; torchelmo does not download them. {advice}, or set "
        "TORCHELMO_HOME to the folder that contains them."
    )


def _check_sha256(path: Path, model: PublishedModel) -> Path:
    if model.sha256 and path.is_file() and content_hash(path) != model.sha256:
        raise WeightsError(
            f"{path}: expected the file with the SHA-256 {model.sha256}, as {model.name} was published; found another "
            "one. Download it again."
        )
    return path


@cache
def _read_registry(path: Path) -> tuple[PublishedModel, ...]:
    models = []
    tables = read_toml(path).get("model", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: expected models as tables, [[model]], found something else.")
    for item in tables:
        table = dict(item)
        last = table.pop("last", None)
        model = build_config(PublishedModel, table, str(path))
        models.append(model)
        if last is not None:  # a series of NLPL
            start = _NLPL.fullmatch(model.name)
            if start is None or not isinstance(last, int) or last >= int(start[1]) + _MAX_SERIES:
                raise ConfigError(
                    f"{path}: {short_repr(model.name)}: expected a name such as nlpl:136, the first of a series, and "
                    f"`last`, the last of at most {_MAX_SERIES} numbers; found {short_repr(last)}."
                )
            for number in range(int(start[1]) + 1, last + 1):
                addresses = tuple(address.replace(start[1], str(number)) for address in model.addresses)
                models.append(replace(model, name=f"nlpl:{number}", addresses=addresses))
    return tuple(models)
