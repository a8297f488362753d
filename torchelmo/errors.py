"""The exceptions of torchelmo, and how values appear in their messages.

A message says what was expected, what was found, where, and what to do.
"""

import reprlib
from typing import Any


class TorchelmoError(Exception):
    """Base class of every error that torchelmo raises on purpose."""


class ConfigError(TorchelmoError, ValueError):
    """A setting is unknown, has the wrong type or value, or contradicts another."""


class InputError(TorchelmoError, ValueError):
    """Text, tokens or tensors cannot be used as they are."""


class MissingFileError(InputError, FileNotFoundError):
    """A file does not exist, or is not a file."""


class WeightsError(TorchelmoError, ValueError):
    """A weight file is damaged, or does not match its configuration."""


class OutputError(TorchelmoError, OSError):
    """A result could not be written; nothing that looks finished was left behind."""


class BusyError(OutputError):
    """Another process is writing the same output."""


class OutputExistsError(OutputError, FileExistsError):
    """The output path already exists; it was not modified."""


class TrainingError(TorchelmoError, RuntimeError):
    """Training cannot continue; saved checkpoints are intact."""


class MissingPackageError(TorchelmoError, ImportError):
    """A package that an optional part needs is not installed; the message names the extra that brings it."""


class WrongCallError(TorchelmoError, ValueError):
    """The arguments do not fit together; nothing was started."""


def missing_package(package: str, extra: str) -> MissingPackageError:
    """Return the error for a package that is not installed, to be raised from the ImportError.

    >>> print(missing_package("scikit-learn", "sklearn"))
    The package scikit-learn is needed here and is not installed. Install it with: pip install 'torchelmo[sklearn]'
    """
    return MissingPackageError(
        f"The package {package} is needed here and is not installed. Install it with: pip install 'torchelmo[{extra}]'"
    )


def short_repr(value: Any) -> str:
    """Return the repr of a value, cut to about 80 characters, for an error message.

    >>> short_repr([1, 2])
    '[1, 2]'
    """
    try:
        return shorten(reprlib.repr(value) if isinstance(value, (dict, list, tuple, set)) else repr(value))
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits, or deep nesting
        return f"a very long {type(value).__name__}"


def shorten(text: str, width: int = 80) -> str:
    """Cut text to `width` characters, the last of them an ellipsis if something was cut.

    >>> shorten("a long text", 6)
    'a lon…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"
