"""ELMo: deep contextual word vectors. text → characters → token vectors → biLM layers → mix → task."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchelmo.bilm.config import BiLMConfig
    from torchelmo.bilm.model import BiLM
    from torchelmo.elmo import Elmo
    from torchelmo.formats.load import load
    from torchelmo.formats.official import load_official, save_official
    from torchelmo.mix import ScalarMix

__version__ = "0.1.0"

__all__ = ["BiLM", "BiLMConfig", "Elmo", "ScalarMix", "__version__", "load", "load_official", "save_official"]

# Imported at first use: PyTorch takes seconds, and `torchelmo --help` does not need it.
_HOMES = {
    "BiLM": "torchelmo.bilm.model",
    "BiLMConfig": "torchelmo.bilm.config",
    "Elmo": "torchelmo.elmo",
    "ScalarMix": "torchelmo.mix",
    "load": "torchelmo.formats.load",
    "load_official": "torchelmo.formats.official",
    "save_official": "torchelmo.formats.official",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
