"""Surprisal: −log2 p of every token given what stands before it, and given what stands after it."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from torchelmo.bilm.model import BiLM
from torchelmo.train.predict import Sentence, State, scores


class Surprisal(NamedTuple):
    """Bits for each of the n tokens of a sentence; None for a direction that the model lacks."""

    tokens: Sentence
    forward: npt.NDArray[np.float64] | None  # (n,): given the tokens before it
    backward: npt.NDArray[np.float64] | None  # (n,): given the tokens after it
    in_vocabulary: npt.NDArray[np.bool_]  # (n,): where false, the bits are those of <UNK>


def surprisal(
    bilm: BiLM, sentences: Iterable[Sentence], *, state: State = "reset", batch_tokens: int = 2048
) -> Iterator[Surprisal]:
    """One result for every sentence that has a token, in order; sentences are read as they are needed."""
    for found in scores(bilm, sentences, state=state, batch_tokens=batch_tokens):
        # What closes a sentence is not one of its tokens: </S> stands last forward, <S> first backward.
        yield Surprisal(found.tokens, _bits(found.forward, 0), _bits(found.backward, 1), found.known)


def _bits(log_p: Tensor | None, first: int) -> npt.NDArray[np.float64] | None:
    if log_p is None:
        return None
    bits: npt.NDArray[np.float64] = -log_p[first : len(log_p) - 1 + first].numpy() / math.log(2)
    return bits
