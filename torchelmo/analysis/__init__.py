"""⑦ What the layers represent: nearest neighbors in context (Table 4 of the paper), senses (Table 5), and change."""

from typing import TYPE_CHECKING

from torchelmo.lazy import lazy_exports

if TYPE_CHECKING:
    from torchelmo.analysis.change import measure_change
    from torchelmo.analysis.senses import read_senses, read_tagged
    from torchelmo.analysis.similarity import compare, neighbours
    from torchelmo.analysis.usage_files import UsageFile
    from torchelmo.analysis.usages import collect_usages, read_targets
    from torchelmo.analysis.word_vectors import align_words, average_words
    from torchelmo.analysis.wsd import disambiguate

__all__ = [
    "UsageFile",
    "align_words",
    "average_words",
    "collect_usages",
    "compare",
    "disambiguate",
    "measure_change",
    "neighbours",
    "read_senses",
    "read_tagged",
    "read_targets",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "UsageFile": "analysis.usage_files",
        "align_words": "analysis.word_vectors",
        "average_words": "analysis.word_vectors",
        "collect_usages": "analysis.usages",
        "compare": "analysis.similarity",
        "disambiguate": "analysis.wsd",
        "measure_change": "analysis.change",
        "neighbours": "analysis.similarity",
        "read_senses": "analysis.senses",
        "read_tagged": "analysis.senses",
        "read_targets": "analysis.usages",
    },
)
