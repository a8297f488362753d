"""Files of columns."""

import gzip
import re

import pytest
from facts import mentions

from torchelmo.errors import InputError, MissingFileError
from torchelmo.text.reading import malformed, read_columns


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_blank_lines_part_the_blocks_and_every_row_knows_its_line(tmp_path):
    path = write(tmp_path / "a.conll", "\n\nthe DT\ndog NN\n\n\n \t \nruns VB\n")
    first, second = read_columns(path)
    assert first.rows == [["the", "DT"], ["dog", "NN"]]
    assert first.lines == [3, 4]
    assert second.rows == [["runs", "VB"]]
    assert second.lines == [8]


def test_a_blank_line_may_hold_the_separator(tmp_path):
    path = write(tmp_path / "a.conll", "the\tO\n\t\ndog\tO\n")
    assert [block.rows for block in read_columns(path, separator="\t")] == [[["the", "O"]], [["dog", "O"]]]


def test_columns_stand_between_any_spaces_and_tabs(tmp_path):
    path = write(tmp_path / "a.conll", "  a   b\tc \n")
    (block,) = read_columns(path)
    assert block.rows == [["a", "b", "c"]]


def test_a_separator_leaves_spaces_and_empty_columns_alone(tmp_path):
    path = write(tmp_path / "a.conll", "a b\t\tc\n")
    (block,) = read_columns(path, separator="\t")
    assert block.rows == [["a b", "", "c"]]


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2028", "\x0c"])
def test_other_white_space_is_part_of_a_token(tmp_path, space):
    path = write(tmp_path / "a.conll", f"10{space}000 O\n{space} O\n")
    (block,) = read_columns(path)
    assert block.rows == [[f"10{space}000", "O"], [space, "O"]]


def test_comments_belong_to_the_block_that_follows(tmp_path):
    path = write(tmp_path / "a.conll", "# one\na A\n\n# two\n# three\nb B\n\n# nothing follows\n")
    assert [block.comments for block in read_columns(path)] == [["# one"], ["# two", "# three"]]


def test_a_file_without_comments_may_have_tokens_that_look_like_them(tmp_path):
    path = write(tmp_path / "a.conll", "# O\n#win O\n")
    (block,) = read_columns(path, comment=None)
    assert block.rows == [["#", "O"], ["#win", "O"]]


def test_compressed_files_are_read(tmp_path):
    path = tmp_path / "a.conll.gz"
    path.write_bytes(gzip.compress(b"a A\r\n\r\nb B\r\n"))
    assert [block.rows for block in read_columns(path)] == [[["a", "A"]], [["b", "B"]]]


def test_a_file_without_rows_has_no_blocks(tmp_path):
    assert list(read_columns(write(tmp_path / "a.conll", "\n# only this\n\n"))) == []


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingFileError, match=mentions(tmp_path / "a.conll")):
        next(read_columns(tmp_path / "a.conll"))


def test_a_malformed_line_is_named():
    error = malformed("a.conll", 3, "2 columns", "1")
    assert isinstance(error, InputError)
    assert re.search(mentions("a.conll", "line 3", "2 columns", 1), str(error))
