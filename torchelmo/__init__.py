"""ELMo: deep contextual word vectors. text → characters → token vectors → biLM layers → mix → task."""

from typing import TYPE_CHECKING

from torchelmo.lazy import lazy_exports

if TYPE_CHECKING:
    from torchelmo.bilm.config import BiLMConfig
    from torchelmo.bilm.model import BiLM
    from torchelmo.elmo import Elmo
    from torchelmo.formats.load import load
    from torchelmo.formats.official import load_official, save_official
    from torchelmo.mix import ScalarMix
    from torchelmo.sentences import SentenceEncoder

__version__ = "0.1.0"

__all__ = [
    "BiLM",
    "BiLMConfig",
    "Elmo",
    "ScalarMix",
    "SentenceEncoder",
    "__version__",
    "load",
    "load_official",
    "save_official",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BiLM": "bilm.model",
        "BiLMConfig": "bilm.config",
        "Elmo": "elmo",
        "ScalarMix": "mix",
        "SentenceEncoder": "sentences",
        "load": "formats.load",
        "load_official": "formats.official",
        "save_official": "formats.official",
    },
)
