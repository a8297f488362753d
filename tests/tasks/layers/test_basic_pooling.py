"""Pooling against loops written out; padding holds wild values that must not be seen."""

import math

import pytest
import torch

from torchelmo.tasks.layers.basic import SelfAttentivePool, max_pool, mean_pool, min_pool

LENGTHS = [4, 1, 3]
MASK = torch.arange(4) < torch.tensor(LENGTHS).unsqueeze(1)


@pytest.fixture
def vectors() -> torch.Tensor:
    values = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return values.masked_fill(~MASK.unsqueeze(-1), 1e6)


@pytest.mark.parametrize(
    ("pool", "of_list"), [(max_pool, max), (min_pool, min), (mean_pool, lambda values: sum(values) / len(values))]
)
def test_pools_every_dimension_over_real_tokens(pool, of_list, vectors):
    pooled = pool(vectors, MASK)
    for row, length in enumerate(LENGTHS):
        for dim in range(5):
            expected = of_list([vectors[row, t, dim].item() for t in range(length)])
            assert pooled[row, dim].item() == pytest.approx(expected)


def test_self_attentive_pool_weighs_tokens_by_a_learned_score(vectors):
    pool = SelfAttentivePool(5).double()
    pooled = pool(vectors, MASK)
    weight, bias = pool.score.weight[0], pool.score.bias
    for row, length in enumerate(LENGTHS):
        shares = [math.exp((weight @ vectors[row, t] + bias).item()) for t in range(length)]
        expected = sum(share / sum(shares) * vectors[row, t] for t, share in enumerate(shares))
        torch.testing.assert_close(pooled[row], expected)


@pytest.mark.parametrize("pool", [max_pool, min_pool, mean_pool, SelfAttentivePool(5)])
def test_a_sequence_without_tokens_pools_to_0_with_finite_gradients(pool):
    vectors = torch.randn(2, 3, 5, requires_grad=True)
    pooled = pool(vectors, torch.tensor([[False] * 3, [True] * 3]))
    assert not pooled[0].any()
    pooled.sum().backward()
    assert torch.isfinite(vectors.grad).all()
    assert not vectors.grad[0].any()
