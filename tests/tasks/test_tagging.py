"""Spans and tags, in every scheme."""

import itertools

import pytest
from facts import mentions
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.tasks.tagging import Span, allowed_transitions, from_bio, spans_of, tags_of, to_bio

PREFIXED = ["B-X", "I-X", "E-X", "S-X", "B-Y-Z", "I-Y-Z", "E-Y-Z", "S-Y-Z"]


@st.composite
def sentences(draw):
    """Spans that do not overlap, and the number of tokens."""
    lengths = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(["X", "Y-Z"])), max_size=5))
    spans, end = [], 0
    for gap, length, label in lengths:
        spans.append(Span(label, end + gap, end + gap + length))
        end += gap + length
    return spans, end + draw(st.integers(0, 2))


@given(sentences())
def test_spans_become_tags_and_spans_again(sentence):
    spans, n = sentence
    tags = tags_of(spans, n)
    assert len(tags) == n
    assert spans_of(tags) == spans


@pytest.mark.parametrize("scheme", ["bio", "iob1", "bioes"])
@pytest.mark.parametrize("read_as", ["named", "auto"])
@given(sentence=sentences())
def test_every_scheme_reads_back(scheme, read_as, sentence):
    tags = tags_of(*sentence)
    written = from_bio(tags, scheme)
    assert to_bio(written, scheme if read_as == "named" else "auto", "here") == tags


@given(st.lists(st.sampled_from(["O", *PREFIXED])))
def test_auto_reads_anything_and_gives_bio(tags):
    bio = to_bio(tags, "auto", "here")
    assert to_bio(bio, "bio", "here") == bio
    assert [tag == "O" for tag in bio] == [tag == "O" for tag in tags]


def test_spans_touch_but_do_not_merge():
    assert spans_of(["B-X", "B-X", "I-X", "B-Y"]) == [Span("X", 0, 1), Span("X", 1, 3), Span("Y", 3, 4)]


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        (["O", "I-X", "I-X"], [Span("X", 1, 3)]),
        (["I-X", "I-Y"], [Span("X", 0, 1), Span("Y", 1, 2)]),
        (["B-X", "I-Y", "I-X"], [Span("X", 0, 1), Span("Y", 1, 2), Span("X", 2, 3)]),
        (["B-X", "O", "I-X"], [Span("X", 0, 1), Span("X", 2, 3)]),
    ],
)
def test_malformed_tags_are_read_as_conlleval_reads_them(tags, spans):
    assert spans_of(tags) == spans


def test_iob1_marks_only_a_beginning_that_would_be_missed():
    bio = ["B-X", "B-X", "O", "B-X", "B-Y", "I-Y"]
    assert from_bio(bio, "iob1") == ["I-X", "B-X", "O", "I-X", "I-Y", "I-Y"]


def test_bioes_of_every_length():
    assert from_bio(["B-X", "B-X", "I-X", "B-X", "I-X", "I-X"], "bioes") == ["S-X", "B-X", "E-X", "B-X", "I-X", "E-X"]


def test_bilou_is_read_too():
    assert to_bio(["B-X", "I-X", "L-X", "U-X"], "auto", "here") == ["B-X", "I-X", "I-X", "B-X"]


def test_an_end_closes_a_span():
    assert to_bio(["B-X", "E-X", "I-X"], "auto", "here") == ["B-X", "I-X", "B-X"]


@pytest.mark.parametrize("tag", ["X-PER", "PER", "B-", "-PER", "", "BI-PER", "o"])
def test_an_unknown_prefix_is_named_with_its_place(tag):
    with pytest.raises(InputError, match=mentions("a.conll", "line 8", f"'{tag}'")):
        to_bio(["O", tag], "auto", "a.conll", lines=[7, 8])
    with pytest.raises(InputError, match=mentions("here", "tag 2", "B-", "I-", f"'{tag}'")):
        to_bio(["O", tag], "bio", "here")


@pytest.mark.parametrize(
    ("scheme", "tags", "words"),
    [
        ("bio", ["O", "I-X"], ("line 2", "BIO", "'I-X'", "'O'")),
        ("bio", ["I-X"], ("line 1", "BIO", "'I-X'")),
        ("bio", ["B-X", "I-Y"], ("line 2", "BIO", "'I-Y'", "'B-X'")),
        ("bioes", ["B-X", "O"], ("line 2", "BIOES", "'O'", "'B-X'")),
        ("bioes", ["O", "B-X"], ("line 2", "BIOES", "'B-X'")),
        ("bioes", ["B-X", "S-X"], ("line 2", "BIOES", "'S-X'", "'B-X'")),
        ("bioes", ["E-X"], ("line 1", "BIOES", "'E-X'")),
    ],
)
def test_a_named_scheme_is_checked(scheme, tags, words):
    with pytest.raises(InputError, match=mentions("a.conll", *words, "auto")):
        to_bio(tags, scheme, "a.conll", lines=range(1, len(tags) + 1))


def test_spans_that_tags_cannot_say_are_refused():
    with pytest.raises(InputError, match=mentions(Span("Y", 1, 3))):
        tags_of([Span("X", 0, 2), Span("Y", 1, 3)], 3)
    for span in [Span("X", 2, 4), Span("X", -1, 1), Span("X", 1, 1)]:
        with pytest.raises(InputError, match=mentions(3, span)):
            tags_of([span], 3)


@pytest.mark.parametrize("scheme", ["bio", "bioes"])
@given(sentence=sentences(), noise=st.lists(st.sampled_from(["O", *PREFIXED]), max_size=4))
def test_transitions_allow_what_is_well_formed_and_nothing_else(scheme, sentence, noise):
    labels = ["O", *(label for label in PREFIXED if scheme == "bioes" or label[0] in "BI")]
    well_formed = from_bio(tags_of(*sentence), scheme)
    assert allows(labels, well_formed)
    noise = [tag for tag in noise if tag in labels]
    try:
        to_bio(noise, scheme, "here")
    except InputError:
        assert not allows(labels, noise)
    else:
        assert allows(labels, noise)


def test_transitions_of_bio_in_full():
    allowed = allowed_transitions(["O", "B-X", "I-X", "B-Y", "I-Y"])
    assert allowed.start.tolist() == [True, True, False, True, False]
    assert allowed.end.tolist() == [True] * 5
    assert allowed.pairs.int().tolist() == [
        [1, 1, 0, 1, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 1, 1],
        [1, 1, 0, 1, 1],
    ]


def test_transitions_of_bioes_in_full():
    allowed = allowed_transitions(["O", "B-X", "I-X", "E-X", "S-X"])
    assert allowed.start.int().tolist() == [1, 1, 0, 0, 1]
    assert allowed.end.int().tolist() == [1, 0, 0, 1, 1]
    opens, closed = [0, 0, 1, 1, 0], [1, 1, 0, 0, 1]
    assert allowed.pairs.int().tolist() == [closed, opens, opens, closed, closed]


def test_transitions_refuse_labels_that_are_no_tags():
    with pytest.raises(InputError, match=mentions("labels", "B-", "I-", "E-", "S-", "'NOUN'")):
        allowed_transitions(["O", "NOUN"])


def allows(labels, tags):
    allowed = allowed_transitions(labels)
    ids = [labels.index(tag) for tag in tags]
    if not ids:
        return True
    steps = all(allowed.pairs[a, b] for a, b in itertools.pairwise(ids))
    return bool(allowed.start[ids[0]]) and steps and bool(allowed.end[ids[-1]])
