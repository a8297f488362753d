"""⑦ What the layers represent: nearest neighbors in context (Table 4 of the paper) and word senses (Table 5)."""

from typing import TYPE_CHECKING

from torchelmo.lazy import lazy_exports

if TYPE_CHECKING:
    from torchelmo.analysis.senses import read_senses, read_tagged
    from torchelmo.analysis.similarity import compare, neighbours
    from torchelmo.analysis.wsd import disambiguate

__all__ = ["compare", "disambiguate", "neighbours", "read_senses", "read_tagged"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "compare": "analysis.similarity",
        "disambiguate": "analysis.wsd",
        "neighbours": "analysis.similarity",
        "read_senses": "analysis.senses",
        "read_tagged": "analysis.senses",
    },
)
