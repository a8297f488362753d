"""Checks that the settings of task models share."""

import copy
import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torchelmo.errors import ConfigError, MissingFileError

T = TypeVar("T")


def load_config(cls: type[T], path: str | Path, overrides: Sequence[str] = ()) -> T:
    """Read the TOML file at `path` into the dataclass `cls`; `overrides` are "key.sub=value" strings."""
    return build_config(cls, override(read_toml(path), overrides, cls), where=str(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"{path}: expected a TOML configuration file, found {_what_is(path)}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected valid TOML in UTF-8: {error}.") from error


def build_config(cls: type[T], data: Mapping[str, Any], where: str = "config") -> T:
    """Check `data` against the fields of the dataclass `cls`, nested dataclasses included, and build it.

    >>> from torchelmo.bilm.config import BiLMConfig
    >>> build_config(BiLMConfig, {"n_layres": 1})
    Traceback (most recent call last):
    torchelmo.errors.ConfigError: config: BiLMConfig has no key 'n_layres'. Did you mean 'n_layers'?
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: expected a table of keys for {cls.__name__}, got {data!r}.")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise ConfigError(f"{where}: {cls.__name__} has no key {key!r}.{suggest(key, fields)}")
    hints = typing.get_type_hints(cls)
    values = {key: convert(hints[key], value, f"{where}: {key}") for key, value in data.items()}
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where}: {cls.__name__} needs {', '.join(map(repr, missing))}; add it to the file.")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def config_to_dict(config: Any) -> dict[str, Any]:
    """The plain, JSON- and TOML-ready form of a dataclass; `build_config` reads it back."""
    return {key: _plain(value) for key, value in dataclasses.asdict(config).items()}


def override(data: Mapping[str, Any], overrides: Sequence[str], cls: type[Any] | None = None) -> dict[str, Any]:
    """Apply "key.sub=value" settings; a value is TOML where it parses as TOML, else plain text.

    With `cls`, the dataclass that the settings are for, a value stays text where its field wants text, and where `cls`
    has REPLACES, a key takes the place of those of `data` that are named there.

    >>> override({"optim": {"lr": 1.0}}, ["optim.lr=0.1", "out=runs/mine"])
    {'optim': {'lr': 0.1}, 'out': 'runs/mine'}
    >>> from torchelmo.lm.config import PretrainConfig
    >>> override({"epochs": 1, "seed": 2}, ["hours=8", "out=2018"], PretrainConfig)
    {'seed': 2, 'hours': 8, 'out': '2018'}
    """
    replaces: Mapping[str, Sequence[str]] = getattr(cls, "REPLACES", {})
    given = []
    for item in overrides:
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {item}: expected KEY=VALUE, for example --set optim.lr=0.1.")
        given.append((item, name.strip(), text))
    replaced = {key for _, name, _ in given for key in replaces.get(name, ())}
    result: dict[str, Any] = copy.deepcopy({key: value for key, value in data.items() if key not in replaced})
    for item, name, text in given:
        *tables, key = name.split(".")
        target = result
        for table in tables:
            target = target.setdefault(table, {})
            if not isinstance(target, dict):
                raise ConfigError(f"--set {item}: {table!r} is a value, not a table with keys.")
        target[key] = _parse_value(text, as_text=_wants_text(cls, [*tables, key]))
    return result


def convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as the type `hint`, or a ConfigError that names the place `where` it stands."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        options = [argument for argument in arguments if argument is not type(None)]
        for option in options[:-1]:
            try:
                return convert(option, value, where)
            except ConfigError:
                continue
        return convert(options[-1], value, where)
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{where}: expected one of {', '.join(map(repr, arguments))}, got {value!r}.")
    if origin in (tuple, list):
        return _convert_sequence(origin, arguments, value, where)
    if origin is dict:
        if isinstance(value, Mapping):
            return dict(value)
        raise ConfigError(f"{where}: expected a table, got {value!r}.")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else build_config(hint, value, where)
    if hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is Any or (isinstance(value, hint) and (hint is bool or not isinstance(value, bool))):
        return value
    raise ConfigError(f"{where}: expected {getattr(hint, '__name__', hint)}, got {value!r}.")


def suggest(name: str, known: typing.Iterable[str]) -> str:
    """' Did you mean …?' for the nearest known name, or the list of all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(names)}."


def _parse_value(text: str, *, as_text: bool) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, str) or not as_text else text.strip()


def _wants_text(hint: Any, keys: Sequence[str]) -> bool:
    """Whether the field of a dataclass that `keys` lead to takes nothing but text."""
    for key in keys:
        hint = typing.get_type_hints(hint).get(key) if dataclasses.is_dataclass(hint) else None
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return all(_wants_text(option, ()) for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        return all(isinstance(option, str) for option in typing.get_args(hint))
    return hint in (str, Path)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def _convert_sequence(origin: type, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{where}: expected a list, got {value!r}.")
    if origin is tuple and Ellipsis not in arguments and len(arguments) != len(value):
        raise ConfigError(f"{where}: expected {len(arguments)} values, got {value!r}.")
    hints = [arguments[0]] * len(value) if origin is list or Ellipsis in arguments else arguments
    return origin(convert(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(hints, value)))


def _what_is(path: Path) -> str:
    return "a directory" if path.is_dir() else "no such file"


def require_positive(config: Any, *names: str) -> None:
    """Each of these fields is at least 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} must be at least 1, got {getattr(config, name)}.")


def require_share(config: Any, *names: str) -> None:
    """Each of these fields is a share that leaves something: a dropout."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise ConfigError(f"{name} must be at least 0 and below 1, got {getattr(config, name)}.")
