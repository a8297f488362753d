"""Language models: prepare text, train and fine-tune a biLM, and use its predictions.

prepare           text files -> a corpus folder
pretrain          train a biLM on a corpus folder
fine_tune         continue training a biLM on other text
perplexity        how well a model predicts sentences
pseudo_perplexity how well a model predicts every word from all others
surprisal         bits of information of every token
substitutes       the words that a model expects at each position
Scorer            scores of tokens, words and sequences, with the method names of minicons
"""

from typing import TYPE_CHECKING

from torchelmo.lazy import lazy_exports

if TYPE_CHECKING:
    from torchelmo.lm.cloze import pseudo_perplexity, substitutes
    from torchelmo.lm.config import PretrainConfig
    from torchelmo.lm.corpus import Corpus
    from torchelmo.lm.finetune import fine_tune
    from torchelmo.lm.loop import pretrain
    from torchelmo.lm.predict import perplexity, surprisal
    from torchelmo.lm.preparation import prepare
    from torchelmo.lm.scorer import Scorer
    from torchelmo.lm.stream import Stream

__all__ = [
    "Corpus",
    "PretrainConfig",
    "Scorer",
    "Stream",
    "fine_tune",
    "perplexity",
    "prepare",
    "pretrain",
    "pseudo_perplexity",
    "substitutes",
    "surprisal",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Corpus": "lm.corpus",
        "PretrainConfig": "lm.config",
        "Scorer": "lm.scorer",
        "Stream": "lm.stream",
        "fine_tune": "lm.finetune",
        "perplexity": "lm.predict",
        "prepare": "lm.preparation",
        "pretrain": "lm.loop",
        "pseudo_perplexity": "lm.cloze",
        "substitutes": "lm.cloze",
        "surprisal": "lm.predict",
    },
)
