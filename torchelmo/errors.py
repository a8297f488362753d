"""One family of exceptions. Each message says what was expected, what came, where, and what to do."""


class TorchelmoError(Exception):
    """The base of every error that torchelmo raises on purpose."""


class ConfigError(TorchelmoError, ValueError):
    """A setting is unknown, of the wrong type, or contradicts another."""


class InputError(TorchelmoError, ValueError):
    """Text, tokens or tensors that cannot be used as they are."""


class MissingFileError(InputError, FileNotFoundError):
    """A file that was named is not there, or is not a file."""


class WeightsError(TorchelmoError, ValueError):
    """A weight file is damaged, or does not fit its configuration."""


class OutputError(TorchelmoError, OSError):
    """A result could not be written; nothing that looks finished was left behind."""


class OutputExistsError(OutputError, FileExistsError):
    """Something stands where a result would go; it was left as it is."""


class TrainingError(TorchelmoError, RuntimeError):
    """A training run cannot go on; what it had saved is still there."""


class WrongCallError(TorchelmoError, ValueError):
    """The arguments cannot be followed as they are; nothing was begun."""
