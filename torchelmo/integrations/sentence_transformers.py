"""ELMo as the first module of a `SentenceTransformer`, which can be trained with its trainer and losses.

SentenceTransformer(modules=[elmo := ElmoModule(), Pooling(elmo.get_embedding_dimension(), "mean")])
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torchelmo.bilm.model import BiLM
from torchelmo.config import Config, build_config, config_to_dict
from torchelmo.elmo import Elmo
from torchelmo.embedder import split_text
from torchelmo.errors import ConfigError, InputError, missing_package, short_repr
from torchelmo.files import atomic_write, read_json
from torchelmo.formats.load import load
from torchelmo.mix import ScalarMix
from torchelmo.tensors import read_tensors, write_tensors

try:
    from sentence_transformers.base.modules import InputModule
except ImportError as error:
    raise missing_package("sentence-transformers (6 or later)", "sentence-transformers") from error

FORMAT = 1
_CONFIG_FILE, _MIX_FILE = "elmo_module.json", "mix.safetensors"


@dataclass(frozen=True)
class _ModuleConfig(Config):
    """The content of elmo_module.json."""

    format: int = FORMAT
    lang: str | None = None
    freeze: bool = False


class ElmoModule(InputModule):  # type: ignore[misc] # the package has no types here
    """Compute contextual vectors of the tokens of texts, to be pooled by the next module.

    The vectors are a learned mix of all layers, which before training is their average. As in `Elmo.embed`, a text is
    split into sentences, which run separately.

    Args:
        model: What `torchelmo.load` takes: a model folder, or the name of a model in the package; or a biLM. Default:
            the English model in the package.
        lang: The language of the texts, as a code of spaCy. Default: that of the model, else "en".
        freeze: Train only the mix and later modules, not the biLM.

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from sentence_transformers.sentence_transformer.modules import Pooling
        >>> from torchelmo.integrations.sentence_transformers import ElmoModule
        >>> elmo = ElmoModule()
        >>> model = SentenceTransformer(modules=[elmo, Pooling(elmo.get_embedding_dimension(), "mean")], device="cpu")
        >>> model.encode(["I took a bow.", "Rain"]).shape
        (2, 384)
    """

    save_in_root = False  # the root has a config.json of sentence-transformers

    def __init__(
        self, model: BiLM | str | Path | None = None, *, lang: str | None = None, freeze: bool = False
    ) -> None:
        super().__init__()
        bilm = model if isinstance(model, BiLM) else load(model)
        self.elmo = Elmo(bilm, dropout=0.0, freeze=freeze)
        self.lang = lang or bilm.lang or "en"

    def get_embedding_dimension(self) -> int:
        """Return the width of the vectors."""
        return self.elmo.dim

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Split texts into tokens, and return their ids.

        Args:
            inputs: The texts.
            prompt: Text to put before each of them.
            kwargs: Arguments for other modules, which are not used.

        Returns:
            `input_ids` (n_texts, longest, max_characters), 0 at padded positions; `attention_mask` (n_texts, longest);
            `sentence_ids` (n_texts, longest), the number of its sentence for each token.

        Raises:
            InputError: An input is not a string.
        """
        for text in inputs:
            if not isinstance(text, str):
                raise InputError(f"ElmoModule: expected texts, got {short_repr(text)}.")
        texts = [split_text((prompt or "") + text, i, self.lang) for i, text in enumerate(inputs)]
        ids = self.elmo.bilm.token_ids([[token for sentence in text for token in sentence] for text in texts]).cpu()
        sentence_ids = torch.zeros(ids.shape[:2], dtype=torch.int64)
        mask = torch.zeros(ids.shape[:2], dtype=torch.int64)
        for row, sentences in enumerate(texts):
            numbers = [i for i, sentence in enumerate(sentences) for _ in sentence]
            sentence_ids[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
            mask[row, : len(numbers)] = 1
        return {"input_ids": ids, "attention_mask": mask, "sentence_ids": sentence_ids}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add `token_embeddings` (n_texts, longest, dim), and `all_layer_embeddings`, one such tensor per layer."""
        mask = features["attention_mask"].bool()
        ids, lengths = features["input_ids"][mask], _sentence_lengths(features["sentence_ids"], mask)
        layers = mask.new_zeros(self.elmo.bilm.config.n_layers + 1, *mask.shape, self.elmo.dim, dtype=torch.float32)
        if lengths:
            rows = pad_sequence(ids.split(lengths), batch_first=True)  # (n_sentences, longest, max_characters)
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.elmo.freeze):
                out = self.elmo.bilm(rows)
            real = torch.arange(rows.shape[1], device=mask.device) < torch.tensor(lengths, device=mask.device)[:, None]
            layers = layers.to(out.layers.dtype).index_put(
                (
                    torch.arange(len(layers), device=mask.device)[:, None],
                    *(i[None] for i in mask.nonzero(as_tuple=True)),
                ),
                out.layers[:, :, 1:-1][:, real],
            )
        (mixed,), _ = self.elmo.mix_layers(layers, mask)
        features |= {"token_embeddings": mixed, "all_layer_embeddings": list(layers), "attention_mask": mask.long()}
        return features

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the biLM, the mix and the settings to a folder; called by `SentenceTransformer.save`."""
        folder = Path(output_path)
        self.elmo.bilm.save(folder)
        write_tensors(folder / _MIX_FILE, self.elmo.mixes[0].state_dict())
        config = _ModuleConfig(lang=self.lang, freeze=self.elmo.freeze)
        with atomic_write(folder / _CONFIG_FILE) as temporary:
            temporary.write_text(json.dumps(config_to_dict(config), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> "ElmoModule":
        """Read what `save` wrote; called by `SentenceTransformer`.

        Raises:
            ConfigError: A setting has a wrong value.
            MissingFileError: A file is missing.
            WeightsError: The weights are damaged.
        """
        found = cls.load_dir_path(
            model_name_or_path,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        folder = Path(found or model_name_or_path).absolute()
        path = folder / _CONFIG_FILE
        config = build_config(_ModuleConfig, read_json(path, "the settings of an ElmoModule"), where=str(path))
        if config.format != FORMAT:
            raise ConfigError(f"{path}: expected format {FORMAT}, found {config.format}. Update torchelmo to read it.")
        module = cls(folder, lang=config.lang, freeze=config.freeze)
        mix: ScalarMix = module.elmo.mixes[0]
        shapes = {name: tuple(tensor.shape) for name, tensor in mix.state_dict().items()}
        mix.load_state_dict(read_tensors(folder / _MIX_FILE, shapes, what="the weights of a mix"))
        return module


def _sentence_lengths(sentence_ids: Tensor, mask: Tensor) -> list[int]:
    """Return the number of tokens of every sentence of every text, in the order of the tokens."""
    rows = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)
    pairs = torch.stack([rows[mask], sentence_ids[mask]])
    lengths: list[int] = torch.unique_consecutive(pairs, dim=1, return_counts=True)[1].tolist()
    return lengths
