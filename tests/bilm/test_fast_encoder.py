"""The character encoder by table lookup."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo import BiLMConfig
from torchelmo.bilm.encoder import CharCNN
from torchelmo.bilm.fast import encoder as fast_encoder
from torchelmo.bilm.fast.encoder import FastEncoder, unique_rows
from torchelmo.bilm.fast.products import Tuning
from torchelmo.text.characters import CharacterEncoder


@settings(max_examples=15)
@given(
    words=st.lists(st.text(max_size=12) | st.sampled_from(["<S>", "</S>", "", "x" * 50]), min_size=1, max_size=8),
    filters=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=3),
    activation=st.sampled_from(["relu", "tanh"]),
    n_highway=st.integers(0, 2),
    max_characters=st.integers(6, 20),
)
def test_equals_the_convolutions(words, filters, activation, n_highway, max_characters):
    config = BiLMConfig(
        char_dim=3,
        filters=tuple(filters),
        activation=activation,
        n_highway=n_highway,
        max_characters=max_characters,
        projection_dim=4,
    )
    cnn = CharCNN(config)
    for convolution in cnn.convolutions:
        torch.nn.init.normal_(convolution.bias)
    ids = torch.from_numpy(CharacterEncoder(max_characters).encode(words))
    with torch.no_grad():
        torch.testing.assert_close(FastEncoder(cnn, "float32", Tuning())(ids), cnn(ids), rtol=0, atol=2e-6)


def test_extra_dimensions():
    cnn = CharCNN(BiLMConfig(char_dim=2, filters=((1, 2),), n_highway=0, max_characters=5, projection_dim=3))
    ids = torch.randint(1, 262, (2, 3, 5))
    assert cnn(ids).shape == (2, 3, 3)
    torch.testing.assert_close(cnn(ids)[1], cnn(ids[1]), rtol=0, atol=2e-6)


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), max_size=20))
def test_every_distinct_row_is_returned_once(rows):
    ids = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), 3)
    distinct, place = unique_rows(ids)
    assert torch.equal(distinct[place], ids)
    assert len(distinct) == len(set(map(tuple, rows)))


def test_words_that_share_a_hash_are_distinguished(monkeypatch):
    monkeypatch.setattr(fast_encoder, "_multipliers", lambda width: torch.ones(width, dtype=torch.int64))
    ids = torch.tensor([[1, 2], [2, 1], [1, 2], [3, 0]])
    distinct, place = unique_rows(ids)
    assert torch.equal(distinct[place], ids)
    assert len(distinct) == 3
