"""Entities counted as conlleval counts them: every case was worked by hand from its rules for chunks."""

from collections import Counter

import pytest
from facts import mentions
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.tasks.ner import Ner, count_entities
from torchelmo.tasks.tagging import Tagged
from torchelmo.tasks.task import Counts

report, score = Ner().report, Ner().score

# gold, predicted, and the counts (gold, found, right)
CASES = [
    ("B-PER I-PER O", "B-PER I-PER O", (1, 1, 1)),
    ("B-PER I-PER O", "O O O", (1, 0, 0)),
    ("O O O", "B-PER O O", (0, 1, 0)),
    ("O O", "O O", (0, 0, 0)),
    ("B-PER I-PER O", "B-PER O O", (1, 1, 0)),  # too short
    ("B-PER O", "B-PER I-PER", (1, 1, 0)),  # too long
    ("O B-PER I-PER", "B-PER I-PER I-PER", (1, 1, 0)),  # begins too early
    ("B-PER I-PER", "B-LOC I-LOC", (1, 1, 0)),  # another label
    ("B-PER B-PER", "B-PER I-PER", (2, 1, 0)),  # two made one
    ("B-PER I-PER", "B-PER B-PER", (1, 2, 0)),  # one made two
    ("B-PER B-PER", "B-PER B-PER", (2, 2, 2)),
    ("B-PER O", "I-PER O", (1, 1, 1)),  # I- at the beginning of a sentence begins an entity
    ("O B-PER I-PER", "O I-PER I-PER", (1, 1, 1)),  # I- after O too
    ("B-PER B-LOC", "B-PER I-LOC", (2, 2, 2)),  # I- of another label too
    ("B-PER I-PER", "B-PER I-LOC", (1, 2, 0)),
    ("B-PER I-PER I-PER", "B-PER I-LOC I-PER", (1, 3, 0)),  # and it ends what it interrupts
    ("B-PER I-PER O B-LOC", "I-PER I-PER O I-PER", (2, 2, 1)),
    ("I-PER I-PER", "B-PER I-PER", (1, 1, 1)),  # malformed gold is read in the same way
]


@pytest.mark.parametrize(("gold", "predicted", "counts"), CASES)
def test_entities_are_counted_as_conlleval_does(gold, predicted, counts):
    found = count_entities([example(gold)], [predicted.split()])
    assert tuple(sum(row[i] for row in found.values()) for i in range(3)) == counts


tag_pairs = st.tuples(*[st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])] * 2)


@given(st.lists(st.lists(tag_pairs, min_size=1, max_size=8), max_size=3))
@settings(max_examples=300)
def test_any_tags_are_counted_as_by_going_through_them_token_by_token(sentences):
    examples = [example(" ".join(gold for gold, _ in pairs)) for pairs in sentences]
    predictions = [[predicted for _, predicted in pairs] for pairs in sentences]
    assert count_entities(examples, predictions) == count_token_by_token(sentences)


def count_token_by_token(sentences):
    """The script's own way: one pass, with a flag for an entity that has begun in both and may yet turn out right."""
    gold, found, right, open_label = Counter(), Counter(), Counter(), ""
    for pairs in sentences:
        before = ("O", "O")
        for pair in [*pairs, ("O", "O")]:  # the blank line after a sentence counts as O
            ends = [ended(old, new) for old, new in zip(before, pair)]
            if open_label and all(ends):
                right[open_label] += 1
            if any(ends):
                open_label = ""
            starts = [started(old, new) for old, new in zip(before, pair)]
            gold[pair[0][2:]] += starts[0]
            found[pair[1][2:]] += starts[1]
            if all(starts) and pair[0][2:] == pair[1][2:]:
                open_label = pair[0][2:]
            before = pair
    labels = sorted(label for label in gold | found if label)
    return {label: Counts(gold[label], found[label], right[label]) for label in labels}


def ended(old, new):
    return old != "O" and (new[0] in "BO" or old[2:] != new[2:])


def started(old, new):
    return new != "O" and (new[0] == "B" or old == "O" or old[2:] != new[2:])


def test_an_entity_ends_with_its_sentence():
    examples = [example("O B-PER"), example("I-PER O")]
    assert count_entities(examples, [["O", "B-PER"], ["I-PER", "O"]]) == {"PER": Counts(2, 2, 2)}


def test_scores_of_several_sentences_in_full():
    examples = [example("B-PER I-PER O B-LOC"), example("B-LOC O O"), example("O O B-ORG")]
    predictions = [["B-PER", "I-PER", "O", "B-ORG"], ["B-LOC", "O", "B-LOC"], ["O", "O", "O"]]
    # 4 in the data; 4 found; right: PER (0, 2), LOC (0, 1). 7 of 10 tags are right.
    scores = score(examples, predictions)
    assert scores == pytest.approx({"f1": 50.0, "precision": 50.0, "recall": 50.0, "accuracy": 70.0})
    assert count_entities(examples, predictions) == {
        "LOC": Counts(2, 2, 1),
        "ORG": Counts(1, 1, 0),
        "PER": Counts(1, 1, 1),
    }


def test_f1_lies_between_unequal_precision_and_recall():
    # 3 in the data, 1 found, and rightly: P 100, R 33.33, F1 = 2 · 100 · 33.33 / 133.33 = 50.
    scores = score([example("B-PER B-LOC B-ORG")], [["B-PER", "O", "O"]])
    assert scores["precision"] == 100.0
    assert scores["recall"] == pytest.approx(100 / 3)
    assert scores["f1"] == pytest.approx(50.0)


def test_nothing_to_count_is_zero_and_no_error():
    assert score([], []) == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 0.0}
    assert score([example("O O")], [["O", "O"]]) == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 100.0}


def test_the_report_has_a_line_for_every_label():
    table = report([example("B-PER O B-creative-work")], [["B-PER", "B-LOC", "O"]]).splitlines()
    assert [line.split() for line in table] == [
        ["label", "precision", "recall", "F1", "gold", "found"],
        ["LOC", "0.00", "0.00", "0.00", "0", "1"],
        ["PER", "100.00", "100.00", "100.00", "1", "1"],
        ["creative-work", "0.00", "0.00", "0.00", "1", "0"],
        ["all", "50.00", "50.00", "50.00", "2", "2"],
    ]
    assert len(set(map(len, table))) == 1


def test_the_report_of_nothing_is_a_table_too():
    assert len(report([], []).splitlines()) == 2


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InputError, match=mentions(1, 0)):
        score([example("O")], [])
    with pytest.raises(InputError, match=mentions(2, "'w0 w1'", 1)):
        score([example("O O")], [["O"]])
    with pytest.raises(InputError, match=mentions(1, "'hello'")):
        score([Tagged(["hello"])], [["O"]])


def example(tags):
    tags = tags.split()
    return Tagged([f"w{i}" for i in range(len(tags))], tags)
