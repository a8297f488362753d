"""Language models: prepare text, train and fine-tune a biLM, and use its predictions.

prepare           text files -> a corpus folder
pretrain          train a biLM on a corpus folder
fine_tune         continue training a biLM on other text
perplexity        how well a model predicts sentences
surprisal         bits of information of every token
substitutes       the words that a model expects at each position
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchelmo.lm.config import PretrainConfig
    from torchelmo.lm.corpus import Corpus
    from torchelmo.lm.finetune import fine_tune
    from torchelmo.lm.loop import pretrain
    from torchelmo.lm.predict import perplexity, substitutes, surprisal
    from torchelmo.lm.preparation import prepare
    from torchelmo.lm.stream import Stream

__all__ = [
    "Corpus",
    "PretrainConfig",
    "Stream",
    "fine_tune",
    "perplexity",
    "prepare",
    "pretrain",
    "substitutes",
    "surprisal",
]

# Imported at first use: settings can be read without PyTorch, which takes seconds to import.
_HOMES = {
    "Corpus": "torchelmo.lm.corpus",
    "PretrainConfig": "torchelmo.lm.config",
    "Stream": "torchelmo.lm.stream",
    "fine_tune": "torchelmo.lm.finetune",
    "perplexity": "torchelmo.lm.predict",
    "prepare": "torchelmo.lm.preparation",
    "pretrain": "torchelmo.lm.loop",
    "substitutes": "torchelmo.lm.predict",
    "surprisal": "torchelmo.lm.predict",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
