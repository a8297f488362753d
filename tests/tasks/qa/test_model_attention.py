"""Attention against its equations, written out as loops in float64."""

import torch

from torchelmo.tasks.qa.model import PassageAttention, SelfAttention, Trilinear

DIM = 5


def score(trilinear, h, q):
    w = torch.cat((trilinear.left, trilinear.right, trilinear.product))
    return w @ torch.cat((h, q, h * q))


def softmax(values):
    weights = torch.stack(values).exp()
    return weights / weights.sum()


def passages(*lengths):
    tokens = torch.randn(len(lengths), max(lengths), DIM, dtype=torch.float64)
    return tokens, torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)


def test_scores_are_the_trilinear_form():
    torch.manual_seed(0)
    trilinear = Trilinear(DIM).double()
    (h, _), (q, _) = passages(4, 3), passages(2, 3)
    scores = trilinear(h, q)
    assert scores.shape == (2, 4, 3)
    for b in range(2):
        for i in range(4):
            for j in range(3):
                torch.testing.assert_close(scores[b, i, j], score(trilinear, h[b, i], q[b, j]))


def test_passage_and_question_attend_to_each_other():
    torch.manual_seed(1)
    attention = PassageAttention(DIM).double()
    (h, h_mask), (q, q_mask) = passages(4, 6, 1), passages(3, 2, 1)
    found = attention(h, h_mask, q, q_mask)
    assert found.shape == (3, 6, attention.dim)
    for b in range(3):
        passage, question = h[b][h_mask[b]], q[b][q_mask[b]]
        scores = [[score(attention.scores, h_i, q_j) for q_j in question] for h_i in passage]
        summary = softmax([max(row) for row in scores]) @ passage
        for i, h_i in enumerate(passage):
            seen = softmax(scores[i]) @ question
            expected = torch.cat((h_i, seen, h_i * seen, seen * summary))
            torch.testing.assert_close(found[b, i], expected)


def test_no_token_of_a_passage_attends_to_itself():
    torch.manual_seed(2)
    attention = SelfAttention(DIM).double()
    h, mask = passages(4, 6)
    found = attention(h, mask)
    assert found.shape == (2, 6, attention.dim)
    for b in range(2):
        passage = h[b][mask[b]]
        for i, h_i in enumerate(passage):
            others = [j for j in range(len(passage)) if j != i]
            seen = softmax([score(attention.scores, h_i, passage[j]) for j in others]) @ passage[others]
            torch.testing.assert_close(found[b, i], torch.cat((h_i, seen, h_i * seen)))


def test_a_passage_of_one_token_sees_nothing_of_itself():
    attention = SelfAttention(DIM).double()
    h, mask = passages(1)
    h.requires_grad_()
    found = attention(h, mask)
    torch.testing.assert_close(found, torch.cat((h, torch.zeros(1, 1, 2 * DIM)), dim=-1))
    found.sum().backward()
    assert h.grad is not None
    assert h.grad.isfinite().all()
