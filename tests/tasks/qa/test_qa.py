import pytest

from torchelmo.tasks.qa import em_and_f1, f1, normalize


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The Dog", "dog"),
        ("  an   apple\ta\nday ", "apple day"),
        ("U.S.A.", "usa"),  # punctuation goes without leaving a space
        ("well-known", "wellknown"),
        ("a.the", "athe"),  # punctuation goes before articles do
        ("theatre another", "theatre another"),  # articles are whole words
        ("«quoted» – yes", "«quoted» – yes"),  # only ASCII punctuation
        ("the", ""),
    ],
)
def test_normalized_answers(answer, expected):
    assert normalize(answer) == expected


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("Denver Broncos", "the Denver Broncos.", 1.0),
        ("Broncos", "Denver Broncos", 2 / 3),  # precision 1, recall 1/2
        ("in the year 1977", "1977", 0.5),  # precision 1/3, recall 1
        ("to be or not to be", "to be", 0.5),  # shared words count as often as both have them: 2 of 6, 2 of 2
        ("red", "blue", 0.0),
        ("the", "the", 0.0),  # nothing is left of either
        ("", "blue", 0.0),
    ],
)
def test_f1_of_one_answer(answer, reference, expected):
    assert f1(answer, reference) == pytest.approx(expected)


def test_every_answer_is_scored_against_its_best_reference():
    references = [["1977", "June 8 , 1977"], ["hip hop"], ["blue"]]
    scores = em_and_f1(references, ["June 8, 1977", "hop", "red"])
    assert scores["em"] == pytest.approx(100 * 1 / 3)
    assert scores["f1"] == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)


def test_the_articles_alone_match_exactly_but_have_no_f1():
    assert em_and_f1([["the"]], ["a"]) == {"em": 100.0, "f1": 0.0}


def test_no_questions_score_zero():
    assert em_and_f1([], []) == {"em": 0.0, "f1": 0.0}
