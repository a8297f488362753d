"""Masked softmax and attention against loops written out."""

import math

import torch

from torchelmo.tasks.layers.basic import attend, masked_softmax, self_attend

MASK = torch.tensor([[True, True, True, True], [True, True, False, False]])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_masked_softmax_shares_1_among_real_positions():
    scores = random(2, 4)
    weights = masked_softmax(scores, MASK)
    for row in range(2):
        total = sum(math.exp(scores[row, i]) for i in range(4) if MASK[row, i])
        for i in range(4):
            expected = math.exp(scores[row, i]) / total if MASK[row, i] else 0.0
            assert math.isclose(weights[row, i], expected, abs_tol=1e-12)


def test_masked_softmax_over_another_dimension():
    scores = random(2, 4, 3)
    torch.testing.assert_close(
        masked_softmax(scores, MASK.unsqueeze(-1), dim=1),
        masked_softmax(scores.transpose(1, 2), MASK.unsqueeze(1)).transpose(1, 2),
    )


def test_masked_softmax_of_no_position_is_0_with_gradient_0():
    scores = random(2, 4).requires_grad_()
    weights = masked_softmax(scores, torch.zeros(2, 4, dtype=torch.bool))
    assert not weights.any()
    weights.sum().backward()
    assert not scores.grad.any()


def test_masked_softmax_bears_large_scores_at_masked_positions():
    scores = torch.tensor([[-1e4, 1e30, torch.inf]])
    assert masked_softmax(scores, torch.tensor([[True, False, False]])).tolist() == [[1.0, 0.0, 0.0]]


def test_attend_is_a_weighted_sum_of_real_values():
    scores, values = random(2, 3, 4), random(2, 4, 5)
    seen = attend(scores, values, MASK)
    for row in range(2):
        real = [j for j in range(4) if MASK[row, j]]
        for i in range(3):
            total = sum(math.exp(scores[row, i, j]) for j in real)
            expected = sum(math.exp(scores[row, i, j]) / total * values[row, j] for j in real)
            torch.testing.assert_close(seen[row, i], expected)


def test_self_attend_scores_by_dot_products_and_sees_no_padding():
    vectors = random(2, 4, 5)
    seen = self_attend(vectors, MASK)
    torch.testing.assert_close(seen[1, :2], self_attend(vectors[1:, :2], MASK[1:, :2])[0])
    weights = [math.exp(vectors[1, 0] @ vectors[1, j]) for j in range(2)]
    torch.testing.assert_close(seen[1, 0], (weights[0] * vectors[1, 0] + weights[1] * vectors[1, 1]) / sum(weights))
