"""Settings: dataclasses that are read from TOML, changed by `--set KEY=VALUE`, and checked field by field.

A settings class is a frozen dataclass that derives from `Config`. The type of a field says what it accepts, and
`Annotated` adds the range of a number::

    @dataclass(frozen=True)
    class LayerConfig(Config):
        dim: PositiveInt = 512
        dropout: Fraction = 0.5
        scale: Annotated[float, Range(above=0, max=10)] = 1.0

`build_config` checks types and ranges and names the file and the key; building the class directly checks the ranges.
"""

import copy
import dataclasses
import difflib
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from torchelmo.errors import ConfigError, short_repr, shorten
from torchelmo.files import check_depth, read_bounded

T = TypeVar("T")

_MAX_TOML_BYTES = 2**20
_MAX_KEY_PARTS = 32
_KEY_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_KEY_PART}(?:[ \t]*+\.[ \t]*+{_KEY_PART}){{{_MAX_KEY_PARTS},}}+")


@dataclasses.dataclass(frozen=True)
class Range:
    """Declare which finite numbers a field accepts, as `Annotated[int, Range(min=1)]`.

    Args:
        min: The smallest accepted number.
        max: The largest accepted number.
        above: A number that every accepted number exceeds.
        below: A number that every accepted number stays below.

    >>> str(Range(min=0, below=1))
    'at least 0 and below 1'
    >>> 0 in Range(min=0, below=1), 1 in Range(min=0, below=1), float("nan") in Range(min=0)
    (True, False, False)
    """

    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (isinstance(value, int) or math.isfinite(value))
            and (self.min is None or value >= self.min)
            and (self.max is None or value <= self.max)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        limits = (("at least", self.min), ("above", self.above), ("at most", self.max), ("below", self.below))
        return " and ".join(f"{words} {limit:,}" for words, limit in limits if limit is not None) or "finite"


PositiveInt = Annotated[int, Range(min=1)]
NonNegativeInt = Annotated[int, Range(min=0)]
PositiveFloat = Annotated[float, Range(above=0)]
NonNegativeFloat = Annotated[float, Range(min=0)]
# Far beyond every published model: the limits bound what a damaged or malicious file can make us build.
Width = Annotated[int, Range(min=1, max=2**20)]  # of a vector
LayerCount = Annotated[int, Range(min=1, max=100)]
Fraction = Annotated[float, Range(min=0, below=1)]  # a dropout rate, a share of a run


class Config:
    """Base class of settings: a dataclass that derives from it checks the ranges of its fields when it is built.

    A class that defines `__post_init__` calls `super().__post_init__()` first.
    """

    def __post_init__(self) -> None:
        check_ranges(self)


def check_ranges(config: Any) -> None:
    """Check the fields of a dataclass against the `Range` in their types.

    Raises:
        ConfigError: A number is outside its range. The message names the field, the range and the number.
    """
    for name, hint in typing.get_type_hints(type(config), include_extras=True).items():
        _check_range(hint, getattr(config, name, None), name)


def load_config(cls: type[T], path: str | Path, settings: Sequence[str] = ()) -> T:
    """Read a TOML file into a dataclass.

    Args:
        cls: The dataclass.
        path: The TOML file.
        settings: Settings that override those of the file, as "key.sub=value".

    Returns:
        The settings.

    Raises:
        ConfigError: The file is not TOML, or a key or a value does not fit `cls`.
        MissingFileError: There is no such file.
    """
    return build_config(cls, override(read_toml(path), settings, cls), where=str(path))


def find_recipe(kind: Literal["pretrain", "tasks"], name: str | Path) -> Path:
    """Return the TOML file of a recipe in the package by its name. A path is returned as it is.

    Args:
        kind: The folder of the recipe.
        name: The name of a recipe, such as "laptop", or the path of a file.

    Raises:
        ConfigError: There is neither a file nor a recipe of this name.

    >>> find_recipe("pretrain", "tiny").name
    'tiny.toml'
    """
    path = Path(name)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    package = Path(__file__).parent
    # The wheel holds the experiments inside the package; in a source tree they are beside it.
    folder = next(
        (base / "experiments" / kind for base in (package, package.parent) if (base / "experiments").is_dir()), path
    )
    recipe = folder / f"{name}.toml"
    if not recipe.exists():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
        raise ConfigError(f"{name}: expected a TOML file, or the name of a recipe: {known}. Found neither.")
    return recipe


def read_toml(path: str | Path, *, max_bytes: int = _MAX_TOML_BYTES) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: The file.
        max_bytes: The largest file that is read.

    Returns:
        The tables of the file.

    Raises:
        ConfigError: The file is not TOML in UTF-8, is too large, or is nested too deeply.
        MissingFileError: There is no such file, or it is not a regular file.
    """
    content = read_bounded(path, "a TOML configuration file", max_bytes=max_bytes)
    try:
        return _parse_toml(content.decode("utf-8-sig"))  # some editors write a byte order mark
    except ValueError as error:
        raise ConfigError(f"{path}: expected valid TOML in UTF-8: {error}.") from error


def build_config(cls: type[T], data: Mapping[str, Any], where: str = "config") -> T:
    """Build a dataclass from plain data, and check every key and value, those of nested dataclasses included.

    Args:
        cls: The dataclass.
        data: Its fields by name.
        where: The source of `data`, for error messages.

    Returns:
        The settings.

    Raises:
        ConfigError: A key is unknown or missing, or a value has the wrong type or is out of range.

    >>> from torchelmo.bilm.config import BiLMConfig
    >>> build_config(BiLMConfig, {"n_layres": 1})
    Traceback (most recent call last):
    torchelmo.errors.ConfigError: config: BiLMConfig has no key 'n_layres'. Did you mean 'n_layers'?
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: expected a table of keys for {cls.__name__}, got {short_repr(data)}.")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise ConfigError(f"{where}: {cls.__name__} has no key {short_repr(key)}.{suggest(str(key), fields)}")
    hints = typing.get_type_hints(cls, include_extras=True)
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
    """Return a dataclass as plain data for JSON or TOML; `build_config` reads it back."""
    return {key: _plain(value) for key, value in dataclasses.asdict(config).items()}


def override(data: Mapping[str, Any], settings: Sequence[str], cls: type[Any] | None = None) -> dict[str, Any]:
    """Apply "key.sub=value" settings to plain data. A value is parsed as TOML; if it is not TOML, it is text.

    Args:
        data: The settings to change; they are copied.
        settings: The changes, in order.
        cls: The dataclass that the settings are for. A value stays text if its field accepts only text. If `cls` has
            a mapping REPLACES, setting a key removes the keys of `data` that REPLACES lists for it.

    Returns:
        The changed settings.

    Raises:
        ConfigError: An override is not KEY=VALUE, or names a key inside something that is not a table.

    >>> override({"optim": {"lr": 1.0}}, ["optim.lr=0.1", "out=runs/mine"])
    {'optim': {'lr': 0.1}, 'out': 'runs/mine'}
    >>> from torchelmo.lm.config import PretrainConfig
    >>> override({"epochs": 1, "seed": 2}, ["hours=8", "out=2018"], PretrainConfig)
    {'seed': 2, 'hours': 8, 'out': '2018'}
    """
    replaces: Mapping[str, Sequence[str]] = getattr(cls, "REPLACES", {})
    given = []
    for item in settings:
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"`settings` {shorten(item)}: expected KEY=VALUE, for example optim.lr=0.1.")
        given.append((item, name.strip(), text))
    replaced = {key for _, name, _ in given for key in replaces.get(name, ())}
    result: dict[str, Any] = copy.deepcopy({key: value for key, value in data.items() if key not in replaced})
    for item, name, text in given:
        *tables, key = name.split(".")
        if len(tables) >= _MAX_KEY_PARTS:
            raise ConfigError(
                f"`settings` {shorten(item)}: expected a key of at most {_MAX_KEY_PARTS} parts, got {len(tables) + 1}."
            )
        target = result
        for table in tables:
            target = target.setdefault(table, {})
            if not isinstance(target, dict):
                raise ConfigError(f"`settings` {shorten(item)}: {table!r} is a value, not a table with keys.")
        target[key] = _parse_value(item, text, as_text=_accepts_only_text(cls, [*tables, key]))
    return result


def convert(hint: Any, value: Any, where: str) -> Any:
    """Convert a plain value to the type of a field.

    Args:
        hint: The type: `int`, `float | None`, `tuple[str, ...]`, a dataclass, `Annotated[int, Range(min=1)]` and so on.
        value: The value.
        where: The place of the value, for error messages.

    Returns:
        The converted value.

    Raises:
        ConfigError: The value has the wrong type or is out of range.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        converted = convert(arguments[0], value, where)
        _check_range(hint, converted, where)
        return converted
    if origin in (types.UnionType, typing.Union):
        return _convert_union(arguments, value, where)
    if origin is typing.Literal:
        if any(value == argument and type(value) is type(argument) for argument in arguments):
            return value
        raise ConfigError(f"{where}: expected one of {', '.join(map(repr, arguments))}, got {short_repr(value)}.")
    if origin in (tuple, list):
        return _convert_sequence(origin, arguments, value, where)
    if origin is dict:
        if isinstance(value, Mapping):
            return dict(value)
        raise ConfigError(f"{where}: expected a table, got {short_repr(value)}.")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else build_config(hint, value, where)
    if hint is Path and isinstance(value, (str, Path)):
        if "\0" in str(value):
            raise ConfigError(f"{where}: expected a path, got {short_repr(value)}.")
        return Path(value)
    if hint in (int, float) and isinstance(value, (int, hint)) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigError(f"{where}: expected a number of at most 64 bits, got {short_repr(value)}.")
        return hint(value)
    if hint is Any or (hint not in (int, float) and isinstance(value, hint)):
        return value
    raise ConfigError(f"{where}: expected {getattr(hint, '__name__', hint)}, got {short_repr(value)}.")


def suggest(name: str, known: typing.Iterable[str]) -> str:
    """Return " Did you mean …?" with the most similar known name, or the list of all known names.

    >>> suggest("n_layres", ["n_layers", "dim"])
    " Did you mean 'n_layers'?"
    """
    names = sorted(known)
    near = difflib.get_close_matches(shorten(name), names, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(names)}."


def _check_range(hint: Any, value: Any, where: str) -> None:
    """Check the numbers in `value` against the ranges in `hint`; the types are not checked."""
    for number, allowed in _numbers_and_ranges(hint, value):
        if number not in allowed:
            raise ConfigError(f"{where} must be {allowed}, got {short_repr(number)}.")


def _numbers_and_ranges(hint: Any, value: Any) -> Iterator[tuple[float, Range]]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield from ((value, extra) for extra in hint.__metadata__ if isinstance(extra, Range))
    elif origin in (types.UnionType, typing.Union):
        for argument in arguments:
            yield from _numbers_and_ranges(argument, value)
    elif origin in (tuple, list) and isinstance(value, (tuple, list)) and arguments:
        same = origin is list or Ellipsis in arguments
        for item_hint, item in zip([arguments[0]] * len(value) if same else arguments, value):
            yield from _numbers_and_ranges(item_hint, item)


def _convert_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    for option in options[:-1]:
        try:
            return convert(option, value, where)
        except ConfigError:
            continue
    return convert(options[-1], value, where)


def _convert_sequence(origin: type, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{where}: expected a list, got {short_repr(value)}.")
    if origin is tuple and Ellipsis not in arguments and len(arguments) != len(value):
        raise ConfigError(f"{where}: expected {len(arguments)} values, got {short_repr(value)}.")
    hints = [arguments[0]] * len(value) if origin is list or Ellipsis in arguments else arguments
    return origin(convert(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(hints, value)))


def _parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; every failure is a ValueError."""
    if _LONG_KEY.search(text):  # tomllib takes seconds for a key of thousands of parts
        raise ValueError(f"a key has more than {_MAX_KEY_PARTS} parts")
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_depth(content)
    return content


def _parse_value(item: str, text: str, *, as_text: bool) -> Any:
    try:
        content = _parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        if as_text:
            return text.strip()
        raise ConfigError(f"`settings` {shorten(item)}: expected a value in TOML: {error}.") from error
    if set(content) != {"value"}:
        raise ConfigError(f"`settings` {shorten(item)}: expected one value, got several lines.")
    value = content["value"]
    return value if isinstance(value, str) or not as_text else text.strip()


def _accepts_only_text(hint: Any, keys: Sequence[str]) -> bool:
    """Whether the field of a dataclass that `keys` lead to accepts only text."""
    for key in keys:
        hint = typing.get_type_hints(hint).get(key) if dataclasses.is_dataclass(hint) else None
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return all(_accepts_only_text(option, ()) for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        return all(isinstance(option, str) for option in typing.get_args(hint))
    return hint in (str, Path)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value
