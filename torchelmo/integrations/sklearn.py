"""ELMo as a transformer of scikit-learn: texts in, one vector for each out.

make_pipeline(ElmoVectorizer(), LogisticRegression()).fit(texts, labels)
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torchelmo.bilm.model import BiLM
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError, missing_package, short_repr
from torchelmo.formats.load import find_model
from torchelmo.sentences import Pooling, SentenceEncoder
from torchelmo.text.characters import check_tokens

try:
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise missing_package("scikit-learn", "sklearn") from error


class ElmoVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turn texts into sentence vectors, in pipelines and searches of scikit-learn.

    The biLM is loaded when it is needed, once per process, whatever the number of clones. It is not part of a pickle,
    so a pickled vectorizer is small and loads the same model again. (This does not hold for a biLM that is passed as an
    object: it is copied for every clone and pickled.)

    Args:
        model: What `torchelmo.load` takes: a model folder, or the name of a model in the package; or a biLM. Default:
            the English model in the package.
        layers: As for `SentenceEncoder`: "average", "top", "sum", "concat" or the index of a layer.
        pooling: As for `SentenceEncoder`: "mean", "max", "mean_sqrt_len_tokens", "lasttoken" or "ends".
        normalize: Scale every vector to length 1.
        remove_components: Remove the mean of the training texts and this many of their principal components; 0 removes
            the mean alone. None leaves the vectors as they are.
        lang: The language of strings, as a code of spaCy. Default: that of the model, else "en".
        precision: "float32", or "float16" for faster inference with large models.
        batch_size: The size of a batch, in texts of 64 tokens. The vectors do not depend on it.

    Attributes:
        n_features_out_: The width of the vectors.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> from torchelmo.integrations.sklearn import ElmoVectorizer
        >>> texts = ["It rained all day.", "Snow fell in the night.", "Fry the onions.", "Boil two eggs."]
        >>> model = make_pipeline(ElmoVectorizer(), LogisticRegression())
        >>> model.fit(texts, ["weather", "weather", "food", "food"]).predict(["Bake the bread."]).item()
        'food'
    """

    def __init__(
        self,
        model: BiLM | str | Path | None = None,
        *,
        layers: int | str = "average",
        pooling: Pooling = "mean",
        normalize: bool = False,
        remove_components: int | None = None,
        lang: str | None = None,
        precision: str = "float32",
        batch_size: int = 32,
    ) -> None:
        self.model = model
        self.layers = layers
        self.pooling = pooling
        self.normalize = normalize
        self.remove_components = remove_components
        self.lang = lang
        self.precision = precision
        self.batch_size = batch_size

    def fit(self, X: Any, y: Any = None) -> "ElmoVectorizer":  # noqa: N803
        """Check the settings and the texts; learn what to remove if `remove_components` is set.

        Args:
            X: Texts: a list, an array or a column of strings or token lists, also with shape (n, 1).
            y: Not used.

        Returns:
            The vectorizer itself.

        Raises:
            ConfigError: A setting has a wrong value.
            InputError: `X` is not a list of texts.
        """
        texts = _as_texts(X)
        encoder = self._encoder()
        if self.remove_components is not None:
            encoder.fit(texts, remove_components=self.remove_components, batch_size=self.batch_size)
        self.n_features_out_ = encoder.get_embedding_dimension()
        self.mean_, self.components_ = encoder.mean, encoder.components
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return the vectors of texts.

        Args:
            X: As for `fit`.

        Returns:
            An array (n_texts, n_features_out_) of float32.

        Raises:
            InputError: `X` is not a list of texts.
        """
        if self.remove_components is not None:
            check_is_fitted(self, "mean_")
        encoder = self._encoder()
        encoder.mean, encoder.components = getattr(self, "mean_", None), getattr(self, "components_", None)
        vectors: npt.NDArray[np.float32] = encoder.encode(_as_texts(X), batch_size=self.batch_size)
        return vectors

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Return the names of the columns: elmo0, elmo1 and so on.

        Args:
            input_features: Not used.

        Returns:
            An array of strings.
        """
        n = getattr(self, "n_features_out_", None) or self._encoder().get_embedding_dimension()
        return np.array([f"elmo{i}" for i in range(n)], dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return self.remove_components is None or hasattr(self, "mean_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = self.remove_components is not None
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _encoder(self) -> SentenceEncoder:
        """Return an encoder with the settings of this object, which shares its biLM with others of this process."""
        return SentenceEncoder(
            self.model if isinstance(self.model, BiLM) else _shared_elmo(self.model),
            layers=self.layers,
            pooling=self.pooling,
            normalize=self.normalize,
            lang=self.lang,
            precision=self.precision,  # type: ignore[arg-type]  # checked there
        )


def _shared_elmo(model: str | Path | None) -> Elmo:
    path = find_model(model)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    # A model that is trained again in the same folder is another model.
    return _load(path.absolute(), tuple((file.name, file.stat().st_mtime_ns) for file in files if file.is_file()))


@lru_cache(maxsize=2)
def _load(path: Path, stamp: tuple[tuple[str, int], ...]) -> Elmo:
    return Elmo(path)


def _as_texts(X: Any) -> list[Any]:  # noqa: N803
    """Return the texts of a list, an array or a column, also of shape (n, 1)."""
    if isinstance(X, (str, bytes, Mapping)) or not isinstance(X, Iterable):
        raise InputError(f"ElmoVectorizer: expected a list of texts, got {short_repr(X)}.")
    shape: tuple[int, ...] = tuple(getattr(X, "shape", ()))
    if len(shape) == 2:
        if shape[1] != 1:
            raise InputError(
                f"ElmoVectorizer: expected one column of texts, got an array of shape {shape}. "
                "Choose a column, for example with a ColumnTransformer."
            )
        X = np.asarray(X, dtype=object).reshape(-1)  # noqa: N806
    texts = [list(text) if isinstance(text, np.ndarray) else text for text in X]
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            check_tokens(text, i, expected="a string or a list of tokens")
    return texts
