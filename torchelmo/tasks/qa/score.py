"""Exact match and F1 as SQuAD 1.1 counts them: of normalised answers, each against its best reference."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def em_and_f1(references: Iterable[Sequence[str]], answers: Iterable[str]) -> dict[str, float]:
    """Percentages over all questions; every question has one answer and one or more references."""
    pairs = list(zip(references, answers, strict=True))
    exact = sum(max(float(normalise(answer) == normalise(gold)) for gold in golds) for golds, answer in pairs)
    overlap = sum(max(f1(answer, gold) for gold in golds) for golds, answer in pairs)
    n_questions = max(len(pairs), 1)
    return {"em": 100 * exact / n_questions, "f1": 100 * overlap / n_questions}


def normalise(answer: str) -> str:
    """Lower case, without (ASCII) punctuation and articles, single spaces.

    >>> normalise("The  Dog's a-bone, an owl")
    'dogs abone owl'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def f1(answer: str, reference: str) -> float:
    """Of the words that the two share, counted as often as both have them.

    >>> f1("the big red dog", "a red dog")
    0.8
    """
    found, expected = normalise(answer).split(), normalise(reference).split()
    n_shared = (Counter(found) & Counter(expected)).total()
    if not n_shared:
        return 0.0
    precision, recall = n_shared / len(found), n_shared / len(expected)
    return 2 * precision * recall / (precision + recall)
