import pytest
import torch

from torchelmo.tasks.qa.model import best_spans, boundary_loss


@pytest.mark.parametrize("max_span", [1, 2, 5, 40])
def test_the_best_span_is_that_of_a_search_through_all(max_span):
    torch.manual_seed(max_span)
    start, end = torch.randn(2, 30, 12)
    found = best_spans(start, end, max_span)
    for row in range(30):
        spans = {(i, j): start[row, i] + end[row, j] for i in range(12) for j in range(i, min(i + max_span, 12))}
        best = max(spans, key=lambda span: spans[span])
        assert (found.first[row], found.last[row]) == best
        assert found.score[row] == spans[best]


def test_padding_is_in_no_span():
    start, end = torch.tensor([[1.0, 2.0, -torch.inf]]), torch.tensor([[5.0, -3.0, -torch.inf]])
    assert best_spans(start, end, 2)[:2] == (torch.tensor([0]), torch.tensor([0]))
    assert best_spans(start[:, 1:], end[:, 1:], 2)[:2] == (torch.tensor([0]), torch.tensor([0]))


def test_the_loss_is_that_of_the_right_tokens_together():
    scores = torch.tensor([[0.5, 2.0, -1.0, -torch.inf], [1.0, 0.0, 3.0, 2.0]], requires_grad=True)
    right = torch.tensor([[True, False, False, False], [False, True, True, False]])
    loss = boundary_loss(scores, right)
    shares = scores.detach().softmax(dim=1)
    torch.testing.assert_close(loss, -torch.stack((shares[0, 0], shares[1, 1] + shares[1, 2])).log())
    loss.sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    torch.testing.assert_close(loss[0], torch.nn.functional.cross_entropy(scores[:1], torch.tensor([0])))
