"""Surprisal of words as a table gives them."""

import math

import pytest
from facts import mentions
from tiny_lm import tiny_lm

from torchelmo.errors import ConfigError, InputError
from torchelmo.lm import perplexity, surprisal, words
from torchelmo.lm.words import Frequencies, Word, surprisal_table, word_surprisal
from torchelmo.text.tables import TableReader
from torchelmo.text.tokenize import tokenizer_for

STORY = "The rose and the bow. An arrow, and a bow! The rose isn't here."
NATURAL_STORIES = [(word, i, 1) for i, word in enumerate(STORY.split(), 1)] + [("Bow", 1, 2), ("down.", 2, 2)]


@pytest.fixture(scope="module")
def bilm():
    return tiny_lm()


@pytest.fixture
def stories(tmp_path):
    path = tmp_path / "all_stories.tok"
    rows = [("word", "zone", "item"), *NATURAL_STORIES]
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("state", ["reset", "carry"])
def test_bits_of_words_sum_to_those_of_perplexity(bilm, state):
    sentences = tokenizer_for("en").sentences(STORY)
    found = list(word_surprisal(bilm, [Word(word) for word in STORY.split()], state=state))
    assert [one.word.text for one in found] == STORY.split()
    for direction in ("forward", "backward"):
        bits = sum(one.bits[direction] for one in found)
        tokens = sum(getattr(one, direction).sum() for one in surprisal(bilm, sentences, state=state))
        assert bits == pytest.approx(tokens)
        loss = perplexity(bilm, sentences, state=state).loss(direction) / math.log(2)
        assert bits < loss  # the ends of the sentences are no words


def test_one_row_for_each_word_of_natural_stories(bilm, stories):
    columns, rows = surprisal_table(
        bilm, stories, "word", group="item", state="carry", spillover=2, entropy=True, rank=True
    )
    rows = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [(row["word"], row["zone"], row["item"]) for row in rows] == [
        tuple(map(str, row)) for row in NATURAL_STORIES
    ]
    assert rows[4]["word"] == "bow."
    assert rows[4]["tokens"] == 2
    assert rows[4]["length"] == 4
    assert rows[4]["forward_1"] == rows[3]["forward"]
    assert rows[4]["backward_2"] == rows[2]["backward"]
    assert rows[0]["forward_1"] is None
    first_of_second = rows[-2]
    assert (first_of_second["word"], first_of_second["forward_1"]) == ("Bow", None)
    assert rows[-1]["length_1"] == 3
    assert all(row["forward_entropy"] > 0 and row["backward_rank"] >= 1 for row in rows)


def test_a_story_carries_state_and_the_next_starts_anew(bilm):
    text = [Word(word, "1") for word in STORY.split()]
    carried = list(word_surprisal(bilm, [*text, Word("rose", "2")], state="carry"))
    reset = list(word_surprisal(bilm, [*text, Word("rose", "2")], state="reset"))
    assert carried[4].bits["forward"] == pytest.approx(reset[4].bits["forward"])
    assert carried[5].bits["forward"] != pytest.approx(reset[5].bits["forward"])
    [alone] = word_surprisal(bilm, [Word("rose")])
    assert carried[-1].bits == pytest.approx(alone.bits)


def test_rank_and_entropy_are_those_of_the_token_that_is_read_first(bilm):
    from torchelmo.lm import Scorer

    found = list(word_surprisal(bilm, [Word("the"), Word("bow.")], rank=True, entropy=True))
    for direction, token in (("forward", 1), ("backward", 2)):
        [tokens] = Scorer(bilm, direction).token_score([["the", "bow", "."]], rank=True, entropy=True, base_two=True)
        assert found[1].ranks[direction] == tokens[token][2]
        assert found[1].entropies[direction] == pytest.approx(tokens[token][3])


def test_blocks_do_not_change_anything(bilm, monkeypatch):
    text = [Word(word) for word in (STORY + " One.Two three. ").split() * 3]
    whole = list(word_surprisal(bilm, text))
    for size in (1, 2, 7):
        monkeypatch.setattr(words, "_BLOCK", size)
        found = list(word_surprisal(bilm, text))
        assert [one.tokens for one in found] == [one.tokens for one in whole]
        for direction in ("forward", "backward"):
            assert [one.bits[direction] for one in found] == pytest.approx([one.bits[direction] for one in whole])


def test_words_without_tokens_have_no_values(bilm):
    found = list(word_surprisal(bilm, [Word(""), Word("the"), Word(" "), Word("bow"), Word("")]))
    assert [len(one.tokens) for one in found] == [0, 1, 0, 1, 0]
    assert found[0].bits == {}
    assert [one.tokens for one in word_surprisal(bilm, [Word("")])] == [[]]


def test_a_sentence_column_overrides_the_rules(bilm):
    named = [Word("the", sentence="1"), Word("bow.", sentence="1"), Word("Rose", sentence="1"), Word("a", sentence="2")]
    found = list(word_surprisal(bilm, named))
    [one] = surprisal(bilm, [["the", "bow", ".", "Rose"]])
    assert found[2].bits["forward"] == pytest.approx(one.forward[3])


def test_tokenized_words_are_used_unchanged(bilm):
    found = list(word_surprisal(bilm, [Word("the"), Word("isn't"), Word("a bow")], lang=None))
    assert [one.tokens for one in found] == [["the"], ["isn't"], ["a", "bow"]]
    assert not found[1].in_vocabulary


def test_frequencies_of_a_list(tmp_path, bilm, stories):
    path = tmp_path / "counts.tsv"
    path.write_text("rose\t3\nthe\t4\n", encoding="utf-8")
    found = Frequencies(path)
    assert found.log2(["rose", "."]) == pytest.approx(math.log2(4 / 10))
    assert found.log2(["The"]) == pytest.approx(math.log2(5 / 10))
    assert found.log2(["."]) == found.log2(["bow"]) == pytest.approx(math.log2(1 / 10))
    assert found.log2([]) is None
    columns, rows = surprisal_table(bilm, stories, "word", frequencies=found, directions=["forward"], spillover=1)
    assert columns[3:] == "forward length log_frequency tokens in_vocabulary forward_1 length_1 log_frequency_1".split()
    assert next(rows)[5] == pytest.approx(math.log2(5 / 10), abs=1e-4)
    path.write_text("rose 3\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions("counts.tsv", "line 1", "'rose 3'")):
        Frequencies(path)


def test_frequencies_of_prepared_text(tmp_path):
    from torchelmo.lm.corpus import write_corpus

    write_corpus(tmp_path / "data", [["a", "bow"], ["a"]])
    found = Frequencies(tmp_path / "data")
    assert found.log2(["a"]) - found.log2(["bow"]) == pytest.approx(math.log2(3 / 2))


def test_wrong_tables_are_named(tmp_path, bilm, stories):
    with pytest.raises(InputError, match=mentions("all_stories.tok", "'token'", "'zone'", "--words")):
        surprisal_table(bilm, stories, "token")
    with pytest.raises(ConfigError, match=mentions("direction", "sideways")):
        surprisal_table(bilm, stories, "word", directions=["sideways"])
    path = tmp_path / "t.csv"
    path.write_text("word,forward\na,1\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions("t.csv", "'forward'")):
        surprisal_table(bilm, path, "word")
    path.write_text("word,item\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions("t.csv")):
        list(surprisal_table(bilm, path, "word")[1])


def test_csv_and_tsv_are_told_apart(tmp_path):
    path = tmp_path / "table"
    for text, rows in [
        ('a,b\n"x, ""y""",2\n\n', [(2, ['x, "y"', "2"])]),
        ('a\tb\n"x\t2\n', [(2, ['"x', "2"])]),
        ("a;b\n1;2\n", [(2, ["1", "2"])]),
        ("word\nowners,\n", [(2, ["owners,"])]),
        ('a,b\n"x\ny",2\n3,4\n', [(2, ["x\ny", "2"]), (4, ["3", "4"])]),
    ]:
        path.write_text(text, encoding="utf-8")
        assert list(TableReader(path)) == rows


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("", ["first line"]),
        ("a,a\n", ["line 1", "'a'"]),
        ("a,b\n1\n", ["line 2", 2, 1]),
        ('a,b\n"1,2\n', ["line 2"]),
    ],
)
def test_damaged_tables_are_named(tmp_path, text, facts):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=mentions("t.csv", *facts)):
        list(TableReader(path))
