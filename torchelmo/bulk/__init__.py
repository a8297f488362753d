"""Text collections to vectors on disk: `embed_file` writes them, `VectorFile` reads them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchelmo.bulk.job import EmbedResult, embed_file
    from torchelmo.bulk.outputs import VectorFile

__all__ = ["EmbedResult", "VectorFile", "embed_file"]

_MODULES = {"EmbedResult": "job", "VectorFile": "outputs", "embed_file": "job"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
