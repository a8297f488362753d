"""Feed-forward layers."""

import pytest
import torch
from facts import mentions

from torchelmo.errors import ConfigError
from torchelmo.tasks.layers.basic import ACTIVATIONS, FeedForward


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_layers_are_applied_one_after_the_other(activation):
    torch.manual_seed(0)
    network = FeedForward([3, 5, 2], activation=activation)
    x = torch.randn(4, 6, 3)
    act = getattr(torch, activation)
    expected = x
    for linear in network.layers:
        expected = act(expected @ linear.weight.T + linear.bias)
    torch.testing.assert_close(network(x), expected)
    assert network.dim == 2


def test_a_linear_last_layer_has_neither_activation_nor_dropout():
    torch.manual_seed(0)
    network = FeedForward([3, 4], dropout=0.9, last_linear=True)
    x = torch.randn(50, 3)
    (linear,) = network.layers
    assert torch.equal(network(x), linear(x))
    assert (network(x) < 0).any()


def test_dropout_follows_every_other_layer_in_training_alone():
    torch.manual_seed(0)
    network = FeedForward([3, 40, 40], dropout=0.5)
    with torch.no_grad():
        for linear in network.layers:
            linear.bias.fill_(9.0)  # nothing is zero by itself
            linear.weight.zero_()
    x = torch.randn(10, 3)
    assert set(network(x).unique().tolist()) == {0.0, 18.0}
    assert set(network.eval()(x).unique().tolist()) == {9.0}


def test_an_unknown_activation_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match=mentions("'rellu'", "Did you mean 'relu'")):
        FeedForward([2, 2], activation="rellu")


def test_a_network_without_layers_is_refused():
    with pytest.raises(ConfigError, match=mentions("FeedForward", [2])):
        FeedForward([2])
