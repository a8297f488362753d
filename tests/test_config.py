"""Dataclasses from TOML, and what is said about a wrong key or value."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from facts import mentions

from torchelmo.bilm.config import BiLMConfig
from torchelmo.config import (
    Config,
    Fraction,
    PositiveInt,
    Range,
    build_config,
    config_to_dict,
    load_config,
    override,
    read_toml,
    suggest,
)
from torchelmo.errors import ConfigError, MissingFileError


@dataclass(frozen=True)
class Optim:
    lr: float = 0.2
    name: Literal["adagrad", "adam"] = "adagrad"


@dataclass(frozen=True)
class Run:
    data: Path
    steps: int = 10
    optim: Optim = Optim()
    seeds: list[int] = field(default_factory=list)
    filters: tuple[tuple[int, int], ...] = ()
    pair: tuple[int, str] = (0, "")
    clip: float | None = 3.0
    resume: bool = False
    either: int | str = 0
    extra: dict[str, Any] = field(default_factory=dict)
    anything: Any = None

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigError(f"steps must not be negative, got {self.steps}.")


def write(folder: Path, text: str) -> Path:
    path = folder / "exp.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_with_overrides(tmp_path):
    path = write(
        tmp_path,
        'data = "corpus"\nseeds = [1, 2]\nfilters = [[1, 2]]\npair = [3, "x"]\neither = "text"\n'
        "anything = [1]\n[optim]\nlr = 1\n[extra]\na = 1\n",
    )
    run = load_config(Run, path, ["optim.name=adam", "steps = 20", "resume=true", "data=other place"])
    assert run == Run(
        data=Path("other place"),
        steps=20,
        optim=Optim(1.0, "adam"),
        seeds=[1, 2],
        filters=((1, 2),),
        pair=(3, "x"),
        resume=True,
        either="text",
        extra={"a": 1},
        anything=[1],
    )
    assert isinstance(run.optim.lr, float)


def test_there_and_back():
    run = Run(data=Path("corpus"), filters=((1, 2), (3, 4)), clip=None, extra={"deep": {"list": (1, 2)}})
    data = config_to_dict(run)
    assert data["data"] == "corpus"
    assert data["filters"] == [[1, 2], [3, 4]]
    assert data["extra"] == {"deep": {"list": [1, 2]}}
    assert build_config(Run, data) == Run(Path("corpus"), filters=((1, 2), (3, 4)), clip=None, extra=data["extra"])
    assert build_config(BiLMConfig, config_to_dict(BiLMConfig())) == BiLMConfig()


def test_a_built_dataclass_may_be_given():
    assert build_config(Run, {"data": "d", "optim": Optim(0.5)}).optim == Optim(0.5)


def test_an_unknown_key_with_a_suggestion(tmp_path):
    path = write(tmp_path, 'data = "d"\n[optim]\nlrr = 1.0\n')
    with pytest.raises(ConfigError, match=mentions("exp.toml", "optim", "'lrr'", "Did you mean 'lr'")):
        load_config(Run, path)


def test_an_unknown_key_without_a_near_one():
    with pytest.raises(ConfigError, match=mentions("'momentum'", "lr", "name")):
        build_config(Optim, {"momentum": 1})


def test_a_missing_key():
    with pytest.raises(ConfigError, match=mentions("'data'")):
        build_config(Run, {})


@pytest.mark.parametrize(
    ("key", "value", "facts"),
    [
        ("steps", "ten", ["steps", "'ten'"]),
        ("steps", 1.5, ["steps", 1.5]),
        ("steps", True, ["steps", True]),
        ("resume", 1, ["resume", 1]),
        ("clip", "x", ["clip", "'x'"]),
        ("clip", True, ["clip", True]),
        ("optim", 3, ["optim", 3]),
        ("optim", {"name": "sgd"}, ["optim", "name", "'adagrad'", "'adam'", "'sgd'"]),
        ("seeds", 3, ["seeds", 3]),
        ("seeds", [1, "b"], ["seeds[1]", "'b'"]),
        ("filters", [[1, 2], [3]], ["filters[1]", 2, "[3]"]),
        ("pair", [1, 2], ["pair[1]", 2]),
        ("either", 1.5, ["either", 1.5]),
        ("extra", 1, ["extra", 1]),
        ("data", 1, ["data", 1]),
        ("steps", -1, ["config", "steps", -1]),
    ],
)
def test_a_wrong_value_names_the_place(key, value, facts):
    with pytest.raises(ConfigError, match=mentions(*facts)):
        build_config(Run, {"data": "d", key: value})


@pytest.mark.parametrize("item", ["steps", "=3", " = 3", ""])
def test_an_override_without_key_or_value(item):
    with pytest.raises(ConfigError, match=mentions(f"`settings` {item}", "KEY=VALUE")):
        override({}, [item])


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("data=2018", {"data": "2018"}),
        ("data=2018-03-22", {"data": "2018-03-22"}),
        ("data='2018'", {"data": "2018"}),
        ("data=true", {"data": "true"}),
        ("optim.name=1e3", {"optim": {"name": "1e3"}}),
        ("either=3", {"either": 3}),
        ("steps=3", {"steps": 3}),
        ("extra.data=3", {"extra": {"data": 3}}),
        ("no.such.key=3", {"no": {"such": {"key": 3}}}),
    ],
)
def test_a_value_stays_text_where_its_field_wants_text(item, expected):
    assert override({}, [item], Run) == expected


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    assert load_config(Run, write(tmp_path, "\ufeffdata = 'd'\nsteps = 4\n")).steps == 4


def test_an_override_below_a_value():
    with pytest.raises(ConfigError, match=mentions("`settings` steps.x=1", "'steps'")):
        override({"steps": 3}, ["steps.x=1"])


def test_overrides_leave_what_was_given_alone():
    data = {"optim": {"deep": {"lr": 1}}, "list": [1]}
    assert override(data, ["optim.deep.lr=2", "new.key=3", "list=[2]", "text=a=b"]) == {
        "optim": {"deep": {"lr": 2}},
        "list": [2],
        "new": {"key": 3},
        "text": "a=b",
    }
    assert data == {"optim": {"deep": {"lr": 1}}, "list": [1]}


@pytest.mark.parametrize("text", ["steps = ", "steps = 1\nsteps = 2"])
def test_wrong_toml(text, tmp_path):
    with pytest.raises(ConfigError, match=mentions("exp.toml", "TOML")):
        load_config(Run, write(tmp_path, text))


def test_toml_that_is_not_text(tmp_path):
    path = tmp_path / "exp.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=mentions("exp.toml", "UTF-8", "0xff")):
        load_config(Run, path)


def test_no_file_or_a_directory(tmp_path):
    with pytest.raises(MissingFileError, match=mentions("none.toml")):
        load_config(Run, tmp_path / "none.toml")
    with pytest.raises(MissingFileError, match=mentions(tmp_path)):
        load_config(Run, tmp_path)


def test_suggest():
    assert "Did you mean 'n_layers'" in suggest("n_layres", ["n_layers", "dim"])
    assert "a, b" in suggest("zzz", ["b", "a"])


@dataclass(frozen=True)
class Layer(Config):
    dim: PositiveInt = 4
    dropout: Fraction | None = 0.5
    sizes: tuple[PositiveInt, ...] = ()
    filters: tuple[tuple[PositiveInt, Annotated[int, Range(above=2)]], ...] = ()
    scale: Annotated[float, Range(above=0, max=10)] = 1.0


@dataclass(frozen=True)
class Stack(Config):
    layer: Layer = Layer()


@pytest.mark.parametrize(
    ("key", "value", "facts"),
    [
        ("dim", 0, ["dim", "at least 1", "0"]),
        ("dropout", 1.0, ["dropout", "at least 0", "below 1", "1.0"]),
        ("dropout", -1, ["dropout", "-1"]),
        ("dropout", float("nan"), ["dropout", "nan"]),
        ("sizes", (1, 0), ["sizes", "at least 1", "0"]),
        ("filters", ((1, 2),), ["filters", "above 2", "2"]),
        ("scale", 11.0, ["scale", "at most 10", "11.0"]),
        ("scale", float("inf"), ["scale", "inf"]),
    ],
)
def test_a_number_outside_its_range_is_refused(key, value, facts):
    with pytest.raises(ConfigError) as direct:
        Layer(**{key: value})
    with pytest.raises(ConfigError) as read:
        build_config(Stack, {"layer": {key: value}}, "exp.toml")
    for error in (direct, read):
        assert all(fact in str(error.value) for fact in facts)
    assert str(read.value).startswith("exp.toml: layer: ")


def test_numbers_inside_their_ranges():
    layer = Layer(1, None, (1, 2), ((1, 3),), 10)
    assert build_config(Layer, config_to_dict(layer)) == layer


def test_a_union_of_ranges_is_checked_against_the_first_that_fits():
    assert build_config(Layer, {"dropout": None}).dropout is None


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("scale = " + "9" * 400, ["scale", "64 bits"]),
        ("dim = " + "9" * 400, ["dim", "64 bits"]),
        ("dim = " + "9" * 5000, ["TOML"]),
        ("sizes = " + "[" * 5000 + "]" * 5000, ["TOML", "deep"]),
        ("sizes = " + "[" * 100 + "]" * 100, ["TOML", "deep"]),
        (".".join(["a"] * 5000) + " = 1", ["TOML", "32 parts"]),
        ("x = { " + " . ".join(["'a'"] * 5000) + " = 1 }", ["TOML", "32 parts"]),
        ("[" + ".".join(["a"] * 5000) + "]", ["TOML", "32 parts"]),
        ("dim = '" + "a" * 100_000 + "'", ["dim", "int", "aaa…"]),
    ],
)
def test_extreme_toml_is_refused_with_a_short_message(text, facts, tmp_path):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_config(Layer, path)
    assert str(path) in str(error.value)
    assert all(fact in str(error.value) for fact in facts)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "item",
    [
        ".".join(["a"] * 5000) + "=1",
        "dim=" + "[" * 5000,
        "dim=" + "[" * 5000 + "]" * 5000,
        "dim=" + "9" * 5000,
        "seed=1\nepochs=99",
    ],
)
def test_extreme_overrides_are_refused_with_a_short_message(item):
    with pytest.raises(ConfigError) as error:
        build_config(Layer, override({}, [item], Layer))
    assert len(str(error.value)) < 1000


def test_toml_is_read_from_regular_files_of_bounded_size(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path / "pipe.toml", Path("/dev/zero")):
        with pytest.raises(MissingFileError):
            read_toml(path)
    with pytest.raises(ConfigError, match="1,000"):
        read_toml(write(tmp_path, "a = 1\n" + "#" * 2000), max_bytes=1000)
