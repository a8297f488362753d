"""Text collections to vectors on disk: `embed_file` writes one file, `embed_files` a collection of shards.

`VectorFile` and `open` read them back.
"""

from typing import TYPE_CHECKING

from torchelmo.lazy import lazy_exports

if TYPE_CHECKING:
    from torchelmo.bulk.batches import BatchEmbedder
    from torchelmo.bulk.collection import Collection, open
    from torchelmo.bulk.job import EmbedResult, embed_file
    from torchelmo.bulk.shards import CollectionResult, Status, read_status
    from torchelmo.bulk.vectors import VectorFile
    from torchelmo.bulk.workers import embed_files

__all__ = [
    "BatchEmbedder",
    "Collection",
    "CollectionResult",
    "EmbedResult",
    "Status",
    "VectorFile",
    "embed_file",
    "embed_files",
    "open",
    "read_status",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BatchEmbedder": "bulk.batches",
        "Collection": "bulk.collection",
        "CollectionResult": "bulk.shards",
        "EmbedResult": "bulk.job",
        "Status": "bulk.shards",
        "VectorFile": "bulk.vectors",
        "embed_file": "bulk.job",
        "embed_files": "bulk.workers",
        "open": "bulk.collection",
        "read_status": "bulk.shards",
    },
)
