"""One step of training, written out; a step that cannot be taken moves nothing."""

import copy

import pytest
import torch
from tiny_tasks import pos_config

from torchelmo.runs.optim import MovingAverage
from torchelmo.runs.resume import Stop
from torchelmo.tasks.runner import start, take_step
from torchelmo.tasks.trained import trained_parameters


@pytest.fixture
def started(data, bilm_folder, tmp_path):
    elmo = {"place": "input", "model": str(bilm_folder), "l2": 5.0, "dropout": 0.0}
    found = start(pos_config(data, tmp_path, elmo=elmo, model={"dropout": 0.0}), Stop())
    with torch.no_grad():
        found.trained.model.inputs.elmo.mixes[0].scalars += torch.tensor([0.0, 0.5, 1.0])
    return found


def test_a_step_has_the_penalty_and_a_limit_and_is_averaged(started):
    model, examples = started.trained.model, started.examples[:4]
    by_hand = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained_parameters(model).values(), lr=0.1)
    average = MovingAverage(model, 0.5)
    step = take_step(model, list(trained_parameters(model).values()), optimizer, average, examples, clip=0.01)

    loss = by_hand.loss(examples)
    (loss + by_hand.inputs.elmo.penalty()).backward()
    gradients = {name: p.grad for name, p in trained_parameters(by_hand).items() if p.grad is not None}
    norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm().item()
    assert step == (loss.item(), pytest.approx(norm))
    assert norm > 0.01
    for name, parameter in trained_parameters(by_hand).items():
        expected = parameter - 0.1 * gradients.get(name, torch.zeros(())) * 0.01 / norm
        found = trained_parameters(model)[name]
        assert torch.allclose(found, expected, atol=1e-6)
        assert found.grad is None
        assert torch.allclose(average.tensors[name], parameter.lerp(expected, 9 / 11), atol=1e-6)


def test_a_step_that_is_not_finite_is_not_taken(started):
    model, examples = started.trained.model, started.examples[:4]
    with torch.no_grad():
        model.inputs.elmo.mixes[0].gamma.fill_(torch.inf)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = list(trained_parameters(model).values())
    step = take_step(model, parameters, torch.optim.SGD(parameters, lr=0.1), None, examples, clip=0.01)
    assert not step.is_finite
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
