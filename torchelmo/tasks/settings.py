"""Checks that the settings of task models share."""

from typing import Any

from torchelmo.errors import ConfigError


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
