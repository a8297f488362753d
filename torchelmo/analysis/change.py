"""Measure how much the usages of words differ between two texts, such as those of two periods.

prt   distance of the prototypes: 1 − cos(mean of the first usages, mean of the second usages)
apd   average pairwise distance: the mean of 1 − cos over all pairs of a first and a second usage
jsd   Jensen–Shannon divergence, in bits, of the shares that clusters of usages have in the two texts
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from torchelmo.analysis.similarity import Array, l2_normalize
from torchelmo.errors import ConfigError, InputError, missing_package, short_repr
from torchelmo.files import atomic_write, read_lines, require_file
from torchelmo.text.reading import malformed

Method = Literal["prt", "apd", "jsd"]
METHODS: tuple[Method, ...] = ("prt", "apd", "jsd")
_ITERATIONS = 100
_RESTARTS = 5
log = logging.getLogger(__name__)


class Usages(Protocol):
    """Arrays (n_usages, dim) by word: a `UsageFile`, or a dict of arrays."""

    def __getitem__(self, word: str, /) -> Array: ...

    def __contains__(self, word: object, /) -> bool: ...


class Change(NamedTuple):
    """How much a word differs between two texts."""

    word: str
    score: float  # a distance: higher is more change
    n_first: int  # usages in the first text
    n_second: int


def measure_change(
    first: Usages,
    second: Usages,
    words: Iterable[str],
    *,
    method: Method = "prt",
    min_usages: int = 3,
    n_clusters: int = 5,
    max_usages: int = 10_000,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> list[Change]:
    """Return the change of words between two texts, the most changed word first.

    Args:
        first: The usages in the first text.
        second: The usages in the second text.
        words: The words to compare.
        method: "prt", "apd" or "jsd".
        min_usages: Leave out words with fewer usages in one of the texts, with a warning.
        n_clusters: The number of clusters for "jsd".
        max_usages: Cluster a random sample of this many usages of a text, for "jsd".
        seed: The seed of samples and clusters.
        progress: A function that is called with the number of words that were just finished.

    Raises:
        ConfigError: The method is unknown.
        InputError: No word has enough usages, or the vectors of the two texts have different widths.

    Example:
        >>> import numpy as np
        >>> old = {"plane": np.eye(3), "tree": np.eye(3)}
        >>> new = {"plane": -np.eye(3), "tree": np.eye(3)}
        >>> [change.word for change in measure_change(old, new, ["tree", "plane"])]
        ['plane', 'tree']
    """
    if method not in METHODS:
        raise ConfigError(f"method: expected {', '.join(map(repr, METHODS))}, got {method!r}.")
    found, rare = [], []
    for word in words:
        pair = [texts[word] if word in texts else np.zeros((0, 0)) for texts in (first, second)]
        counts = [len(vectors) for vectors in pair]
        if min(counts) < max(min_usages, 1):
            rare.append(word)
        else:
            if pair[0].shape[1] != pair[1].shape[1]:
                widths = " and ".join(str(vectors.shape[1]) for vectors in pair)
                raise InputError(f"{word}: expected vectors of one width in both texts, found {widths}. Use one model.")
            if method == "jsd":
                score = _jsd(*pair, n_clusters=n_clusters, max_usages=max_usages, seed=seed)
            else:
                score = _prt(*pair) if method == "prt" else _apd(*pair)
            found.append(Change(word, score, *counts))
        if progress is not None:
            progress(1)
    if rare:
        log.warning(
            "Left out %d words with fewer than %d usages in one of the texts: %s",
            len(rare),
            min_usages,
            ", ".join(rare[:10]) + (", …" if len(rare) > 10 else ""),
        )
    if not found:
        raise InputError(f"Expected words with at least {min_usages} usages in both texts, found none of {len(rare)}.")
    return sorted(found, key=lambda change: (-change.score, change.word))


def read_gold(path: str | Path, column: int = 1) -> dict[str, float]:
    """Read annotated change, higher for more change.

    Args:
        path: Lines `word TAB value` (`truth/graded.txt` or `truth/binary.txt` of SemEval-2020 task 1), or `word` and
            three similarities (RuShiftEval), whose sign is changed.
        column: Which of the similarities: 1 for the first and second period, 2 for the second and third, 3 for the
            first and third.

    Raises:
        InputError: A line has another form.
    """
    gold: dict[str, float] = {}
    for number, line in enumerate(read_lines(require_file(path, "annotated change")), 1):
        if not line.strip():
            continue
        word, *values = line.rstrip().split("\t")
        expected = "a word and one value, or a word and three similarities, separated by tabs"
        try:
            numbers = [float(value) for value in values]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
            raise malformed(path, number, expected, short_repr(line))
        if word in gold:
            raise malformed(path, number, "every word once", f"{short_repr(word)} again")
        if not 1 <= column <= 3:
            raise ConfigError(f"column: expected 1, 2 or 3, got {column}.")
        gold[word] = numbers[0] if len(numbers) == 1 else -numbers[column - 1]
    if not gold:
        raise InputError(f"{path}: expected annotated words, found none.")
    return gold


class Agreement(NamedTuple):
    """How well scores agree with annotated change."""

    spearman: float  # the rank correlation; NaN if all values of a side are equal
    n_words: int  # words that have both a score and an annotation


def compare_with_gold(changes: Sequence[Change], gold: Mapping[str, float]) -> Agreement:
    """Return Spearman's rank correlation of scores and annotated change.

    Raises:
        InputError: Fewer than two words have both.
    """
    pairs = [(change.score, gold[change.word]) for change in changes if change.word in gold]
    if len(pairs) < 2:
        raise InputError(f"Expected at least two words with a score and an annotation, found {len(pairs)}.")
    scores, values = np.array(pairs).T
    return Agreement(spearman(scores, values), len(pairs))


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return Spearman's rank correlation; equal values share the mean of their ranks.

    >>> spearman([1, 2, 3], [10, 20, 15])
    0.5
    """
    ranks = [_ranks(np.asarray(values, dtype=np.float64)) for values in (a, b)]
    x, y = (rank - rank.mean() for rank in ranks)
    norm = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / norm if norm else math.nan


def plot_ranking(changes: Sequence[Change], path: str | Path, *, method: str = "", top: int = 40) -> None:
    """Plot the scores of the most changed words as bars.

    Args:
        changes: The words, the most changed first.
        path: The file to write: .png, .svg or .pdf.
        method: The name of the method, for the axis.
        top: The number of words.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    shown = list(changes[:top])[::-1]
    figure, axes = _new_figure(6, 1 + 0.22 * len(shown))
    axes.barh(range(len(shown)), [change.score for change in shown], color="#4c72b0")
    axes.set_yticks(range(len(shown)), [change.word for change in shown])
    axes.set_xlabel(f"change ({method})" if method else "change")
    axes.margins(y=0.01)
    _save_figure(figure, path)


def plot_usages(
    first: Array, second: Array, path: str | Path, *, title: str = "", names: tuple[str, str] = ("first", "second")
) -> None:
    """Plot the usages of one word in both texts, on the two axes on which they vary most (PCA).

    Args:
        first: The usages in the first text, (n_usages, dim).
        second: The usages in the second text.
        path: The file to write: .png, .svg or .pdf.
        title: The title.
        names: The names of the two texts.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    points, shares = project([first, second])
    figure, axes = _new_figure(6, 4.5)
    for some, name, color, marker in zip(points, names, ("#4c72b0", "#dd8452"), "ox"):
        axes.scatter(some[:, 0], some[:, 1], s=18, c=color, marker=marker, alpha=0.7, label=name)
    axes.set_xlabel(f"first component ({shares[0]:.0%})")
    axes.set_ylabel(f"second component ({shares[1]:.0%})")
    axes.set_title(title)
    axes.legend()
    _save_figure(figure, path)


def project(parts: Sequence[Array]) -> tuple[list[Array], tuple[float, float]]:
    """Return sets of vectors in the plane of their first two principal components, and the variance of each axis."""
    joined = np.concatenate(parts).astype(np.float64)
    joined -= joined.mean(axis=0)
    _, values, axes = np.linalg.svd(joined, full_matrices=False)
    values, axes = np.pad(values, (0, 2))[:2], np.pad(axes, ((0, 2), (0, 0)))[:2]
    total = float((joined**2).sum()) or 1.0
    ends = np.cumsum([len(part) for part in parts])[:-1]
    return np.split(joined @ axes.T, ends), (float(values[0] ** 2) / total, float(values[1] ** 2) / total)


def _prt(first: Array, second: Array) -> float:
    means = l2_normalize(np.stack([first.mean(axis=0, dtype=np.float64), second.mean(axis=0, dtype=np.float64)]))
    return 1.0 - float(means[0] @ means[1])


def _apd(first: Array, second: Array) -> float:
    # The mean of all dot products is the dot product of the means, so no pair is computed.
    means = [l2_normalize(vectors).mean(axis=0, dtype=np.float64) for vectors in (first, second)]
    return 1.0 - float(means[0] @ means[1])


def _jsd(first: Array, second: Array, *, n_clusters: int, max_usages: int, seed: int) -> float:
    generator = np.random.default_rng(seed)
    parts = [
        vectors[np.sort(generator.choice(len(vectors), max_usages, replace=False))]
        if len(vectors) > max_usages
        else vectors
        for vectors in (first, second)
    ]
    labels = _k_means(l2_normalize(np.concatenate(parts).astype(np.float64)), n_clusters, generator)
    n = len(parts[0])
    p, q = (np.bincount(some, minlength=n_clusters) / len(some) for some in (labels[:n], labels[n:]))
    m = (p + q) / 2
    return float(sum(np.sum(x[x > 0] * np.log2(x[x > 0] / m[x > 0])) for x in (p, q)) / 2)


def _k_means(points: Array, k: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return the cluster of every point: the best of several runs of k-means with k-means++ starts."""
    best, best_cost = np.zeros(len(points), dtype=np.int64), math.inf
    k = min(k, len(points))
    for _ in range(_RESTARTS):
        centers = points[[int(generator.integers(len(points)))]]
        for _ in range(k - 1):
            distances = _squared_distances(points, centers).min(axis=1)
            total = float(distances.sum())
            chosen = generator.choice(len(points), p=distances / total) if total > 0 else 0
            centers = np.concatenate([centers, points[[int(chosen)]]])
        labels = np.full(len(points), -1)
        for _ in range(_ITERATIONS):
            distances = _squared_distances(points, centers)
            new = distances.argmin(axis=1)
            if np.array_equal(new, labels):
                break
            labels = new
            for i in range(k):
                if (members := labels == i).any():
                    centers[i] = points[members].mean(axis=0)
        cost = float(distances[np.arange(len(points)), labels].sum())
        if cost < best_cost - 1e-12:
            best, best_cost = labels, cost
    return best


def _squared_distances(points: Array, centers: Array) -> Array:
    """(n, dim), (k, dim) -> (n, k)."""
    squares = (points**2).sum(axis=1)[:, None] - 2 * points @ centers.T + (centers**2).sum(axis=1)
    positive: Array = np.maximum(squares, 0)
    return positive


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean_ranks: npt.NDArray[np.float64] = (ends + ends - counts + 1) / 2
    return mean_ranks[place]


def _new_figure(width: float, height: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_package("matplotlib", "analysis") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _save_figure(figure: Any, path: str | Path) -> None:
    suffix = Path(path).suffix.removeprefix(".")
    if suffix not in ("png", "svg", "pdf"):
        raise ConfigError(f"{path}: expected a name that ends in .png, .svg or .pdf.")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format=suffix, dpi=150)
