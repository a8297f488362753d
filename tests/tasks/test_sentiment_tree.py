"""Labelled trees, as they are written and as they should not be."""

import pytest
from facts import mentions
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.tasks.sentiment import Phrase, Tree, parse_tree

LABELS = st.integers(0, 4)
WORDS = st.text(st.characters(exclude_characters="() \t\r\n", exclude_categories=["Cs"]), min_size=1, max_size=5)
TREES = st.recursive(
    st.builds(Tree, LABELS, WORDS, st.just(())),
    lambda trees: st.builds(Tree, LABELS, st.none(), st.lists(trees, min_size=1, max_size=3).map(tuple)),
    max_leaves=8,
)


@given(TREES)
def test_a_written_tree_reads_back(tree):
    assert parse_tree(str(tree), "file", 1) == tree


@given(TREES)
def test_phrases_are_the_tokens_of_the_subtrees(tree):
    assert list(tree.phrases()) == [Phrase(part.tokens(), part.label) for part in tree.subtrees()]


def test_tokens_are_those_that_people_write():
    tree = parse_tree(r"(3 (2 -LRB-) (2 (2 co-writer\/director) (2 -RRB-)))", "file", 1)
    assert tree.tokens() == ("(", "co-writer/director", ")")
    assert str(tree) == r"(3 (2 -LRB-) (2 (2 co-writer\/director) (2 -RRB-)))"


def test_white_space_around_brackets_does_not_matter_but_a_no_break_space_is_part_of_a_word():
    assert parse_tree(" ( 3\t(2 8\N{NO-BREAK SPACE}1\\/2)( 4 works ) ) ", "file", 1) == Tree(
        3, None, (Tree(2, "8\N{NO-BREAK SPACE}1\\/2"), Tree(4, "works"))
    )


def test_a_tree_may_be_deeper_than_python_calls():
    tree = parse_tree("(1 " * 10_000 + "deep" + ")" * 10_000, "file", 1)
    assert tree.tokens() == ("deep",)
    assert len(list(tree.phrases())) == 10_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(3 (2 It) (4 works)", ("column 20",)),
        ("(3 (2 It", ("column 9",)),
        ("(3 (2 It) (4 works)))", ("column 21", "')'")),
        ("(3 It) (4 works)", ("column 8", "'('")),
        ("(5 It)", ("column 2", 0, 4, "'('", "'5'")),
        ("((2 It))", ("column 2", 0, 4, "'('")),
        ("(3 (", ("column 5", 0, 4, "'('")),
        ("(3)", ("column 3", "')'")),
        ("(3 It works)", ("column 7", "'works'")),
        ("(3 (2 It) works)", ("column 11", "'works'")),
        ("(3 It (4 works))", ("column 7", "'('")),
        ("3 It", ("column 1", "'('", "'3'")),
        ("", ("column 1", "'('")),
    ],
)
def test_a_malformed_tree_is_named_with_its_column(text, message):
    with pytest.raises(InputError, match=mentions("train.txt", "line 7", *message, "(3 (2 It) (4 works))")):
        parse_tree(text, "train.txt", 7)
