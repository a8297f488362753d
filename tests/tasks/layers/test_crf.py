"""The CRF, against the enumeration of all paths."""

import itertools
import math

import pytest
import torch
from facts import mentions

from torchelmo.errors import InputError
from torchelmo.tasks.layers.basic import lengths_mask
from torchelmo.tasks.layers.crf import CRF
from torchelmo.tasks.tagging import Transitions, allowed_transitions

LENGTHS = [4, 1, 0, 3]
BIO = ["O", "B-A", "I-A", "B-B", "I-B"]
BIOES = ["O", "B-A", "I-A", "E-A", "S-A"]


def make(n_labels=4, transitions=None, seed=0):
    """A CRF in double precision with scores of the size of trained ones, and a batch of emissions."""
    torch.manual_seed(seed)
    crf = CRF(n_labels, transitions=transitions).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_()
    return crf, torch.randn(4, 4, n_labels, dtype=torch.float64)


def paths_of(crf, emissions):
    """Every allowed path of one sentence, and its score."""
    start, pairs, end = (parameter.tolist() for parameter in (crf.start, crf.pairs, crf.end))
    scores = {}
    for path in itertools.product(range(crf.n_labels), repeat=len(emissions)):
        steps = list(itertools.pairwise(path))
        if (
            crf.allowed_start[path[0]]
            and crf.allowed_end[path[-1]]
            and all(crf.allowed_pairs[before, after] for before, after in steps)
        ):
            of_tokens = sum(emissions[t, label].item() for t, label in enumerate(path))
            of_pairs = sum(pairs[before][after] for before, after in steps)
            scores[path] = start[path[0]] + of_tokens + of_pairs + end[path[-1]]
    return scores


def log_sum(scores):
    highest = max(scores)
    return highest + math.log(sum(math.exp(score - highest) for score in scores))


@pytest.mark.parametrize("labels", [None, BIO, BIOES])
def test_likelihoods_equal_those_of_all_paths_counted_out(labels):
    crf, emissions = make(5, allowed_transitions(labels) if labels else None)
    for row, length in enumerate(LENGTHS):
        if not length:
            continue
        scores = paths_of(crf, emissions[row, :length])
        total = log_sum(scores.values())
        for path in list(scores)[:: max(1, len(scores) // 20)]:
            gold = torch.full((4, 4), 99)  # whatever stands at padding
            for other, n in enumerate(LENGTHS):
                gold[other, :n] = 4 if labels is BIOES else 0  # S-A or O throughout: allowed anywhere
            gold[row, :length] = torch.tensor(path)
            found = crf.log_likelihood(emissions, gold, lengths_mask(LENGTHS))
            assert found[row].item() == pytest.approx(scores[path] - total, abs=1e-9)


@pytest.mark.parametrize("labels", [None, BIO, BIOES])
@pytest.mark.parametrize("seed", range(3))
def test_the_decoded_path_is_the_best_of_all_allowed(labels, seed):
    crf, emissions = make(5, allowed_transitions(labels) if labels else None, seed)
    decoded = crf.viterbi(emissions, lengths_mask(LENGTHS))
    for row, length in enumerate(LENGTHS):
        scores = paths_of(crf, emissions[row, :length]) if length else {(): 0.0}
        assert tuple(decoded[row]) == max(scores, key=scores.__getitem__)


def test_probabilities_of_all_allowed_paths_sum_to_one():
    crf, emissions = make(5, allowed_transitions(BIO))
    paths = list(paths_of(crf, emissions[0, :3]))
    rows = emissions[:1, :3].expand(len(paths), -1, -1)
    found = crf.log_likelihood(rows, torch.tensor(paths), torch.ones(len(paths), 3, dtype=torch.bool))
    assert found.exp().sum().item() == pytest.approx(1.0)


def test_forbidden_labels_are_not_decoded_however_high_their_emissions():
    crf = CRF(3, transitions=allowed_transitions(["O", "B-A", "I-A"]))
    emissions = torch.tensor([[[0.0, -50.0, 1e6], [0.0, -50.0, 1e6]]])
    assert crf.viterbi(emissions, torch.ones(1, 2, dtype=torch.bool)) == [[1, 2]]
    assert crf.viterbi(emissions[:, :1], torch.ones(1, 1, dtype=torch.bool)) == [[0]]


def test_a_row_without_tokens_has_likelihood_zero_and_no_gradient():
    crf, emissions = make()
    emissions.requires_grad_()
    mask = lengths_mask(LENGTHS)
    found = crf.log_likelihood(emissions, torch.zeros(4, 4, dtype=torch.long), mask)
    assert found[2] == 0.0
    assert (found[[0, 1, 3]] < 0).all()
    found.sum().backward()
    assert emissions.grad[~mask].eq(0).all()
    assert emissions.grad[mask].ne(0).all()


def test_a_batch_without_tokens_has_likelihood_zero():
    crf = CRF(3)
    nothing, mask = torch.zeros(2, 0, 3), torch.zeros(2, 0, dtype=torch.bool)
    assert crf.log_likelihood(nothing, torch.zeros(2, 0, dtype=torch.long), mask).tolist() == [0.0, 0.0]
    assert crf.viterbi(nothing, mask) == [[], []]


def test_gradients_are_those_of_finite_differences():
    crf, emissions = make(3)
    mask, gold = lengths_mask(LENGTHS), torch.randint(3, (4, 4))
    emissions.requires_grad_()

    def likelihood(emissions, pairs, start, end):
        given = {"pairs": pairs, "start": start, "end": end}
        # functional_call goes through forward, which a CRF has not: the parameters are put in by hand.
        kept = dict(crf._parameters)
        crf._parameters.update(given)
        try:
            return crf.log_likelihood(emissions, gold, mask)
        finally:
            crf._parameters.update(kept)

    assert torch.autograd.gradcheck(likelihood, (emissions, crf.pairs, crf.start, crf.end))


def test_gradients_stay_finite_where_labels_cannot_be_reached():
    """Label 2 may begin a sentence but never follow: at every later step no path reaches it."""
    pairs = torch.ones(3, 3, dtype=torch.bool)
    pairs[:, 2] = False
    transitions = Transitions(torch.ones(3, dtype=torch.bool), pairs, torch.ones(3, dtype=torch.bool))
    crf = CRF(3, transitions=transitions)
    emissions = torch.randn(1, 4, 3, requires_grad=True)
    crf.log_likelihood(emissions, torch.tensor([[2, 0, 1, 0]]), torch.ones(1, 4, dtype=torch.bool)).sum().backward()
    assert emissions.grad.isfinite().all()
    assert emissions.grad[0, 1:, 2].eq(0).all()
    assert crf.pairs.grad[:, 2].eq(0).all()


def test_training_raises_the_likelihood_until_the_gold_path_is_decoded():
    torch.manual_seed(0)
    crf = CRF(3)
    gold, mask = torch.tensor([[0, 1, 2, 0], [2, 0, 1, 0]]), lengths_mask([4, 3])
    emissions = torch.zeros(2, 4, 3, requires_grad=True)
    optimiser = torch.optim.Adam([*crf.parameters(), emissions], lr=0.1)
    for _ in range(50):
        optimiser.zero_grad()
        (-crf.log_likelihood(emissions, gold, mask).mean()).backward()
        optimiser.step()
    assert crf.viterbi(emissions, mask) == [[0, 1, 2, 0], [2, 0, 1]]


@pytest.mark.parametrize("gold", [[2, 0], [0, 2], [1, 4]])
def test_gold_labels_that_are_forbidden_are_refused(gold):
    crf = CRF(5, transitions=allowed_transitions(BIO))
    mask = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(InputError, match=mentions("row 1", gold)):
        crf.log_likelihood(torch.zeros(2, 2, 5), torch.tensor([[0, 0], gold]), mask)


def test_transitions_for_other_labels_are_refused():
    with pytest.raises(InputError, match=mentions("transitions.pairs", "(3, 3)", "(5, 5)")):
        CRF(3, transitions=allowed_transitions(BIO))


def test_what_is_allowed_belongs_to_the_labels_and_not_to_the_weights():
    assert set(CRF(3).state_dict()) == {"pairs", "start", "end"}
