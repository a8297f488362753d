"""Distinct rows, and every row's place among them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.bilm.fast import encoder as unique
from torchelmo.bilm.fast.encoder import unique_rows


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), max_size=20))
def test_every_row_once(rows):
    ids = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), 3)
    distinct, place = unique_rows(ids)
    assert torch.equal(distinct[place], ids)
    assert len(distinct) == len(set(map(tuple, rows)))


def test_words_that_share_a_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(unique, "_multipliers", lambda width: torch.ones(width, dtype=torch.int64))
    ids = torch.tensor([[1, 2], [2, 1], [1, 2], [3, 0]])
    distinct, place = unique_rows(ids)
    assert torch.equal(distinct[place], ids)
    assert len(distinct) == 3
