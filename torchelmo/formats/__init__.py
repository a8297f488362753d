"""Models in all formats: describe and list them, and share them on the Hugging Face hub. `torchelmo.load` reads them.

`published_models` is the registry behind `torchelmo models`. `BiLM.from_pretrained`, `save_pretrained` and
`push_to_hub` are methods with the arguments of the functions here.
"""

from typing import TYPE_CHECKING

from torchelmo.lazy import lazy_exports

if TYPE_CHECKING:
    from torchelmo.bilm.folder import MixWeights
    from torchelmo.formats.convert import describe
    from torchelmo.formats.hub import model_card, push_to_hub, save_pretrained
    from torchelmo.formats.load import from_pretrained
    from torchelmo.formats.registry import PublishedModel, published_models

__all__ = [
    "MixWeights",
    "PublishedModel",
    "describe",
    "from_pretrained",
    "model_card",
    "published_models",
    "push_to_hub",
    "save_pretrained",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "MixWeights": "bilm.folder",
        "PublishedModel": "formats.registry",
        "describe": "formats.convert",
        "from_pretrained": "formats.load",
        "model_card": "formats.hub",
        "published_models": "formats.registry",
        "push_to_hub": "formats.hub",
        "save_pretrained": "formats.hub",
    },
)
