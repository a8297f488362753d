"""Each loss equals what its equation says, in plain NumPy; gradients by finite differences and by expectation."""

from typing import Any

import numpy as np
import pytest
import torch
from facts import mentions
from torch import Tensor

from torchelmo import BiLM, BiLMConfig
from torchelmo.bilm.model import Softmax
from torchelmo.errors import ConfigError, InputError
from torchelmo.lm import losses as cross_entropy
from torchelmo.lm.losses import LOSSES, Negatives, Sampler, touched_rows

N_WORDS, DIM = 11, 4
Array = np.ndarray[Any, Any]


def full_softmax() -> Softmax:
    softmax = Softmax(N_WORDS, DIM).double()
    torch.nn.init.normal_(softmax.bias)
    return softmax


def tokens(n: int = 9) -> tuple[Tensor, Tensor]:
    return torch.randn(n, DIM, dtype=torch.float64, requires_grad=True), torch.randint(0, N_WORDS, (n,))


def some_negatives() -> Negatives:
    """Words 0, 2, 3, 9: targets among them, and targets not among them."""
    return Negatives(torch.tensor([0, 2, 3, 9]), torch.tensor([-0.1, -0.4, -1.5, -3.0], dtype=torch.float64))


def array(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().numpy(), dtype=np.float64)


def scores(softmax: Softmax, hidden: Array) -> Array:
    result: Array = hidden @ array(softmax.weight).T + array(softmax.bias)
    return result


def log_sum(values: Array) -> float:
    return float(np.log(np.sum(np.exp(values))))


def full_oracle(softmax: Softmax, hidden: Array, targets: Array) -> float:
    rows = scores(softmax, hidden)
    return float(np.mean([log_sum(row) - row[target] for row, target in zip(rows, targets)]))


def sampled_oracle(softmax: Softmax, hidden: Array, targets: Array, negatives: Negatives) -> float:
    total = 0.0
    for row, target in zip(scores(softmax, hidden), targets):
        others = [
            row[word] - correction
            for word, correction in zip(negatives.words.tolist(), negatives.log_inclusion.tolist())
            if word != target
        ]
        total += log_sum(np.array([row[target], *others])) - row[target]
    return total / len(targets)


def test_full_loss_equals_the_oracle():
    softmax, (hidden, targets) = full_softmax(), tokens()
    loss = LOSSES["full"](softmax, hidden, targets, None)
    assert float(loss.detach()) == pytest.approx(full_oracle(softmax, array(hidden), targets.numpy()), rel=1e-12)


def test_sampled_loss_equals_the_oracle():
    softmax, (hidden, targets) = full_softmax(), tokens(40)
    negatives = some_negatives()
    loss = LOSSES["sampled"](softmax, hidden, targets, negatives)
    expected = sampled_oracle(softmax, array(hidden), targets.numpy(), negatives)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("at_once", [1, 2, 1000])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_by_finite_differences(name: str, at_once: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cross_entropy, "_tokens_at_once", lambda _: at_once)  # tokens come in parts
    softmax = full_softmax()
    hidden, targets = tokens(5)
    negatives = some_negatives()
    parameters = list(softmax.parameters())
    assert torch.autograd.gradcheck(lambda h, *_: LOSSES[name](softmax, h, targets, negatives), (hidden, *parameters))


@pytest.mark.parametrize("name", LOSSES)
def test_no_gradients_are_formed_without_need(name: str):
    softmax = full_softmax()
    hidden, targets = tokens()
    with_gradients = LOSSES[name](softmax, hidden, targets, some_negatives())
    with torch.no_grad():
        without = LOSSES[name](softmax, hidden, targets, some_negatives())
    assert not without.requires_grad
    assert torch.equal(with_gradients.detach(), without)


def test_losses_too_large_for_a_power_are_finite():
    softmax = full_softmax().float()
    hidden = torch.full((2, DIM), 1e3, requires_grad=True)
    targets = softmax(hidden[:1]).argmin(dim=1).expand(2)
    for name in ("full", "sampled"):
        loss = LOSSES[name](softmax, hidden, targets, some_negatives())
        (gradient,) = torch.autograd.grad(loss, hidden)
        assert 90 < float(loss.detach()) < 1e5
        assert bool(gradient.isfinite().all())


def test_only_touched_rows_get_a_gradient():
    softmax, (hidden, targets) = full_softmax(), tokens(4)
    targets[:] = torch.tensor([5, 0, 5, 9])
    negatives = some_negatives()
    LOSSES["sampled"](softmax, hidden, targets, negatives).backward()
    rows = touched_rows(targets, negatives)
    assert rows.tolist() == [0, 2, 3, 5, 9]
    assert softmax.weight.grad is not None
    assert softmax.weight.grad.any(dim=1).nonzero().squeeze(1).tolist() == rows.tolist()
    assert softmax.bias.grad is not None
    assert softmax.bias.grad.nonzero().squeeze(1).tolist() == rows.tolist()


def test_as_many_negatives_as_words_are_the_full_softmax():
    softmax, (hidden, targets) = full_softmax(), tokens()
    for n_samples in (N_WORDS, 3 * N_WORDS):
        negatives = Sampler(N_WORDS, n_samples).draw(torch.Generator())
        results = []
        for name in ("sampled", "full"):
            loss = LOSSES[name](softmax, hidden, targets, negatives)
            results.append([loss, *torch.autograd.grad(loss, [hidden, softmax.weight, softmax.bias])])
        for sampled, full in zip(*results):
            torch.testing.assert_close(sampled, full)


def test_words_are_drawn_as_often_as_the_correction_says():
    sampler, generator, n = Sampler(40, 25), torch.Generator().manual_seed(3), 2000
    seen, said = torch.zeros(40), torch.full((40,), torch.nan)
    for _ in range(n):
        words, log_inclusion = sampler.draw(generator)
        assert torch.equal(words, words.unique())
        seen[words] += 1.0 / n
        said[words] = log_inclusion.exp()
    assert torch.allclose(seen, said, atol=4 * 0.5 / n**0.5)
    assert float(said[0]) > 2 * float(said[39])


def test_expectation_of_the_sampled_loss_is_that_of_the_full_one():
    torch.manual_seed(2)
    softmax = Softmax(40, DIM).double()
    softmax.start_from_counts(1000 // (torch.arange(40) + 1))
    hidden = torch.randn(60, DIM, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        targets = torch.multinomial(softmax(hidden).exp(), 1).squeeze(1)  # frequent words are frequent targets

    def loss_and_gradients(name: str, negatives: Negatives | None) -> list[Tensor]:
        loss = LOSSES[name](softmax, hidden, targets, negatives)
        return [loss.detach(), *torch.autograd.grad(loss, [hidden, softmax.weight, softmax.bias])]

    sampler, generator = Sampler(40, 25), torch.Generator().manual_seed(4)
    n = 400
    total = loss_and_gradients("sampled", sampler.draw(generator))
    for _ in range(n - 1):
        total = [a + b for a, b in zip(total, loss_and_gradients("sampled", sampler.draw(generator)))]
    mean, full = [part / n for part in total], loss_and_gradients("full", None)
    # log is concave, so the loss is a little low: log E[Z] ≥ E[log Z]. Nothing else may be left.
    assert 0.0 < float(full[0] - mean[0]) < 0.02 * float(full[0])
    for sampled, exact in zip(mean[1:], full[1:]):
        assert float(torch.cosine_similarity(sampled.flatten(), exact.flatten(), dim=0)) > 0.995
        assert float((sampled - exact).norm() / exact.norm()) < 0.1


def test_the_same_generator_state_draws_the_same_words():
    sampler = Sampler(1000, 50)
    draws = [sampler.draw(torch.Generator().manual_seed(7)) for _ in range(2)]
    assert torch.equal(draws[0].words, draws[1].words)
    generator = torch.Generator().manual_seed(7)
    assert not torch.equal(sampler.draw(generator).words, sampler.draw(generator).words)


def test_tied_softmax_joins_the_gradients_of_both_uses():
    bilm = BiLM(
        BiLMConfig(input="words", n_words=5, softmax_words=5, tied_softmax=True, projection_dim=3, cell_dim=4)
    ).double()
    hidden, targets = bilm.encoder(torch.tensor([1, 2, 3])), torch.tensor([1, 2, 4])
    LOSSES["full"](bilm.softmax, hidden, targets, None).backward()
    weight = bilm.encoder.embedding.detach().clone().requires_grad_()
    torch.nn.functional.cross_entropy(weight[:3] @ weight.T, targets).backward()
    assert bilm.encoder.embedding.grad is not None
    torch.testing.assert_close(bilm.encoder.embedding.grad, weight.grad)


def test_bfloat16_autocast_keeps_the_sums_in_full_precision():
    softmax = full_softmax().float()
    hidden, targets = torch.randn(50, DIM, requires_grad=True), torch.randint(0, N_WORDS, (50,))
    exact = LOSSES["full"](softmax, hidden, targets, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = LOSSES["full"](softmax, hidden.bfloat16(), targets, None)
    assert half.dtype == torch.float32
    assert float((half - exact).detach().abs()) < 0.02
    half.backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.float32


def test_bias_from_counts_predicts_the_frequencies():
    counts = torch.tensor([50, 30, 20, 9, 8, 7, 3, 2, 1, 1, 0])
    model = full_softmax()
    model.start_from_counts(counts)
    predicted = model(torch.zeros(DIM, dtype=torch.float64)).exp().detach()
    expected = counts.clamp_min(1).double()
    torch.testing.assert_close(predicted, expected / expected.sum())


def test_wrong_settings_are_named():
    hidden, targets = tokens()
    with pytest.raises(InputError, match=mentions("negatives", None, "Sampler.draw")):
        LOSSES["sampled"](full_softmax(), hidden, targets, None)
    with pytest.raises(InputError, match=mentions("hidden", "targets", "(9, 4)", "(8,)")):
        LOSSES["full"](full_softmax(), hidden, targets[1:], None)
    with pytest.raises(ConfigError, match=mentions("Sampler", 5, 0)):
        Sampler(5, 0)
