"""The class of simple_elmo, without TensorFlow: the same methods, shapes and attributes.

docs/how-to/move-from-simple-elmo.md lists the differences in the results.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from torchelmo.elmo import Elmo
from torchelmo.errors import ConfigError, InputError, WrongCallError
from torchelmo.formats.load import load
from torchelmo.lm.predict import contexts, language_model
from torchelmo.text.characters import check_tokens
from torchelmo.text.vocabulary import BEGIN, END, Vocabulary

Vectors = npt.NDArray[np.float64]
Layers = Literal["average", "top", "all"]
log = logging.getLogger(__name__)


class ElmoModel:
    """simple_elmo's model: load files, then compute vectors and substitutes.

    Attributes:
        batch_size: The number of sentences in a batch, from `load`.
        max_chars: The number of character ids of a word.
        vector_size: The width of a vector.
        n_layers: The number of layers, the token layer included.
        vocab: The words of the softmax; None without `full=True`.
        elmo: The `torchelmo.Elmo` that computes the vectors.

    Example:
        >>> model = ElmoModel()
        >>> model.load("english-small")
        'The model is now loaded.'
        >>> model.get_elmo_vectors([["I", "took", "a", "bow"], ["bow"]]).shape
        (2, 4, 384)
    """

    def __init__(self) -> None:
        self.batch_size: int | None = None
        self.max_chars: int | None = None
        self.vector_size: int | None = None
        self.n_layers: int | None = None
        self.vocab: Vocabulary | None = None
        self.elmo: Elmo | None = None
        self.logger = log

    def load(self, directory: str | Path, max_batch_size: int = 32, limit: int = 100, full: bool = False) -> str:
        """Load a model.

        Args:
            directory: A folder or an archive with a model, or anything else that `torchelmo.load` takes.
            max_batch_size: The number of sentences in a batch. The vectors do not depend on it.
            limit: Ignored: every word is encoded once.
            full: Whether the model is used for substitutes: it must have a softmax, as a TensorFlow checkpoint does.

        Returns:
            "The model is now loaded.", as simple_elmo does.

        Raises:
            ConfigError: `max_batch_size` is less than 1.
            InputError: `full` was asked for, and the model has no softmax.
            MissingFileError: There is no such model.
        """
        if max_batch_size < 1:
            raise ConfigError(f"max_batch_size: expected at least 1 sentence, got {max_batch_size}.")
        bilm = load(directory)
        if full:
            _, self.vocab = language_model(bilm)
        self.elmo = Elmo(bilm).eval()
        self.batch_size = max_batch_size
        self.max_chars = bilm.config.max_characters
        self.vector_size, self.n_layers = bilm.config.dim, bilm.config.n_layers + 1
        return "The model is now loaded."

    def get_elmo_vectors(
        self,
        texts: Sequence[Sequence[str]],
        warmup: bool = True,
        layers: Layers = "average",
        session: Any = None,
    ) -> Vectors:
        """Return the vectors of all words.

        Args:
            texts: Sentences, each a list of words.
            warmup: Ignored: every sentence starts from zero state, so there is nothing to warm up.
            layers: "average", "top" or "all".
            session: Ignored: there is no TensorFlow.

        Returns:
            (n_texts, longest, vector_size), or (n_texts, n_layers, longest, vector_size) for "all", 0 behind the last
            word of a sentence.

        Raises:
            InputError: A sentence is not a list of strings.
            WrongCallError: No model is loaded.
        """
        arrays = self._embed(texts, layers)
        longest = max((array.shape[-2] for array in arrays), default=0)
        leading = (self.n_layers,) if layers == "all" else ()
        vectors = np.zeros((len(arrays), *leading, longest, self.vector_size))
        for row, array in zip(vectors, arrays):
            row[..., : array.shape[-2], :] = array
        return vectors

    def get_elmo_vector_average(
        self,
        texts: Sequence[Sequence[str]],
        warmup: bool = True,
        layers: Layers = "average",
        session: Any = None,
    ) -> Vectors:
        """Return one vector of length 1 for each sentence: the mean of the vectors of its words.

        Args:
            texts: Sentences, each a list of words.
            warmup: Ignored.
            layers: "average", "top" or "all".
            session: Ignored.

        Returns:
            (n_texts, vector_size), or (n_texts, n_layers, vector_size) for "all", whose layers together have the length
            1. The vector of a sentence without words is 0.

        Raises:
            InputError: A sentence is not a list of strings.
            WrongCallError: No model is loaded.
        """
        arrays = self._embed(texts, layers)
        leading = (self.n_layers,) if layers == "all" else ()
        averages = np.zeros((len(arrays), *leading, self.vector_size))
        for row, array in zip(averages, arrays):
            if array.shape[-2]:
                mean = array.mean(axis=-2, dtype=np.float64)
                row[...] = mean / np.linalg.norm(mean)
        return averages

    def get_elmo_substitutes(
        self, data: Sequence[str], topn: int = 3, nodelimiters: bool = True
    ) -> list[list[dict[str, Any]]]:
        """Return the most probable words in the place of every word, by each direction of the model.

        Args:
            data: Sentences as strings, with spaces between the words.
            topn: The number of words.
            nodelimiters: Leave out `<S>` and `</S>`.

        Returns:
            For each sentence a list with a dictionary for each word: "word", and under "forward" and "backward" the
            "candidates" (their numbers in the vocabulary), the "candidate_words" and their "logp", the natural
            logarithm of the probability. The most probable one comes first.

        Raises:
            InputError: The model has no softmax, or a sentence is not a string.
            WrongCallError: No model is loaded.
        """
        bilm = self._loaded().bilm
        softmax, vocabulary = language_model(bilm)
        for position, text in enumerate(data):
            if not isinstance(text, str):
                raise InputError(f"Sentence {position}: expected a string, got {type(text).__name__}. Join its words.")
        if topn < 1:
            raise ConfigError(f"topn: expected at least 1, got {topn}.")
        marks = torch.from_numpy(vocabulary.ids([BEGIN, END]))
        sentences = [text.split() for text in data]
        found = contexts(bilm, (words for words in sentences if words))
        predictions: list[list[dict[str, Any]]] = []
        for words in sentences:
            entries: list[dict[str, Any]] = [{"word": word} for word in words]
            predictions.append(entries)
            if not words:
                continue
            _, vectors = next(found)
            for direction, rows in (
                ("forward", None if vectors.forward is None else vectors.forward[:-1]),
                ("backward", None if vectors.backward is None else vectors.backward[1:]),
            ):
                if rows is None:
                    continue
                with torch.no_grad():
                    log_p = softmax(rows).cpu()
                if nodelimiters:
                    log_p[:, marks] = -torch.inf
                best = log_p.topk(min(topn, log_p.shape[-1]))
                for entry, ids, values in zip(entries, best.indices.tolist(), best.values.double().numpy()):
                    entry[direction] = {
                        "candidates": ids,
                        "candidate_words": [vocabulary[i] for i in ids],
                        "logp": np.round(values, 4).tolist(),
                    }
        return predictions

    def warmup(self, sess: Any, texts: Any) -> None:
        """Do nothing: every sentence starts from zero state."""

    def _embed(self, texts: Sequence[Sequence[str]], layers: Layers) -> list[npt.NDArray[np.float32]]:
        elmo = self._loaded()
        if layers not in ("average", "top", "all"):
            raise ConfigError(f"layers: expected 'average', 'top' or 'all', got {layers!r}.")
        for position, text in enumerate(texts):
            check_tokens(text, position)
        return elmo.embed(texts, layers)

    def _loaded(self) -> Elmo:
        if self.elmo is None:
            raise WrongCallError("ElmoModel: expected a loaded model, found none. Call load first.")
        return self.elmo
