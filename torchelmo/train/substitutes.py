"""Substitutes: the words that both directions expect at a place, whatever stands there.

p(w) ∝ p(w | what stands before) · p(w | what stands after)
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from torchelmo.bilm.model import BiLM
from torchelmo.errors import ConfigError, InputError
from torchelmo.text.vocabulary import BEGIN, END, UNKNOWN
from torchelmo.train.predict import Sentence, contexts, language_model


class Substitute(NamedTuple):
    word: str
    probability: float  # over the words of the vocabulary, the marks left out


def substitutes(
    bilm: BiLM, sentence: Sentence, positions: Sequence[int] | None = None, *, top: int = 10
) -> list[list[Substitute]]:
    """For each of the `positions` (counted from 0; else all), the `top` likeliest words, likeliest first."""
    softmax, vocabulary = language_model(bilm)
    if top < 1:
        raise ConfigError(f"top: expected at least 1, got {top}.")
    wanted = list(range(len(sentence))) if positions is None else list(positions)
    for position in wanted:
        if not 0 <= position < len(sentence):
            raise InputError(
                f"substitutes: expected a position from 0 to {len(sentence) - 1}, got {position}: "
                f"the sentence has {len(sentence)} tokens."
            )
    if not wanted:
        return []
    (_, (forward, backward)), *_ = contexts(bilm, [sentence])
    marks = torch.from_numpy(vocabulary.ids([BEGIN, END, UNKNOWN]))
    found = []
    for position in wanted:
        # Row k expects token k forward (counted from 0); backward, row 0 expects <S>.
        rows = [x[place] for x, place in ((forward, position), (backward, position + 1)) if x is not None]
        with torch.no_grad():
            joint = softmax(torch.stack(rows)).double().sum(dim=0).cpu()
        joint[marks] = -torch.inf
        best = torch.softmax(joint, dim=0).topk(min(top, len(joint)))
        found.append([Substitute(vocabulary[i], p) for p, i in zip(*(x.tolist() for x in best)) if p > 0])
    return found
