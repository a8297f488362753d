"""Tokens as treebanks write them."""

import pytest

from torchelmo.text.reading import unescape


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("-LRB-", "("),
        ("-rrb-", ")"),
        ("-LSB-", "["),
        ("-RCB-", "}"),
        (r"1\/2", "1/2"),
        (r"\*\*", "**"),
        ("-LRB", "-LRB"),
    ],
)
def test_brackets_slashes_and_stars(written, meant):
    assert unescape(written) == meant
