"""MUC, B³ and CEAFφ4 as in the reference scorer (v8.01), and the average of their F1.

Counts are summed over documents before they are divided. All mentions count, including singletons; MUC ignores those,
because it counts links.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchelmo.errors import ConfigError
from torchelmo.tasks.coref.data import Document, Mention

Clusters = Sequence[Sequence[Mention]]
Overlap = NDArray[np.int64]  # (gold clusters, predicted clusters): the mentions in both


class Count(NamedTuple):
    """Numerators and denominators of recall and precision; those of documents are added."""

    recalled: float
    n_gold: float
    precise: float
    n_predicted: float

    def plus(self, other: "Count") -> "Count":
        return Count(*(a + b for a, b in zip(self, other, strict=True)))


class Measure(NamedTuple):
    """Percentages; 0 if there is nothing to divide by, as in the reference scorer."""

    precision: float
    recall: float
    f1: float


def score_documents(documents: Sequence[Document], predictions: Sequence[Clusters]) -> dict[str, float]:
    """Return `average`, and f1, precision and recall of muc, b3, ceaf and mentions, by name."""
    totals = {name: Count(0, 0, 0, 0) for name in ("muc", "b3", "ceaf", "mentions")}
    for document, predicted in zip(documents, predictions, strict=True):
        for name, count in count_clusters(document.clusters or [], predicted).items():
            totals[name] = totals[name].plus(count)
    measures = {name: measure(count) for name, count in totals.items()}
    scores = {"average": sum(measures[name].f1 for name in ("muc", "b3", "ceaf")) / 3}
    for name, (precision, recall, f1) in measures.items():
        scores |= {f"{name}_f1": f1, f"{name}_precision": precision, f"{name}_recall": recall}
    return scores


def count_clusters(gold: Clusters, predicted: Clusters) -> dict[str, Count]:
    """Return the counts of one document."""
    key, response = _distinct(gold), _distinct(predicted)
    overlap = _overlap(key, response)
    sizes, sizes_predicted = np.array([len(c) for c in key]), np.array([len(c) for c in response])
    n_gold, n_predicted = float(sizes.sum()), float(sizes_predicted.sum())
    common = float(overlap.sum())
    similarity = _alignment(2 * overlap / (sizes[:, None] + sizes_predicted[None, :]))
    return {
        "muc": Count(*_links(overlap, sizes), *_links(overlap.T, sizes_predicted)),
        "b3": Count(_b_cubed(overlap, sizes), n_gold, _b_cubed(overlap.T, sizes_predicted), n_predicted),
        "ceaf": Count(similarity, len(key), similarity, len(response)),
        "mentions": Count(common, n_gold, common, n_predicted),
    }


def measure(count: Count) -> Measure:
    """Return precision, recall and their harmonic mean.

    >>> measure(Count(1, 2, 1, 1)).recall
    50.0
    """
    recall = count.recalled / count.n_gold if count.n_gold else 0.0
    precision = count.precise / count.n_predicted if count.n_predicted else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return Measure(100 * precision, 100 * recall, 100 * f1)


def report(scores: Mapping[str, float]) -> str:
    """Return the scores as a text table."""
    rows = [f"{'':10}{'precision':>10}{'recall':>10}{'F1':>10}"]
    for title, name in (("MUC", "muc"), ("B³", "b3"), ("CEAFφ4", "ceaf"), ("mentions", "mentions")):
        values = (scores[f"{name}_{part}"] for part in ("precision", "recall", "f1"))
        rows.append(f"{title:10}" + "".join(f"{value:10.2f}" for value in values))
    return "\n".join(rows)


def require_scipy() -> None:
    """Raise a ConfigError if SciPy is missing: before training, not at the first score."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "Coreference scores need SciPy for the alignment of CEAF, and it is not installed. "
            "Install it with: pip install 'torchelmo[tasks]'"
        ) from error


def _distinct(clusters: Clusters) -> list[list[Mention]]:
    """Keep the first occurrence of every mention, and remove clusters that are then empty."""
    seen: set[Mention] = set()
    distinct = []
    for cluster in clusters:
        new = [mention for mention in dict.fromkeys(cluster) if mention not in seen]
        seen.update(new)
        if new:
            distinct.append(new)
    return distinct


def _overlap(gold: Clusters, predicted: Clusters) -> Overlap:
    columns = {mention: column for column, cluster in enumerate(predicted) for mention in cluster}
    overlap = np.zeros((len(gold), len(predicted)), dtype=np.int64)
    for row, cluster in enumerate(gold):
        for mention in cluster:
            if mention in columns:
                overlap[row, columns[mention]] += 1
    return overlap


def _links(overlap: Overlap, sizes: NDArray[np.int64]) -> tuple[float, float]:
    """Return the counts of MUC: Σ |K| - |p(K)| and Σ |K| - 1, where p(K) is the partition of K by the other side."""
    n_missing = sizes - overlap.sum(axis=1)  # each is a separate part
    n_parts = (overlap > 0).sum(axis=1) + n_missing
    return float((sizes - n_parts).sum()), float((sizes - 1).sum())


def _b_cubed(overlap: Overlap, sizes: NDArray[np.int64]) -> float:
    """Return the count of B³: Σ |K ∩ R| / |K| over the mentions of K, where R is their cluster on the other side."""
    return float(((overlap**2).sum(axis=1) / sizes).sum())


def _alignment(similarity: NDArray[np.float64]) -> float:
    """Return the count of CEAF: the maximum of Σ φ4(K, R) = 2 |K ∩ R| / (|K| + |R|) over one-to-one alignments."""
    require_scipy()
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(similarity, maximize=True)
    return float(similarity[rows, columns].sum())
