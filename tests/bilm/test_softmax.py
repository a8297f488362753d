"""Log-probabilities that sum to one."""

import pytest
import torch

from torchelmo.bilm.model import Softmax


@pytest.mark.parametrize("softmax", [Softmax(9, 4)])
def test_probabilities_of_all_words(softmax):
    probabilities = softmax(torch.randn(2, 3, 4)).exp()
    assert probabilities.shape == (2, 3, 9)
    torch.testing.assert_close(probabilities.sum(dim=-1), torch.ones(2, 3))


@pytest.mark.parametrize("softmax", [Softmax(5, 4)])
def test_starting_from_counts_predicts_frequencies(softmax):
    softmax.start_from_counts(torch.tensor([50, 30, 10, 10, 0]))
    found = softmax(torch.zeros(4)).exp()
    torch.testing.assert_close(found, torch.tensor([50.0, 30.0, 10.0, 10.0, 1.0]) / 101)


def test_a_tied_weight_is_the_same_parameter():
    weight = torch.nn.Parameter(torch.randn(5, 4))
    softmax = Softmax(5, 4, weight)
    assert softmax.weight is weight
    hidden = torch.randn(3, 4)
    torch.testing.assert_close(softmax(hidden), torch.log_softmax(hidden @ weight.T, dim=-1))
