"""Run programs that import AllenNLP's ELMo without AllenNLP: `install` puts its names into `sys.modules`."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torchelmo.compat.allennlp.bilm import ElmoBiLm, ElmoCharacterEncoder, ElmoLstm
from torchelmo.compat.allennlp.elmo import Elmo, ElmoTokenEmbedder, ScalarMix, batch_to_ids
from torchelmo.compat.allennlp.embedder import DEFAULT_BATCH_SIZE, ElmoEmbedder
from torchelmo.text.characters import CharacterEncoder

_S3 = "https://s3-us-west-2.amazonaws.com/allennlp/models/elmo/2x4096_512_2048cnn_2xhighway/"
DEFAULT_OPTIONS_FILE = f"{_S3}elmo_2x4096_512_2048cnn_2xhighway_options.json"
DEFAULT_WEIGHT_FILE = f"{_S3}elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5"


class ELMoCharacterMapper:
    """AllenNLP's map from a word to its 50 character ids."""

    max_word_length = 50
    beginning_of_sentence_character = 256
    end_of_sentence_character = 257
    beginning_of_word_character = 258
    end_of_word_character = 259
    padding_character = 260
    bos_token = "<S>"
    eos_token = "</S>"

    def __init__(self, tokens_to_add: dict[str, int] | None = None) -> None:
        self.tokens_to_add = tokens_to_add or {}

    def convert_word_to_char_ids(self, word: str) -> list[int]:
        """Return the 50 ids of a word.

        >>> ELMoCharacterMapper().convert_word_to_char_ids("a")[:5]
        [259, 98, 260, 261, 261]
        """
        if word in self.tokens_to_add:
            ids = [self.padding_character] * self.max_word_length
            ids[:3] = [self.beginning_of_word_character, self.tokens_to_add[word], self.end_of_word_character]
            return [i + 1 for i in ids]
        converted: list[int] = CharacterEncoder()(word).tolist()
        return converted


_ELMO = {
    "Elmo": Elmo,
    "batch_to_ids": batch_to_ids,
    "_ElmoBiLm": ElmoBiLm,
    "_ElmoCharacterEncoder": ElmoCharacterEncoder,
    "ScalarMix": ScalarMix,
    "ElmoLstm": ElmoLstm,
    "ELMoCharacterMapper": ELMoCharacterMapper,
}
_EMBEDDER = {
    "ElmoEmbedder": ElmoEmbedder,
    "DEFAULT_OPTIONS_FILE": DEFAULT_OPTIONS_FILE,
    "DEFAULT_WEIGHT_FILE": DEFAULT_WEIGHT_FILE,
    "DEFAULT_BATCH_SIZE": DEFAULT_BATCH_SIZE,
}
_MODULES: dict[str, dict[str, Any]] = {
    "allennlp": {"__version__": "0.9.0"},  # the last version with ElmoEmbedder
    "allennlp.commands": {},
    "allennlp.commands.elmo": _EMBEDDER,
    "allennlp.modules": {"Elmo": Elmo, "ScalarMix": ScalarMix},
    "allennlp.modules.elmo": _ELMO,
    "allennlp.modules.elmo_lstm": {"ElmoLstm": ElmoLstm},
    "allennlp.modules.scalar_mix": {"ScalarMix": ScalarMix},
    "allennlp.modules.token_embedders": {"ElmoTokenEmbedder": ElmoTokenEmbedder},
    "allennlp.modules.token_embedders.elmo_token_embedder": {"ElmoTokenEmbedder": ElmoTokenEmbedder},
    "allennlp.data": {},
    "allennlp.data.token_indexers": {},
    "allennlp.data.token_indexers.elmo_indexer": {"ELMoCharacterMapper": ELMoCharacterMapper},
}


def install() -> bool:
    """Put AllenNLP's ELMo names into `sys.modules`, so that programs written for AllenNLP run unchanged.

    These modules can be imported afterwards, with ELMo's names in them: `allennlp.commands.elmo`,
    `allennlp.modules.elmo`, `allennlp.modules.scalar_mix`, `allennlp.modules.token_embedders` and
    `allennlp.data.token_indexers.elmo_indexer`. Other modules of AllenNLP are not there. Nothing is changed if AllenNLP
    is installed.

    Returns:
        Whether the names are torchelmo's. False if AllenNLP is installed.

    Example:
        >>> from torchelmo.compat.allennlp import install
        >>> if install():
        ...     from allennlp.modules.elmo import Elmo, batch_to_ids
    """
    if "allennlp" in sys.modules:
        return hasattr(sys.modules["allennlp"], "__torchelmo__")
    if importlib.util.find_spec("allennlp") is not None:
        return False
    for name, content in _MODULES.items():
        module = ModuleType(name, "AllenNLP's ELMo, as torchelmo provides it.")
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        module.__dict__.update(content, __torchelmo__=True)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    sys.meta_path.append(_OtherModules())
    return True


class _OtherModules(importlib.abc.MetaPathFinder):
    """Explain why other modules of AllenNLP are not there."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name.startswith("allennlp."):
            known = ", ".join(module for module, content in _MODULES.items() if content and module != "allennlp")
            raise ModuleNotFoundError(
                f"No module named {name!r}: AllenNLP is not installed, and torchelmo provides its ELMo only: {known}.",
                name=name,
            )
