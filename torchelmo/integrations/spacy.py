"""ELMo as a component of spaCy pipelines: `nlp.add_pipe("elmo")` fills `doc.tensor` with contextual vectors.

spaCy finds the component through an entry point of the installed package, so that nothing needs to be imported.
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Union

import numpy as np
import numpy.typing as npt
import srsly  # type: ignore[import-untyped]
from spacy.language import Language
from spacy.tokens import Doc, Span, Token

from torchelmo.bilm.model import BiLM
from torchelmo.elmo import Elmo
from torchelmo.embedder import EmbedSettings
from torchelmo.errors import ConfigError, InputError, short_repr
from torchelmo.files import parse_json, read_json, write_json
from torchelmo.formats.load import PRETRAINED, load
from torchelmo.runtime import choose_device
from torchelmo.sentences import check_layers
from torchelmo.text.batching import windows

_SETTINGS = {
    "model": None,
    "layers": "average",
    "batch_tokens": 2048,
    "device": "auto",
    "hooks": True,
    "user_data": False,
}
_CARD = "elmo.json"  # says whether the model is stored beside it
_MODEL_FILES = ("config.json", "model.safetensors", "vocab.txt", "symbols.json")


@Language.factory("elmo", default_config=_SETTINGS, assigns=["doc.tensor"])
def make_elmo(
    nlp: Language,
    name: str,
    model: str | None,
    layers: Union[int, str],  # noqa: UP007  (spaCy's schema wants typing.Union)
    batch_tokens: int,
    device: str,
    hooks: bool,
    user_data: bool,
) -> "ElmoComponent":
    """Build the component, for `nlp.add_pipe("elmo", config={...})`."""
    return ElmoComponent(
        name, model=model, layers=layers, batch_tokens=batch_tokens, device=device, hooks=hooks, user_data=user_data
    )


class ElmoComponent:
    """Compute the vectors of the tokens of a `Doc`, with spaCy's own tokens.

    `doc.tensor` becomes an array (n_tokens, dim), and `vector` and `similarity` of the doc, its spans and its tokens
    use it. Tokens of white space, which a biLM never sees, have vectors of 0. If the pipeline sets the boundaries of
    sentences before this component, each sentence is run alone; otherwise the whole doc is one sentence.

    The model is loaded when it is first needed.

    Args:
        name: The name of the component in its pipeline.
        model: What `torchelmo.load` takes: a model folder, or the name of a model in the package. Default: the English
            model in the package.
        layers: "average", "top", "sum" or "concat" of all layers, or the index of a layer, 0 being the token layer.
        batch_tokens: How many tokens run at once.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "mps".
        hooks: Make `vector` and `similarity` use `doc.tensor`. spaCy warns of such hooks when a doc is written to
            bytes; False avoids that, but then `similarity` is 1 for any two tokens with the same text.
        user_data: Put the vectors into `doc.user_data["elmo"]`, too. A `DocBin` does not store `doc.tensor`, but with
            `store_user_data=True` it stores this; `restore` sets `doc.tensor` again.

    Raises:
        ConfigError: A setting has a wrong value.

    Example:
        >>> import spacy
        >>> nlp = spacy.blank("en")
        >>> elmo = nlp.add_pipe("elmo")
        >>> doc = nlp("I took a bow. The bow of a violin")
        >>> doc.tensor.shape, doc[3].vector.shape
        ((10, 384), (384,))
        >>> 0 < doc[3].similarity(doc[6]) < 0.99  # two senses of "bow"
        True
    """

    def __init__(
        self,
        name: str = "elmo",
        *,
        model: str | None = None,
        layers: int | str = "average",
        batch_tokens: int = 2048,
        device: str = "auto",
        hooks: bool = True,
        user_data: bool = False,
    ) -> None:
        EmbedSettings(batch_tokens=batch_tokens)  # checks it
        self.name, self.model, self.layers, self.batch_tokens = name, model, layers, batch_tokens
        self.hooks, self.user_data = hooks, user_data
        self.device = choose_device(device)
        self._elmo: Elmo | None = None

    @property
    def elmo(self) -> Elmo:
        """The model, which is loaded at the first use."""
        if self._elmo is None:
            self._use(load(self.model))
        assert self._elmo is not None
        return self._elmo

    def __call__(self, doc: Doc) -> Doc:
        """Set `doc.tensor`."""
        self._embed([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Set the tensors of many docs, `batch_size` docs at a time."""
        for docs in windows(stream, batch_size):
            self._embed(docs)
            yield from docs

    def restore(self, doc: Doc) -> Doc:
        """Restore what spaCy does not store: the hooks, and the tensor of a doc from a `DocBin` if it has user data.

        Args:
            doc: A doc that was read from bytes, from a file or from a `DocBin`.

        Returns:
            The doc, whose vectors and similarities are those of `doc.tensor` again.

        Raises:
            InputError: The doc has neither a tensor nor the user data "elmo".
        """
        if len(doc) and not doc.tensor.size:
            if "elmo" not in doc.user_data:
                raise InputError(
                    "elmo: expected a doc with a tensor, or with user_data['elmo'] (the setting user_data, and "
                    "DocBin(store_user_data=True)); found neither. Apply the component to the doc again."
                )
            doc.tensor = doc.user_data["elmo"]
        for hooks, vector in (
            (doc.user_hooks, _doc_vector),
            (doc.user_span_hooks, _span_vector),
            (doc.user_token_hooks, _token_vector),
        ):
            hooks["vector"], hooks["has_vector"], hooks["similarity"] = vector, _has_vector, _cosine
        return doc

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """Write the component, and its model unless that is a model of the package."""
        path = Path(path)
        stored = not self._is_in_package()
        if stored:
            self.elmo.bilm.save(path / "model")
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / _CARD, {"model_is_stored": stored})

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> "ElmoComponent":
        """Read what `to_disk` wrote.

        Raises:
            ConfigError: A file has a wrong content.
            MissingFileError: A file is missing.
            WeightsError: The weights are damaged.
        """
        path = Path(path)
        if _model_is_stored(read_json(path / _CARD, "the card of an ELMo component", max_bytes=2**16), path / _CARD):
            self._use(load((path / "model").absolute()))
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """Return the component as bytes, with its model unless that is a model of the package."""
        with tempfile.TemporaryDirectory() as folder:
            self.to_disk(folder)
            files = [file for file in Path(folder).rglob("*") if file.is_file()]
            result: bytes = srsly.msgpack_dumps({file.name: file.read_bytes() for file in files})
        return result

    def from_bytes(self, data: bytes, *, exclude: Iterable[str] = ()) -> "ElmoComponent":
        """Read what `to_bytes` returned.

        Raises:
            InputError: The bytes are not those of an ELMo component.
            ConfigError: A file in them has a wrong content.
            WeightsError: The weights are damaged.
        """
        try:
            files = srsly.msgpack_loads(data)
        except Exception as error:  # srsly raises many kinds
            raise InputError(f"elmo: expected the bytes of an ELMo component: {error}.") from error
        known = {_CARD, *_MODEL_FILES}
        if not isinstance(files, dict) or not {_CARD} <= files.keys() <= known:
            raise InputError(f"elmo: expected the files {', '.join(sorted(known))}, found {short_repr(files)}.")
        if _model_is_stored(parse_json(files.pop(_CARD), _CARD), _CARD):
            with tempfile.TemporaryDirectory() as folder:
                for name, content in files.items():
                    (Path(folder) / name).write_bytes(content)
                bilm = load(folder)
            bilm.source = f"the model of the component {self.name!r}"
            self._use(bilm)
        return self

    def _use(self, bilm: BiLM) -> None:
        check_layers(self.layers, bilm.config.n_layers + 1)
        self._elmo = Elmo(bilm).to(self.device)

    def _is_in_package(self) -> bool:
        return self.model is None or ("/" not in self.model and (PRETRAINED / self.model / "config.json").is_file())

    def _embed(self, docs: list[Doc]) -> None:
        elmo = self.elmo
        parts = [part for doc in docs for part in _parts(doc)]
        vectors = elmo.stream(
            [[token.text for token in part] for part in parts],
            layers=self.layers,  # type: ignore[arg-type]  # checked with the model
            batch_tokens=self.batch_tokens,
        )
        dim = elmo.dim * (elmo.bilm.config.n_layers + 1 if self.layers == "concat" else 1)
        for doc in docs:
            doc.tensor = np.zeros((len(doc), dim), dtype=np.float32)
            if self.user_data:
                doc.user_data["elmo"] = doc.tensor  # the same array, not a copy
            if self.hooks:
                self.restore(doc)
        for part, found in zip(parts, vectors, strict=True):
            part[0].doc.tensor[[token.i for token in part]] = found


def _parts(doc: Doc) -> list[list[Token]]:
    """Return the tokens of every sentence without white space; sentences of white space are left out."""
    sentences = doc.sents if doc.has_annotation("SENT_START") else [doc]
    parts = [[token for token in sentence if not token.is_space] for sentence in sentences]
    return [part for part in parts if part]


def _model_is_stored(card: Any, where: str | Path) -> bool:
    if not isinstance(card, dict) or not isinstance(card.get("model_is_stored"), bool):
        raise ConfigError(f"{where}: expected model_is_stored, true or false; found {short_repr(card)}.")
    return bool(card["model_is_stored"])


def _doc_vector(doc: Doc) -> npt.NDArray[np.float32]:
    vector: npt.NDArray[np.float32] = doc.tensor.mean(axis=0) if len(doc) else np.zeros(doc.tensor.shape[-1], "f")
    return vector


def _span_vector(span: Span) -> npt.NDArray[np.float32]:
    tensor = span.doc.tensor[span.start : span.end]
    vector: npt.NDArray[np.float32] = tensor.mean(axis=0) if len(tensor) else np.zeros(tensor.shape[-1], "f")
    return vector


def _token_vector(token: Token) -> npt.NDArray[np.float32]:
    vector: npt.NDArray[np.float32] = token.doc.tensor[token.i]
    return vector


def _has_vector(item: Any) -> bool:
    return bool(item.vector.any())


def _cosine(one: Any, other: Any) -> float:
    """Return the cosine of two vectors; 0 if one of them is 0 or has another width."""
    try:
        first, second = one.vector, other.vector
    except ValueError:  # a word of a vocabulary without vectors
        return 0.0
    norm = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / norm if norm and first.shape == second.shape else 0.0
