"""Change of meaning: the scores against sums by hand, planted change, gold files and plots."""

import math

import numpy as np
import pytest
from facts import mentions

from torchelmo.analysis.change import (
    METHODS,
    Change,
    compare_with_gold,
    measure_change,
    plot_ranking,
    plot_usages,
    project,
    read_gold,
    spearman,
)
from torchelmo.analysis.usage_files import UsageFile
from torchelmo.analysis.usages import collect_usages
from torchelmo.errors import ConfigError, InputError

ANIMALS = (
    "horse dog cat cow sheep pig goat hen duck goose wolf fox bear lion tiger deer rabbit mouse bird monkey"
).split()
ABOUT_ANIMALS = [
    "The {} ran across the field and into the wood.",
    "A farmer fed the {} in the yard every morning.",
    "The {} slept under the old tree.",
    "We heard the {} in the night.",
    "The hungry {} ate from her hand.",
    "The {} was afraid of the fire.",
]
ABOUT_PAPERS = [
    "The lawyer read the {} and signed the last page.",
    "He wrote a {} to the government about the new law.",
    "The {} was published in the newspaper.",
    "According to the {} the company lost its money.",
    "The minister printed the {} in three languages.",
    "The first chapter of the {} was about history.",
]


OPENINGS = [["", "Then ", "Soon ", "That day "], ["Now ", "At last ", "In the evening ", "Again "]]


def planted(changed):
    """Return two texts. In the second one, `changed` is used like the name of a document."""
    texts = []
    for openings, other in zip(OPENINGS, (ABOUT_ANIMALS, ABOUT_PAPERS), strict=True):
        frames = {word: other if word == changed else ABOUT_ANIMALS for word in ANIMALS}
        texts.append([begin + frame.format(word) for word in ANIMALS for frame in frames[word] for begin in openings])
    return texts


@pytest.fixture(scope="module")
def usages(tmp_path_factory):
    """The usages of twenty words in two texts; one of the words has other contexts in the second text."""
    import torchelmo

    elmo = torchelmo.Elmo(torchelmo.load()).eval()
    folder = tmp_path_factory.mktemp("change")
    targets = {word: word for word in ANIMALS}
    files = []
    for name, lines in zip(("old", "new"), planted("deer"), strict=True):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        collect_usages(elmo, [str(folder / f"{name}.txt")], targets, folder / f"{name}.npz")
        files.append(folder / f"{name}.npz")
    return files


@pytest.mark.parametrize("method", METHODS)
def test_planted_change_is_found(usages, method):
    with UsageFile(usages[0]) as old, UsageFile(usages[1]) as new:
        found = measure_change(old, new, old.words, method=method)
    assert len(found) == 20
    assert found[0].word == "deer"
    assert found[0].score > 1.2 * found[1].score
    assert found[0][2:] == (24, 24)


def vectors(seed, n=7):
    return np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_scores_are_those_of_the_equations():
    first, second = vectors(1), vectors(2, 5)
    [prt] = measure_change({"a": first}, {"a": second}, ["a"], method="prt")
    [apd] = measure_change({"a": first}, {"a": second}, ["a"], method="apd")
    assert prt.score == pytest.approx(1 - cosine(first.mean(0), second.mean(0)), rel=1e-5)
    assert apd.score == pytest.approx(np.mean([1 - cosine(a, b) for a in first for b in second]), rel=1e-5)


def test_jsd_is_that_of_the_clusters():
    """Three tight clusters: 4 and 2 usages in the first text, 1 and 3 of two of them in the second."""
    centers = 10 * np.eye(3)
    first = np.concatenate([centers[[0] * 4], centers[[1] * 2]]) + 1e-3 * vectors(1, 6)[:, :3]
    second = np.concatenate([centers[[1] * 1], centers[[2] * 3]]) + 1e-3 * vectors(2, 4)[:, :3]
    [found] = measure_change({"a": first}, {"a": second}, ["a"], method="jsd", n_clusters=3)
    p, q = np.array([4 / 6, 2 / 6, 0]), np.array([0, 1 / 4, 3 / 4])
    m = (p + q) / 2
    expected = sum(x * math.log2(x / y) for d in (p, q) for x, y in zip(d, m) if x) / 2
    assert found.score == pytest.approx(expected)


def test_jsd_of_a_sample_and_of_equal_points():
    many = {"a": vectors(1, 50)}
    [found] = measure_change(many, many, ["a"], method="jsd", max_usages=10)
    assert 0 <= found.score <= 1
    same = {"a": np.ones((4, 2))}
    assert measure_change(same, same, ["a"], method="jsd")[0].score == 0


def test_rare_words_are_left_out_with_a_warning(caplog):
    old, new = {"a": vectors(1), "b": vectors(2)}, {"a": vectors(3), "b": vectors(4, 2)}
    found = measure_change(old, new, ["a", "b", "c"])
    assert [change.word for change in found] == ["a"]
    assert "b, c" in caplog.text
    with pytest.raises(InputError, match=mentions(3)):
        measure_change(old, new, ["b"])


def test_wrong_calls_are_named():
    with pytest.raises(ConfigError, match=mentions("method", "apt")):
        measure_change({}, {}, [], method="apt")
    with pytest.raises(InputError, match=mentions("a", 4, 3)):
        measure_change({"a": vectors(1)}, {"a": vectors(1)[:, :3]}, ["a"])


def test_spearman_with_ties_is_that_of_scipy():
    scipy_stats = pytest.importorskip("scipy.stats")
    a, b = [1, 2, 2, 5, 4, 4, 4], [3, 3, 1, 9, 7, 8, 8]
    assert spearman(a, b) == pytest.approx(scipy_stats.spearmanr(a, b).statistic)
    assert math.isnan(spearman([1, 1], [1, 2]))


def test_gold_of_semeval_and_rushifteval(tmp_path):
    semeval, rushift = tmp_path / "graded.txt", tmp_path / "annotated_all.tsv"
    semeval.write_text("plane_nn\t0.88\ntree_nn\t0.1\nedge_nn\t0.2\n", encoding="utf-8")
    rushift.write_text("век\t3.2\t3.21\t2.98\nжесть\t1.2\t3.3\t3.4\n", encoding="utf-8")
    assert read_gold(semeval) == {"plane_nn": 0.88, "tree_nn": 0.1, "edge_nn": 0.2}
    assert read_gold(rushift) == {"век": -3.2, "жесть": -1.2}  # more similar is less change
    assert read_gold(rushift, 3)["век"] == -2.98
    changes = [Change("plane_nn", 0.9, 3, 3), Change("edge_nn", 0.2, 3, 3), Change("tree_nn", 0.3, 3, 3)]
    found = compare_with_gold([*changes, Change("other", 1.0, 3, 3)], read_gold(semeval))
    assert found.n_words == 3
    assert found.spearman == pytest.approx(0.5)
    with pytest.raises(InputError, match=mentions(1)):
        compare_with_gold(changes[:1], read_gold(semeval))


@pytest.mark.parametrize("line", ["word", "word\t1\t2", "word\tmuch", "word\tnan", "plane\t1\nplane\t2", ""])
def test_damaged_gold_is_named(tmp_path, line):
    path = tmp_path / "gold.txt"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions("gold.txt")):
        read_gold(path)


def test_projection_keeps_the_plane():
    plane = np.zeros((6, 5))
    plane[:, [1, 3]] = vectors(1, 6)[:, :2]
    (a, b), shares = project([plane[:4], plane[4:]])
    assert a.shape == (4, 2)
    assert b.shape == (2, 2)
    assert sum(shares) == pytest.approx(1)
    before = np.linalg.norm(plane[0] - plane[5])
    assert np.linalg.norm(a[0] - b[1]) == pytest.approx(before)


def test_plots_are_files(tmp_path):
    pytest.importorskip("matplotlib")
    plot_ranking([Change("plane", 0.9, 3, 3), Change("tree", 0.3, 3, 3)], tmp_path / "ranking.png", method="prt")
    plot_usages(vectors(1), vectors(2), tmp_path / "plane.svg", title="plane")
    assert (tmp_path / "ranking.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "plane.svg").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match=mentions("ranking.doc", ".png")):
        plot_ranking([Change("plane", 0.9, 3, 3)], tmp_path / "ranking.doc")
