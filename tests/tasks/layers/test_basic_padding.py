"""Rows of different lengths as one tensor."""

import pytest
import torch

from torchelmo.tasks.layers.basic import lengths_mask, pad_ids


@pytest.mark.parametrize("lengths", [[2, 0, 3], torch.tensor([2, 0, 3])])
def test_the_mask_is_true_at_the_real_positions(lengths):
    assert lengths_mask(lengths).tolist() == [[True, True, False], [False] * 3, [True] * 3]


def test_rows_are_padded_at_their_ends():
    assert pad_ids([[4, 5, 6], [], [7]], value=-1).tolist() == [[4, 5, 6], [-1, -1, -1], [7, -1, -1]]


def test_padding_keeps_the_number_of_rows_where_all_are_empty():
    assert pad_ids([[], []]).shape == (2, 0)
    assert lengths_mask([0, 0]).shape == (2, 0)
    assert pad_ids([]).shape == (0, 0)
    assert lengths_mask([]).shape == (0, 0)


def test_ids_are_integers_and_masks_are_booleans():
    assert pad_ids([[]]).dtype == torch.int64
    assert lengths_mask([1]).dtype == torch.bool
