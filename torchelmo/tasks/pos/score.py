"""Accuracy over words, and where the errors are."""

from collections import Counter
from collections.abc import Sequence

from torchelmo.tasks.tagging import Tagged, Tags, pairs
from torchelmo.tasks.task import Scores

_N_CONFUSIONS = 10


def score(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> Scores:
    """`accuracy`: the share of words with the right tag; `sentences`: of sentences without an error."""
    counted = list(pairs(examples, predictions))
    words = [a == b for pair in counted for a, b in zip(pair.gold, pair.predicted)]
    return {"accuracy": _share(words), "sentences": _share([pair.gold == pair.predicted for pair in counted])}


def report(examples: Sequence[Tagged], predictions: Sequence[Tags]) -> str:
    """Precision, recall and F1 of every tag, and the confusions that cost most."""
    seen = Counter(word for pair in pairs(examples, predictions) for word in zip(pair.gold, pair.predicted))
    gold: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for (tag, predicted), count in seen.items():
        gold[tag] += count
        found[predicted] += count
    width = max(3, *map(len, gold | found)) if seen else 3
    lines = [f"{'tag':<{width}}  precision  recall      F1    gold"]
    for tag in sorted(gold | found):
        right = seen[tag, tag]
        precision = 100.0 * right / found[tag] if right else 0.0
        recall = 100.0 * right / gold[tag] if right else 0.0
        f1 = 200.0 * right / (gold[tag] + found[tag])
        lines.append(f"{tag:<{width}}  {precision:9.2f}  {recall:6.2f}  {f1:6.2f}  {gold[tag]:6d}")
    errors = Counter({pair: count for pair, count in seen.items() if pair[0] != pair[1]})
    for (tag, predicted), count in errors.most_common(_N_CONFUSIONS):
        lines.append(f"{tag} taken for {predicted}: {count}")
    return "\n".join(lines)


def _share(right: list[bool]) -> float:
    return 100.0 * sum(right) / len(right) if right else 0.0
