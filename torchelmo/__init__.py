"""ELMo: deep contextual word vectors. text → characters → token vectors → biLM layers → mix → task."""

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.model import BiLM
from torchelmo.bilm.official import load_official, save_official
from torchelmo.bilm.weights import load
from torchelmo.elmo import Elmo
from torchelmo.mix import ScalarMix

__version__ = "0.1.0"

__all__ = ["BiLM", "BiLMConfig", "Elmo", "ScalarMix", "__version__", "load", "load_official", "save_official"]
