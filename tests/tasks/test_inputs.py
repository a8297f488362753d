"""The character CNN of the task models."""

import pytest
import torch
from torch.nn import functional as F

from torchelmo.tasks.inputs import TokenCharCNN
from torchelmo.text.characters import PADDING, CharacterEncoder

WORDS = ["a", "", "internationalisation", "Ärger", "bow"]


def encode(words, max_length=50):
    return torch.from_numpy(CharacterEncoder(max_length).encode(words))


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7])
def test_each_filter_takes_its_maximum_over_the_word(width):
    torch.manual_seed(0)
    cnn = TokenCharCNN(char_dim=4, n_filters=6, width=width)
    with torch.no_grad():
        cnn.filters.bias.normal_()
    kernel = cnn.filters.weight.view(6, width, 4).transpose(1, 2)
    left = (width - 1) // 2
    for row, found in zip(encode(WORDS), cnn(encode(WORDS))):
        characters = cnn.embedding[row[row != PADDING]].T  # (char_dim, length)
        windows = F.conv1d(F.pad(characters, (left, width - 1 - left)), kernel, cnn.filters.bias)
        torch.testing.assert_close(found, torch.relu(windows.amax(dim=1)))


def test_padding_does_not_change_a_word():
    torch.manual_seed(0)
    cnn = TokenCharCNN(char_dim=4, n_filters=6)
    with torch.no_grad():
        cnn.filters.bias.fill_(1.0)  # windows of padding would be seen
    long, short = cnn(encode(["bow", "a"])), cnn(encode(["bow", "a"], max_length=6))
    torch.testing.assert_close(long, short)
    zeros = encode(["bow", "a"]).masked_fill(encode(["bow", "a"]) == PADDING, 0)
    torch.testing.assert_close(cnn(zeros), long)


def test_padding_is_neither_read_nor_trained():
    cnn = TokenCharCNN(char_dim=4, n_filters=6)
    before = cnn(encode(WORDS))
    before.sum().backward()
    assert cnn.embedding.grad[[0, PADDING]].eq(0).all()
    assert cnn.embedding.grad[encode(["a"])[0, 1]].ne(0).any()
    with torch.no_grad():
        cnn.embedding[[0, PADDING]] = 1e6
    assert torch.equal(cnn(encode(WORDS)), before)


def test_a_row_of_padding_is_zero():
    cnn = TokenCharCNN(char_dim=4, n_filters=6)
    with torch.no_grad():
        cnn.filters.bias.fill_(1.0)
    assert cnn(torch.zeros(2, 50, dtype=torch.long)).tolist() == [[0.0] * 6] * 2
    assert cnn(encode([])).shape == (0, 6)


def test_the_sizes_are_the_published_ones():
    cnn = TokenCharCNN()
    assert cnn.dim == 128
    assert cnn.embedding.shape == (262, 16)
    assert cnn.filters.weight.shape == (128, 3 * 16)
