"""Variational dropout."""

import pytest
import torch
from facts import mentions

from torchelmo.errors import ConfigError
from torchelmo.tasks.layers.basic import VariationalDropout


def test_one_mask_serves_all_tokens_of_a_row_and_each_row_has_its_own():
    torch.manual_seed(0)
    dropped = VariationalDropout(0.5)(torch.ones(4, 7, 64))
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert len(torch.unique(dropped[:, 0], dim=0)) == 4


def test_what_is_kept_is_scaled_so_that_the_mean_stays():
    torch.manual_seed(0)
    dropped = VariationalDropout(0.2)(torch.ones(100, 2, 100))
    assert sorted(set(dropped.flatten().tolist())) == [0.0, 1.25]
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)


def test_evaluation_changes_nothing_and_draws_nothing():
    x = torch.randn(2, 3, 4)
    before = torch.get_rng_state()
    assert VariationalDropout(0.5).eval()(x) is x
    assert VariationalDropout(0.0)(x) is x
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_an_impossible_share_is_refused(p):
    with pytest.raises(ConfigError, match=mentions("VariationalDropout", p)):
        VariationalDropout(p)
