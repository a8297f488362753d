"""WordNet's index.sense."""

import pytest
from facts import mentions
from tiny_senses import BOW_GESTURE, BOW_KNOT, BOW_WEAPON, DISPLAY, GOOD, INDEX, PROVE, SHOW, SOUND

from torchelmo.analysis.senses import read_senses, word_of
from torchelmo.errors import InputError, MissingFileError


def test_senses_come_in_the_order_of_their_numbers(tmp_path):
    (tmp_path / "index.sense").write_text("\n".join(INDEX) + "\n\n")
    senses = read_senses(tmp_path / "index.sense")
    assert senses["bow", "NOUN"] == [BOW_WEAPON, BOW_KNOT, BOW_GESTURE]
    assert senses["show", "VERB"] == [SHOW, PROVE, DISPLAY]
    assert len(senses) == 6


def test_both_kinds_of_adjectives_are_one_part_of_speech(tmp_path):
    (tmp_path / "index.sense").write_text("\n".join(INDEX))
    assert read_senses(tmp_path / "index.sense")["good", "ADJ"] == [GOOD, SOUND]


def test_ten_comes_after_nine(tmp_path):
    keys = [f"run%2:30:{i:02}::" for i in range(1, 12)]
    lines = [f"{key} 0 {i} 0\n" for i, key in enumerate(keys, 1)]
    (tmp_path / "index.sense").write_text("".join(sorted(lines, reverse=True)))
    assert read_senses(tmp_path / "index.sense")["run", "VERB"] == keys


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("say%2:32:00::", ("say", "VERB")),
        ("recent%5:00:00:past:00", ("recent", "ADJ")),
        ("'s_gravenhage%1:15:00::", ("'s_gravenhage", "NOUN")),
        ("only%5:00:00:single(a):00", ("only", "ADJ")),
        ("say", None),
        ("say%6:32:00::", None),
        ("say%2:32:00", None),
        ("%2:32:00::", None),
        ("say%2:32:00::x", None),
    ],
)
def test_a_key_says_its_word(key, word):
    assert word_of(key) == word


@pytest.mark.parametrize("line", ["bow%1:04:00:: 00150000 3", "bow 00150000 3 2", "bow%1:04:00:: 00150000 x 2"])
def test_a_line_of_another_form_is_named(tmp_path, line):
    (tmp_path / "index.sense").write_text(f"{INDEX[0]}\n{line}\n")
    with pytest.raises(InputError, match=mentions("index.sense", "line 2")):
        read_senses(tmp_path / "index.sense")


def test_an_empty_file_is_no_inventory(tmp_path):
    (tmp_path / "index.sense").write_text("\n")
    with pytest.raises(InputError, match=mentions("index.sense", "WordNet")):
        read_senses(tmp_path / "index.sense")
    with pytest.raises(MissingFileError, match=mentions("gone")):
        read_senses(tmp_path / "gone")
