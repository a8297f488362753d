"""Spans: their grid, representation, scores and pruning, against loops."""

import itertools

import pytest
import torch

from torchelmo.tasks.coref.data import Mention
from torchelmo.tasks.coref.scoring import MentionScorer, SpanEncoder, Tokens, prune, shift_windows, span_grid

pytestmark = pytest.mark.usefixtures("in_float64")

MAX_WIDTH = 3
LENGTHS = [4, 1, 2]


def make(chunk_size=1000, dropout=0.0):
    encoder = SpanEncoder(5, 4, max_width=MAX_WIDTH, feature_dim=2, dropout=dropout)
    scorer = MentionScorer(encoder, hidden_dim=6, n_layers=2, dropout=dropout, chunk_size=chunk_size, n_scores=2)
    return encoder, scorer


def make_tokens():
    n_tokens = sum(LENGTHS)
    return Tokens(torch.randn(n_tokens, 5), torch.randn(n_tokens, 4), torch.randn(n_tokens))


def represent(encoder, tokens, start, end):
    """g of one span, written out."""
    weights = [torch.exp(tokens.heads[t]) for t in range(start, end)]
    head = sum(weight * tokens.words[t] for weight, t in zip(weights, range(start, end))) / sum(weights)
    return torch.cat([tokens.context[start], tokens.context[end - 1], head, encoder.width.weight[end - start - 1]])


def test_the_grid_holds_every_span_of_every_sentence():
    grid = span_grid(LENGTHS, MAX_WIDTH)
    found = {(t, t + w + 1) for t, w in grid.nonzero().tolist()}
    expected, first = set(), 0
    for length in LENGTHS:
        for start, end in itertools.combinations(range(first, first + length + 1), 2):
            if end - start <= MAX_WIDTH:
                expected.add((start, end))
        first += length
    assert found == expected


def test_windows_end_with_zeros():
    x = torch.tensor([[1.0], [2.0], [3.0]])
    assert shift_windows(x, 2).squeeze(2).tolist() == [[1, 2], [2, 3], [3, 0]]
    assert shift_windows(x, 1).squeeze(2).tolist() == [[1], [2], [3]]


def test_a_span_is_its_ends_its_head_and_its_width():
    encoder, _ = make()
    tokens = make_tokens()
    spans = [(0, 1), (0, 3), (2, 4), (4, 5), (5, 7)]  # the last one ends where the document ends
    starts, ends = torch.tensor(spans).unbind(dim=1)
    expected = torch.stack([represent(encoder, tokens, *span) for span in spans])
    torch.testing.assert_close(encoder(tokens, starts, ends), expected)


def test_far_apart_head_scores_stay_finite():
    encoder, scorer = make()
    tokens = make_tokens()._replace(heads=torch.tensor([-1e4, 1e4, 0.0, 500.0, -500.0, 0.0, 0.0]))
    assert scorer(encoder, tokens).isfinite().all()
    g = encoder(tokens, torch.tensor([0]), torch.tensor([3]))
    torch.testing.assert_close(g[0, 10:14], tokens.words[1])


@pytest.mark.parametrize("chunk_size", [1, 6, 1000])  # one row, two rows, all
def test_mention_scores_of_all_spans_are_those_of_each(chunk_size):
    encoder, scorer = make(chunk_size)
    tokens = make_tokens()
    scores = scorer(encoder, tokens)
    for t, w in span_grid(LENGTHS, MAX_WIDTH).nonzero().tolist():
        hidden = torch.relu(scorer.first(represent(encoder, tokens, t, t + w + 1)))
        torch.testing.assert_close(scores[t, w], scorer.rest(hidden))


def test_pieces_change_no_gradient():
    gradients = []
    for chunk_size in (1000, 4):
        torch.manual_seed(3)
        encoder, scorer = make(chunk_size)
        tokens = Tokens(*(part.requires_grad_() for part in make_tokens()))
        scorer(encoder, tokens)[span_grid(LENGTHS, MAX_WIDTH)].square().sum().backward()
        gradients.append([p.grad for p in (*tokens, *scorer.parameters(), encoder.width.weight)])
    for whole, pieces in zip(*gradients):
        torch.testing.assert_close(whole, pieces)


def brute_prune(scores, grid, n_spans):
    taken = []
    candidates = [(scores[t, w].item(), t, t + w) for t, w in grid.nonzero().tolist()]
    for _, i, j in sorted(candidates, key=lambda c: -c[0]):
        if len(taken) < n_spans and not any(a < i <= b < j or i < a <= j < b for a, b in taken):
            taken.append((i, j))
    return sorted(Mention(i, j + 1) for i, j in taken)


@pytest.mark.parametrize("n_spans", [1, 4, 9, 100])
@pytest.mark.parametrize("seed", range(5))
def test_pruning_keeps_the_best_that_do_not_cross(seed, n_spans):
    torch.manual_seed(seed)
    grid = span_grid([7, 2, 9], 4)
    scores = torch.randn(grid.shape)
    assert prune(scores, grid, n_spans) == brute_prune(scores, grid, n_spans)


def test_pruning_never_takes_a_span_outside_the_grid():
    grid = span_grid([2, 2], 2)
    scores = torch.tensor([[0.0, 0.0], [0.0, 9.0], [0.0, 0.0], [0.0, 9.0]])  # 9 across sentences and beyond the end
    assert prune(scores, grid, 6) == [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4)]
