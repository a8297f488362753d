"""⑦ What the layers know: word senses (Table 5 of the paper) and nearest neighbours in context (Table 4)."""

from torchelmo.analysis.neighbours import compare, neighbours
from torchelmo.analysis.wsd import disambiguate

__all__ = ["compare", "disambiguate", "neighbours"]
