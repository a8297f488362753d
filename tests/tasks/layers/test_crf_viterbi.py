"""The best path, against all paths."""

import itertools

import pytest
import torch

from torchelmo.tasks.layers.basic import lengths_mask
from torchelmo.tasks.layers.crf import viterbi_decode

LENGTHS = [4, 1, 0, 3]


def best_path(emissions, pairs, start, end):
    """Of all paths; of equal ones that with the lowest last label, then the lowest before it, and so on."""
    paths = list(itertools.product(range(emissions.shape[1]), repeat=len(emissions)))
    scores = []
    for path in paths:
        of_tokens = sum(emissions[t, label] for t, label in enumerate(path))
        of_pairs = sum(pairs[before, after] for before, after in itertools.pairwise(path))
        scores.append(start[path[0]] + of_tokens + of_pairs + end[path[-1]])
    highest = max(scores)
    return min((path for path, score in zip(paths, scores) if score == highest), key=lambda path: path[::-1])


def decode(emissions, lengths, pairs, start, end):
    return viterbi_decode(emissions, lengths_mask(lengths), pairs=pairs, start=start, end=end)


def expected(emissions, lengths, pairs, start, end):
    return [
        list(best_path(row[:length], pairs, start, end)) if length else [] for row, length in zip(emissions, lengths)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_path_is_the_best_of_all(seed):
    torch.manual_seed(seed)
    given = torch.randn(4, 4, 3), LENGTHS, torch.randn(3, 3), torch.randn(3), torch.randn(3)
    assert decode(*given) == expected(*given)


@pytest.mark.parametrize("seed", range(5))
def test_ties_go_to_the_lowest_label(seed):
    torch.manual_seed(seed)
    sizes = (4, 4, 3), (3, 3), (3,), (3,)
    emissions, pairs, start, end = (torch.randint(2, size).double() for size in sizes)
    given = emissions, LENGTHS, pairs, start, end
    assert decode(*given) == expected(*given)


def test_where_all_is_equal_the_first_label_stands_everywhere():
    zero = torch.zeros(3)
    assert decode(torch.zeros(2, 3, 3), [3, 2], torch.zeros(3, 3), zero, zero) == [[0, 0, 0], [0, 0]]


def test_minus_infinity_forbids_however_high_the_emissions():
    never = -torch.inf
    emissions = torch.tensor([[[0.0, 1.0, 99.0]] * 3])
    pairs = torch.tensor([[0.0, 0.0, never], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])  # 2 not after 0
    start = torch.tensor([0.0, never, never])
    end = torch.tensor([0.0, 0.0, never])
    assert decode(emissions, [3], pairs, start, end) == [[0, 1, 1]]
    assert decode(emissions[:, :1], [1], pairs, start, end) == [[0]]


@pytest.mark.parametrize(("batch", "tokens"), [(2, 0), (0, 3)])
def test_nothing_to_label_gives_no_labels(batch, tokens):
    mask = torch.zeros(batch, tokens, dtype=torch.bool)
    zero = torch.zeros(3)
    emissions = torch.zeros(batch, tokens, 3)
    assert viterbi_decode(emissions, mask, pairs=torch.zeros(3, 3), start=zero, end=zero) == [[]] * batch
