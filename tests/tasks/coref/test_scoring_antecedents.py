"""Antecedent scores, the loss and the choice, against loops."""

import math

import pytest
import torch

from torchelmo.tasks.coref.scoring import AntecedentScorer, best_antecedents, distance_buckets, marginal_loss

pytestmark = pytest.mark.usefixtures("in_float64")

N, DIM = 9, 5
SPEAKERS = [0, 1, 2, 1, 1, 0, 2, 2, 1]


def make(n_antecedents=4, chunk_size=1000, dropout=0.0, n_genres=2):
    return AntecedentScorer(
        DIM,
        n_antecedents=n_antecedents,
        hidden_dim=6,
        n_layers=2,
        feature_dim=3,
        n_genres=n_genres,
        dropout=dropout,
        chunk_size=chunk_size,
    )


def pair_score(scorer, spans, mention_scores, speakers, genre, i, j):
    """s(i, j), written out."""
    bucket = max(b for b, least in enumerate((1, 2, 3, 4, 5, 8, 16, 32, 64)) if least <= i - j)
    speaker = 0 if 0 in (speakers[i], speakers[j]) else 2 if speakers[i] == speakers[j] else 1
    features = [scorer.distance.weight[bucket], scorer.speaker.weight[speaker], scorer.genre.weight[genre]]
    g = torch.cat([spans[i], spans[j], spans[i] * spans[j], *features])
    return mention_scores[i] + mention_scores[j] + scorer.rest(torch.relu(scorer.first(g)))[0]


def test_a_genre_that_no_training_document_is_without_adds_nothing_where_it_is_not_known():
    scorer = make(dropout=0.5)
    optimizer = torch.optim.Adam(scorer.parameters())
    scorer(torch.randn(N, DIM), torch.randn(N), torch.tensor(SPEAKERS), 1)[:, 1:].relu().sum().backward()
    optimizer.step()
    assert scorer.genre.weight[0].eq(0).all()
    assert scorer.genre.weight[1:].ne(0).all()
    assert make(n_genres=0).genre.weight.ne(0).all()  # data without genres learns that row


@pytest.mark.parametrize("n_antecedents", [1, 4, 8, 250])
@pytest.mark.parametrize("chunk_size", [3, 1000])
def test_scores_are_those_of_each_pair(n_antecedents, chunk_size):
    scorer = make(n_antecedents, chunk_size)
    spans, mention_scores = torch.randn(N, DIM), torch.randn(N)
    scores = scorer(spans, mention_scores, torch.tensor(SPEAKERS), 1)
    assert scores.shape == (N, 1 + min(n_antecedents, N - 1))
    assert scores[:, 0].eq(0).all()
    for i in range(N):
        for k in range(1, scores.shape[1]):
            if i - k < 0:
                assert scores[i, k] == -math.inf
            else:
                expected = pair_score(scorer, spans, mention_scores, SPEAKERS, 1, i, i - k)
                torch.testing.assert_close(scores[i, k], expected)


def test_distances_beyond_the_last_bucket():
    scorer = make(n_antecedents=80)
    spans, mention_scores = torch.randn(81, DIM), torch.randn(81)
    scores = scorer(spans, mention_scores, torch.zeros(81, dtype=torch.long), 0)
    for j in (0, 16, 17, 50):
        expected = pair_score(scorer, spans, mention_scores, [0] * 81, 0, 80, j)
        torch.testing.assert_close(scores[80, 80 - j], expected)


def test_buckets_by_loop():
    least = (1, 2, 3, 4, 5, 8, 16, 32, 64)
    expected = [sum(start <= d for start in least) - 1 for d in range(1, 100)]
    assert distance_buckets(torch.arange(1, 100)).tolist() == expected


def test_one_span_has_only_the_dummy():
    assert make()(torch.randn(1, DIM), torch.randn(1), torch.tensor([0]), 0).tolist() == [[0.0]]


def test_pieces_change_no_gradient_not_even_with_dropout_that_is_drawn_again():
    def gradients(chunk_size, dropout):
        torch.manual_seed(5)
        scorer = make(4, chunk_size, dropout)
        spans, mention_scores = torch.randn(N, DIM, requires_grad=True), torch.randn(N, requires_grad=True)
        scores = scorer(spans, mention_scores, torch.tensor(SPEAKERS), 2)
        loss = marginal_loss(scores, torch.tensor([0, 1, 0, -1, 1, 0, -1, 2, 0]))
        loss.backward()
        return [loss.detach(), *(p.grad for p in (spans, mention_scores, *scorer.parameters()))]

    for whole, pieces in zip(gradients(1000, 0.0), gradients(8, 0.0)):
        torch.testing.assert_close(whole, pieces)
    # With dropout a piece must draw the same on the way back: else its gradient is not that of its loss.
    scorer = make(4, 8, 0.5)
    spans = torch.randn(N, DIM)

    def loss(x):
        torch.manual_seed(1)
        return marginal_loss(scorer(x, torch.zeros(N), torch.tensor(SPEAKERS), 0), torch.zeros(N, dtype=torch.long))

    assert torch.autograd.gradcheck(loss, spans.requires_grad_(), atol=1e-4)


def test_the_loss_counts_every_gold_antecedent():
    clusters = [0, 1, 0, -1, 1, 0, -1, 2, 0]
    scores = torch.randn(N, 5)
    for i in range(N):
        scores[i, i + 1 :] = -math.inf
    expected = 0.0
    for i in range(N):
        gold = [k for k in range(1, 5) if i - k >= 0 and clusters[i] >= 0 and clusters[i - k] == clusters[i]] or [0]
        total = sum(math.exp(s) for s in scores[i].tolist())
        expected -= math.log(sum(math.exp(scores[i, k].item()) for k in gold) / total)
    assert marginal_loss(scores, torch.tensor(clusters)).item() == pytest.approx(expected)


def test_the_loss_has_finite_gradients_where_antecedents_are_missing():
    scorer = make()
    spans = torch.randn(N, DIM, requires_grad=True)
    scores = scorer(spans, torch.zeros(N), torch.tensor(SPEAKERS), 0)
    marginal_loss(scores, torch.full((N,), -1)).backward()
    assert spans.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in scorer.parameters())


def test_the_best_antecedent_or_the_span_itself():
    scores = torch.tensor([[0.0, -math.inf, -math.inf], [0.0, 1.0, -math.inf], [0.0, 1.0, 2.0], [0.0, -1.0, -2.0]])
    assert best_antecedents(scores) == [0, 0, 0, 3]
