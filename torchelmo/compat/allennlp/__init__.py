"""AllenNLP's ELMo: its signatures, shapes, dictionary keys, parameter names and numbers over this library.

Code that was written for AllenNLP runs by changing one import. docs/allennlp.md says what differs.
"""

from torchelmo.compat.allennlp.bilm import ElmoBiLm
from torchelmo.compat.allennlp.elmo import Elmo, ElmoTokenEmbedder, ScalarMix, batch_to_ids
from torchelmo.compat.allennlp.embedder import ElmoEmbedder

_ElmoBiLm = ElmoBiLm  # AllenNLP's name for it, which its users import all the same

__all__ = ["Elmo", "ElmoBiLm", "ElmoEmbedder", "ElmoTokenEmbedder", "ScalarMix", "batch_to_ids"]
