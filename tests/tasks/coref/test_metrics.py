"""MUC, B³ and CEAFφ4 on the cases that come with the reference scorer, and on the example of its paper."""

import builtins
import string

import pytest
from facts import mentions

from torchelmo.errors import ConfigError
from torchelmo.tasks.coref.data import Document, Mention
from torchelmo.tasks.coref.metrics import count_clusters, measure, report, require_scipy, score_documents

PLACES = {letter: Mention(place, place + 1) for place, letter in enumerate(string.ascii_letters + string.digits)}
A = "a bc def"


def clusters(text):
    """Words are clusters, letters their mentions."""
    return [[PLACES[letter] for letter in word] for word in text.split()]


def shares(name, gold, predicted):
    """Recall and precision as fractions."""
    found = measure(count_clusters(clusters(gold), clusters(predicted))[name])
    return found.recall / 100, found.precision / 100


@pytest.mark.parametrize(
    ("gold", "predicted", "muc", "b3", "ceaf"),
    [
        (A, A, (1, 1), (1, 1), (1, 1)),
        (A, "a de", (1 / 3, 1), (7 / 18, 1), (1.8 / 3, 1.8 / 2)),  # missing
        (A, "a bcx defy z", (1, 3 / 5), (1, 55 / 108), ((1 + 4 / 5 + 6 / 7) / 3, (1 + 4 / 5 + 6 / 7) / 4)),  # spurious
        (A, "a bcx dy z", (1 / 3, 1 / 3), (5 / 9, 17 / 42), (2.2 / 3, 2.2 / 4)),  # both
        (A, "a bcxB dy z", (1 / 3, 1 / 4), (5 / 9, 5 / 16), ((1 + 4 / 6 + 2 / 5) / 3, (1 + 4 / 6 + 2 / 5) / 4)),
        (A, "a bcx dy Bz", (1 / 3, 1 / 4), (5 / 9, 17 / 48), (2.2 / 3, 2.2 / 4)),
        (A, "a bcxb dy z", (1 / 3, 1 / 3), (5 / 9, 17 / 42), (2.2 / 3, 2.2 / 4)),  # given twice in a cluster
        (A, "a bcx dy bz", (1 / 3, 1 / 3), (5 / 9, 17 / 42), (2.2 / 3, 2.2 / 4)),  # and in two
        # CEAF of the next four by hand: one cluster each is aligned with a, bc and def where there are enough.
        (A, "a b c d e f", (0, 0), (3 / 6, 1), ((1 + 2 / 3 + 2 / 4) / 3, (1 + 2 / 3 + 2 / 4) / 6)),
        (A, "abcdef", (1, 3 / 5), (1, 7 / 18), (6 / 9 / 3, 6 / 9)),
        (A, "a x y c d e z", (0, 0), (13 / 36, 4 / 7), ((1 + 2 / 3 + 2 / 4) / 3, (1 + 2 / 3 + 2 / 4) / 7)),
        (A, "axycdez", (1 / 3, 1 / 6), (17 / 36, 6 / 49), (4 / 10 / 3, 4 / 10)),
        # The examples of the B³ paper: a big and a small cluster as one, and two big ones.
        ("12345 67 89ABC", "12345 6789ABC", (1, 9 / 10), (1, 16 / 21), ((1 + 10 / 12) / 3, (1 + 10 / 12) / 2)),
        ("12345 67 89ABC", "1234589ABC 67", (1, 9 / 10), (1, 7 / 12), ((1 + 10 / 15) / 3, (1 + 10 / 15) / 2)),
        # The example of Pradhan et al. 2014.
        ("abc defg", "ab cd fghi", (2 / 5, 2 / 5), (35 / 84, 4 / 8), (1.3 / 2, 1.3 / 3)),
        # Only singletons: MUC has nothing to count.
        ("a b c d e f", "a b c d e f", (0, 0), (1, 1), (1, 1)),
        ("a b c d e f", "a b c x y z", (0, 0), (1 / 2, 1 / 2), (1 / 2, 1 / 2)),
        ("abcdef", "a b c x y z", (0, 0), (3 / 36, 3 / 6), (2 / 7, 2 / 7 / 6)),
        (A, "", (0, 0), (0, 0), (0, 0)),
        ("", "ab", (0, 0), (0, 0), (0, 0)),
    ],
)
def test_cases_of_the_reference_scorer(gold, predicted, muc, b3, ceaf):
    assert shares("muc", gold, predicted) == pytest.approx(muc)
    assert shares("b3", gold, predicted) == pytest.approx(b3)
    assert shares("ceaf", gold, predicted) == pytest.approx(ceaf)


@pytest.mark.parametrize(
    ("gold", "predicted", "muc"),
    [
        ("ABCD", "AB CD", (2 / 3, 1)),
        ("AB CD", "ABCD", (1, 2 / 3)),
        ("ABC", "AC", (1 / 2, 1)),
        ("BCDEGHJ", "ABC DEF GHI", (3 / 6, 3 / 6)),
        ("ABC DEFG", "AB CD FGH", (2 / 5, 2 / 4)),
    ],
)
def test_cases_of_the_muc_paper(gold, predicted, muc):
    assert shares("muc", gold, predicted) == pytest.approx(muc)


def test_the_best_alignment_is_not_the_greedy_one():
    # abcd is most like abcef (6/9), but then ef has no partner: with d for abcd, both have one.
    assert shares("ceaf", "abcd ef", "abcef d")[0] == pytest.approx((4 / 7 + 2 / 5) / 2)


def test_documents_are_summed_before_division():
    documents = [Document("d", "0", [["x"]], [], "", clusters(gold)) for gold in ("ab", "abcd")]
    scores = score_documents(documents, [clusters("ab"), clusters("ab cd")])
    assert scores["muc_recall"] == pytest.approx(100 * (1 + 2) / (1 + 3))
    assert scores["muc_precision"] == pytest.approx(100)
    assert scores["b3_recall"] == pytest.approx(100 * (2 + 2) / (2 + 4))
    assert scores["ceaf_recall"] == pytest.approx(100 * (1 + 4 / 6) / 2)
    assert scores["ceaf_precision"] == pytest.approx(100 * (1 + 4 / 6) / 3)
    assert scores["mentions_f1"] == pytest.approx(100)
    assert scores["average"] == pytest.approx((scores["muc_f1"] + scores["b3_f1"] + scores["ceaf_f1"]) / 3)


def test_mentions_alone():
    count = count_clusters(clusters("ab c"), clusters("bd"))["mentions"]
    assert count == (1, 3, 1, 2)


def test_the_report_is_a_table():
    documents = [Document("d", "0", [["x"]], [], "", clusters("ab cd"))]
    lines = report(score_documents(documents, [clusters("ab")])).splitlines()
    assert lines[0].split() == ["precision", "recall", "F1"]
    assert lines[1].split() == ["MUC", "100.00", "50.00", "66.67"]
    assert [line.split()[0] for line in lines[1:]] == ["MUC", "B³", "CEAFφ4", "mentions"]


def test_without_scipy_the_error_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without_scipy(name, *arguments, **options):
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_scipy)
    with pytest.raises(ConfigError, match=mentions("SciPy", "pip install 'torchelmo[tasks]'")):
        require_scipy()
