"""Text collections to vectors on disk: `embed_file` writes them, `VectorFile` reads them."""

from typing import TYPE_CHECKING

from torchelmo.lazy import lazy_exports

if TYPE_CHECKING:
    from torchelmo.bulk.job import EmbedResult, embed_file
    from torchelmo.bulk.vectors import VectorFile

__all__ = ["EmbedResult", "VectorFile", "embed_file"]

__getattr__, __dir__ = lazy_exports(
    __name__, {"EmbedResult": "bulk.job", "VectorFile": "bulk.vectors", "embed_file": "bulk.job"}
)
