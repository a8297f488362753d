"""⑦ What the layers represent: nearest neighbors in context (Table 4 of the paper) and word senses (Table 5)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchelmo.analysis.senses import read_senses, read_tagged
    from torchelmo.analysis.similarity import compare, neighbours
    from torchelmo.analysis.wsd import disambiguate

__all__ = ["compare", "disambiguate", "neighbours", "read_senses", "read_tagged"]

# Imported on first use, because importing PyTorch takes seconds. No module may have the name of a function here:
# importing that module would replace the function.
_HOMES = {
    "compare": "torchelmo.analysis.similarity",
    "disambiguate": "torchelmo.analysis.wsd",
    "neighbours": "torchelmo.analysis.similarity",
    "read_senses": "torchelmo.analysis.senses",
    "read_tagged": "torchelmo.analysis.senses",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
