"""AllenNLP's ELMo: the same signatures, shapes, dictionary keys, parameter names and results.

Code that was written for AllenNLP runs by changing one import, or unchanged after `install()`.
docs/how-to/move-from-allennlp.md lists the differences.
"""

from torchelmo.compat.allennlp.bilm import ElmoBiLm
from torchelmo.compat.allennlp.elmo import Elmo, ElmoTokenEmbedder, ScalarMix, batch_to_ids
from torchelmo.compat.allennlp.embedder import ElmoEmbedder
from torchelmo.compat.allennlp.install import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE, install

_ElmoBiLm = ElmoBiLm  # AllenNLP's name, which its users import although it is private

__all__ = [
    "DEFAULT_OPTIONS_FILE",
    "DEFAULT_WEIGHT_FILE",
    "Elmo",
    "ElmoBiLm",
    "ElmoEmbedder",
    "ElmoTokenEmbedder",
    "ScalarMix",
    "batch_to_ids",
    "install",
]
