"""The token vectors of task models: words, characters and ELMo."""

import copy

import pytest
import torch
from facts import mentions
from torch.nn import functional as F

from torchelmo.errors import ConfigError
from torchelmo.tasks.config import ElmoConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenCharCNN, TokenInput
from torchelmo.tasks.words import WordEmbedding
from torchelmo.text.characters import PADDING, CharacterEncoder

SENTENCES = [["I", "took", "a", "bow"], ["bow", "and", "arrow"], ["Zürich"], ["I", "took", "a", "bow"], ["the", "end"]]
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


def test_what_a_model_sees_of_a_token(tiny_bilm):
    words, characters = WordEmbedding(["bow", "and"], dim=3), TokenCharCNN(char_dim=2, n_filters=4)
    both = elmo_layers(tiny_bilm, "both").eval()
    for place, dim, output_dim in (("input", 3 + 4 + 16, 0), ("output", 3 + 4, 16), ("both", 3 + 4 + 16, 16)):
        inputs = TokenInput(words, characters, elmo_layers(tiny_bilm, place)).eval()
        assert (inputs.dim, inputs.output_dim) == (dim, output_dim)
        found = inputs(SENTENCES)
        assert found.vectors.shape == (5, 4, dim)
        assert found.mask.sum(dim=1).tolist() == [4, 3, 1, 4, 2]
        assert not found.vectors[~found.mask].any()
        assert (found.output is None) == (not output_dim)
        if place == "both":
            one, other = both(SENTENCES).mixes
            torch.testing.assert_close(found.vectors[..., 7:], one)
            torch.testing.assert_close(found.output, other)


def test_the_company_of_a_sentence_does_not_change_its_vectors():
    inputs = TokenInput(WordEmbedding(["bow", "and"], dim=3), TokenCharCNN(char_dim=2, n_filters=4))
    together = inputs([*SENTENCES, []])
    for row, sentence in enumerate(SENTENCES):
        torch.testing.assert_close(together.vectors[row, : len(sentence)], inputs([sentence]).vectors[0])
    assert not together.vectors[-1].any()
    assert inputs([[], []]).vectors.shape == (2, 0, 7)


def test_a_model_without_any_input_is_refused(tiny_bilm):
    for elmo in (None, elmo_layers(tiny_bilm, "output")):
        with pytest.raises(ConfigError, match=mentions("[words]", "[characters]", "elmo.place")):
            TokenInput(elmo=elmo)


def elmo_layers(bilm, place):
    return ElmoLayers(copy.deepcopy(bilm), ElmoConfig(place=place))
