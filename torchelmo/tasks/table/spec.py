"""The TOML file of a table of experiments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from torchelmo.config import Config, NonNegativeInt, PositiveInt, Range, load_config
from torchelmo.errors import ConfigError

Share = Annotated[float, Range(above=0, max=1)]


@dataclass(frozen=True)
class Column(Config):
    """[[columns]]: one way to train every row. The others are compared with the first one."""

    name: str
    set: tuple[str, ...] = ()  # "key=value" settings, applied after those of the row; {row} is the name of the row
    bilm: Path | None = None  # a configuration of `pretrain`, relative to the table; its biLM is trained first


@dataclass(frozen=True)
class Row(Config):
    """[[rows]]: one configuration of a task."""

    name: str
    config: Path  # relative to the file of the table
    seeds: PositiveInt = 3
    set: tuple[str, ...] = ()
    paper: str = ""  # the published increase, for comparison


@dataclass(frozen=True)
class Claim(Config):
    """[[claims]]: a statement that the scores decide, for every row: the column `better` is better than `than`."""

    text: str
    better: str  # the name of a column
    than: str
    rows: tuple[str, ...] = ()  # the names of rows; all if empty
    share: Share = 1.0  # of the training data, for `better`
    than_share: Share = 1.0
    measure: Literal["score", "epochs"] = "score"  # "epochs": fewer epochs to reach the best score of `than`
    paper: str = ""  # the published figures


@dataclass(frozen=True)
class Table(Config):
    """A table of experiments."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    shares: tuple[float, ...] = (1.0,)  # of the training data of the row; every row and column is trained on each
    max_epochs: NonNegativeInt = 0  # smaller shares get as many steps, up to this many epochs; 0: as many epochs
    plot: Literal["bars", "shares", "epochs", "mixes"] = "bars"

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, items in (("columns", self.columns), ("rows", self.rows)):
            names = [item.name for item in items]
            if not items or len({slug(name) for name in names} - {""}) < len(names):
                raise ConfigError(f"{what}: expected at least one, with distinct names; got {names}.")
        if len(set(self.shares)) < len(self.shares) or not all(0 < share <= 1 for share in self.shares):
            raise ConfigError(f"shares: expected distinct numbers above 0 and at most 1, got {list(self.shares)}.")
        if not self.shares:
            raise ConfigError("shares: expected at least one, got none.")
        columns, rows = ([item.name for item in items] for items in (self.columns, self.rows))
        for claim in self.claims:
            _require_known("better", [claim.better], columns)
            _require_known("than", [claim.than], columns)
            _require_known("rows", claim.rows, rows)
            _require_known("share", [claim.share], self.shares)
            _require_known("than_share", [claim.than_share], self.shares)


def read_table(path: str | Path) -> Table:
    """Read a table from a TOML file."""
    return load_config(Table, path)


def slug(name: str) -> str:
    """Return a name as part of a path.

    >>> slug("Sentiment, SST-5")
    'sentiment-sst-5'
    """
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def _require_known(key: str, names: Sequence[object], known: Sequence[object]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"claims: {key}: expected one of {list(known)}, got {unknown[0]!r}.")
