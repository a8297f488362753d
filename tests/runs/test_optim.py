"""Optimisers and the learning rate over a run."""

import math

import pytest
import torch
from facts import mentions
from torch import nn

from torchelmo.bilm.lstm import ProjectedLSTM
from torchelmo.config import build_config
from torchelmo.errors import ConfigError, WeightsError
from torchelmo.runs.config import OptimConfig, TaskOptimConfig
from torchelmo.runs.muon import lstm_blocks, orthogonalize
from torchelmo.runs.optim import (
    MovingAverage,
    build_optimizer,
    clip_gradients,
    learning_rate,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)

NAMES = ["a", "b.c"]


def parameters():
    torch.manual_seed(3)
    return [nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(7))]


def take(optimizer, weights, n, start=0):
    for i in range(start, start + n):
        for weight in weights:
            weight.grad = torch.sin(weight.detach() * 3 + i)
        optimizer.step()


def rates(config, n):
    return [learning_rate(config, step=i, before=(i - 1) / n, after=i / n) for i in range(1, n + 1)]


def test_adagrad_is_the_published_one():
    """acc ← acc + g², w ← w − lr · g / √acc, from an accumulator of 1."""
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = build_optimizer(OptimConfig(), [weight])
    expected, accumulator = torch.tensor([1.0, -2.0]), torch.ones(2)
    for gradient in (torch.tensor([3.0, 0.5]), torch.tensor([-1.0, 0.0])):
        weight.grad = gradient.clone()
        optimizer.step()
        accumulator += gradient**2
        expected -= 0.2 * gradient / accumulator.sqrt()
    torch.testing.assert_close(weight.detach(), expected)


def test_adamw_decays_weights_apart_from_the_gradient():
    weight = nn.Parameter(torch.ones(3))
    optimizer = build_optimizer(OptimConfig(name="adamw", lr=0.1, weight_decay=0.5), [weight])
    weight.grad = torch.zeros(3)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), 0.95))


def test_the_rate_rises_and_falls():
    assert rates(OptimConfig(lr=2.0), 3) == [2.0, 2.0, 2.0]
    assert rates(OptimConfig(lr=1.0, decay="linear", final=0.5), 4) == [1.0, 0.875, 0.75, 0.625]
    warm = rates(OptimConfig(lr=1.0, warmup=0.5), 8)
    assert warm == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert rates(OptimConfig(lr=1.0, warmup=4), 8) == pytest.approx(warm)
    cosine = rates(OptimConfig(lr=1.0, decay="cosine"), 4)
    assert cosine == pytest.approx([1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)])


def test_the_rate_stays_at_its_end_after_the_end():
    config = OptimConfig(lr=1.0, decay="linear", final=0.1)
    assert learning_rate(config, step=9, before=1.5, after=1.6) == pytest.approx(0.1)


def test_a_held_rate_falls_only_in_the_last_part_of_the_run():
    config = OptimConfig(name="adamw", lr=1.0, decay="linear", hold=0.5, final=0.2)
    assert rates(config, 8) == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4])


@pytest.mark.parametrize("hold", [-0.1, 1.0])
def test_a_hold_that_leaves_no_time_for_the_decay_is_refused(hold):
    with pytest.raises(ConfigError, match=mentions("hold", hold)):
        OptimConfig(hold=hold)


def test_the_whole_gradient_is_clipped():
    one, two = parameters()
    one.grad, two.grad = torch.full((5, 4), 2.0), torch.zeros(7)
    norm = clip_gradients([one, two], 1.0)
    assert norm == pytest.approx(math.sqrt(80.0))
    assert float(one.grad.norm()) == pytest.approx(1.0, rel=1e-5)
    one.grad = torch.full((5, 4), 2.0)
    assert clip_gradients([one, two], 0.0) == pytest.approx(math.sqrt(80.0))
    assert bool((one.grad == 2.0).all())


def test_adadelta_is_the_published_one():
    """v ← ρv + (1 − ρ)g², d = √(u + ε) / √(v + ε) · g, u ← ρu + (1 − ρ)d², w ← w − lr · d."""
    config = OptimConfig(name="adadelta", rho=0.9, eps=1e-6)
    assert config.peak == 1.0
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = build_optimizer(config, [weight])
    expected, squares, steps = torch.tensor([1.0, -2.0]), torch.zeros(2), torch.zeros(2)
    for gradient in (torch.tensor([3.0, 0.5]), torch.tensor([-1.0, 0.2])):
        weight.grad = gradient.clone()
        optimizer.step()
        squares = 0.9 * squares + 0.1 * gradient**2
        step = (steps + 1e-6).sqrt() / (squares + 1e-6).sqrt() * gradient
        steps = 0.9 * steps + 0.1 * step**2
        expected -= step
    torch.testing.assert_close(weight.detach(), expected)


def test_a_share_of_the_past_that_never_fades_is_refused():
    with pytest.raises(ConfigError, match=mentions("rho", 1.0)):
        OptimConfig(rho=1.0)


def newton_schulz(matrix):
    """The published loop, one matrix at a time."""
    x = matrix / matrix.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def test_muon_is_the_published_one_for_each_gate_by_itself():
    torch.manual_seed(0)
    gates, tall, bias = (nn.Parameter(torch.randn(shape)) for shape in ((3, 16), (7, 3), (5,)))
    config = OptimConfig(name="muon", lr=0.1, weight_decay=0.5, muon_momentum=0.9, muon_scale=0.3)
    muon = build_optimizer(config, [gates, bias, tall], {gates: 4, tall: 1})
    other = nn.Parameter(bias.detach().clone())
    adamw = build_optimizer(OptimConfig(name="adamw", lr=0.1, weight_decay=0.5), [other])
    expected = [gates.detach().clone(), tall.detach().clone()]
    momenta = [torch.zeros(3, 16), torch.zeros(7, 3)]
    for _ in range(3):
        gates.grad, tall.grad, bias.grad = torch.randn(3, 16), torch.randn(7, 3), torch.randn(5)
        other.grad = bias.grad.clone()
        for weight, gradient, momentum in zip(expected, (gates.grad, tall.grad), momenta):
            momentum.mul_(0.9).add_(0.1 * gradient)
            update = 0.1 * gradient + 0.9 * momentum
            weight.mul_(1 - 0.1 * 0.5)
            if weight.shape == (3, 16):
                for k in range(0, 16, 4):
                    weight[:, k : k + 4] -= 0.1 * 0.3 * 4**0.5 * newton_schulz(update[:, k : k + 4])
            else:
                weight -= 0.1 * 0.3 * 7**0.5 * newton_schulz(update.T).T
        muon.step()
        adamw.step()
    torch.testing.assert_close([gates.detach(), tall.detach()], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(bias, other)


def test_orthogonalized_matrices_have_singular_values_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(3, 32, 128)))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.25


def test_a_zero_gradient_leaves_the_matrix():
    weight = nn.Parameter(torch.ones(2, 4))
    weight.grad = torch.zeros(2, 4)
    build_optimizer(OptimConfig(name="muon"), [weight], {weight: 2}).step()
    assert torch.equal(weight, torch.ones(2, 4))


def test_muon_without_matrices_is_refused():
    with pytest.raises(ConfigError, match=mentions("optim.name", "muon")):
        build_optimizer(OptimConfig(name="muon"), parameters())


def test_tasks_cannot_choose_muon():
    with pytest.raises(ConfigError, match=mentions("name", "muon")):
        build_config(TaskOptimConfig, {"name": "muon"})
    with pytest.raises(ConfigError, match=mentions("muon_scale")):
        build_config(TaskOptimConfig, {"muon_scale": 0.1})


def test_all_lstm_matrices_are_orthogonalized_and_gates_are_blocks():
    lstm = ProjectedLSTM(3, 8, 4)
    found = lstm_blocks(nn.ModuleList([lstm, nn.Linear(2, 2)]))
    assert found == {lstm.input_weight: 4, lstm.state_weight: 4, lstm.projection: 1}


OPTIMIZERS = [{"name": name} for name in ("adagrad", "adam", "adamw", "adadelta", "muon")]


@pytest.mark.parametrize("settings", OPTIMIZERS)
def test_a_restored_optimizer_goes_on_bit_for_bit(settings):
    config = OptimConfig(**settings, lr=0.05)
    straight = parameters()
    take(build_optimizer(config, straight, {straight[0]: 2}), straight, 6)

    broken = parameters()
    first = build_optimizer(config, broken, {broken[0]: 2})
    take(first, broken, 3)
    second = build_optimizer(config, broken, {broken[0]: 2})
    restore_optimizer(second, NAMES, optimizer_tensors(first, NAMES), "here")
    set_learning_rate(second, 0.05)
    take(second, broken, 3, start=3)
    for one, other in zip(straight, broken, strict=True):
        assert torch.equal(one, other)


def test_state_of_another_model_is_refused():
    weights = parameters()
    optimizer = build_optimizer(OptimConfig(), weights)
    take(optimizer, weights, 1)
    tensors = optimizer_tensors(optimizer, NAMES)
    with pytest.raises(WeightsError, match=mentions("place", "b.c")):
        restore_optimizer(optimizer, ["a", "d"], tensors, "place")
    del tensors["a/sum"], tensors["a/step"]
    with pytest.raises(WeightsError, match=mentions("place", "'a/sum'")):
        restore_optimizer(optimizer, NAMES, tensors, "place")
    restore_optimizer(optimizer, NAMES, tensors, "place", complete=False)


def test_the_moving_average_is_the_documented_one():
    """a ← d·a + (1 − d)·w with d = min(decay, (1 + n) / (10 + n)), by hand."""
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    average = MovingAverage(model, 0.25)
    expected = model.weight.detach().clone()
    for n in range(1, 6):
        with torch.no_grad():
            model.weight.add_(torch.randn(2, 3))
        average.update(model)
        decay = min(0.25, (1 + n) / (10 + n))
        assert decay < 0.25 or n > 1  # both are tried
        expected = decay * expected + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.tensors["weight"], expected)
    assert "bias" not in average.tensors


def test_the_model_has_the_average_inside_the_block_only():
    model = nn.Linear(3, 2)
    average = MovingAverage(model, 0.9)
    with torch.no_grad():
        model.weight.add_(1.0)
    before = model.weight.detach().clone()
    with average.in_place(model):
        assert torch.equal(model.weight, average.tensors["weight"])
        assert not torch.equal(model.weight, before)
    assert torch.equal(model.weight, before)
