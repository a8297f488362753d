"""The table form of the character encoder, and the cache of its vectors."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo import BiLMConfig
from torchelmo.bilm.encoder import CharCNN
from torchelmo.bilm.fast.cache import WordVectors
from torchelmo.bilm.fast.encoder import FastEncoder
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
        torch.testing.assert_close(FastEncoder(cnn, "float32")(ids), cnn(ids), rtol=0, atol=2e-6)


def test_extra_dimensions():
    cnn = CharCNN(BiLMConfig(char_dim=2, filters=((1, 2),), n_highway=0, max_characters=5, projection_dim=3))
    ids = torch.randint(1, 262, (2, 3, 5))
    assert cnn(ids).shape == (2, 3, 3)
    assert torch.equal(cnn(ids)[1], cnn(ids[1]))


class Counting:
    """Encodes a word as its length, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, words: list[str]) -> torch.Tensor:
        self.asked.append(words)
        return torch.tensor([[float(len(word))] for word in words])


def lengths(vectors: torch.Tensor) -> list[int]:
    return [int(value) for value in vectors[:, 0]]


def test_a_word_is_encoded_once():
    encode, words = Counting(), WordVectors(10)
    assert lengths(words(["a", "bow", "a"], encode)) == [1, 3, 1]
    assert lengths(words(["bow", "arrow"], encode)) == [3, 5]
    assert encode.asked == [["a", "bow"], ["arrow"]]
    assert len(words) == 3


def test_the_least_recently_used_word_is_dropped():
    encode, words = Counting(), WordVectors(2)
    words(["a"], encode)
    words(["bow"], encode)
    words(["a"], encode)
    words(["arrow"], encode)  # drops "bow"
    encode.asked.clear()
    assert lengths(words(["a", "arrow"], encode)) == [1, 5]
    assert encode.asked == []
    assert lengths(words(["bow"], encode)) == [3]
    assert encode.asked == [["bow"]]


def test_nothing_more_is_kept_once_it_is_closed():
    encode, words = Counting(), WordVectors(10)
    words(["a"], encode)
    words.closed = True
    for _ in range(2):
        assert lengths(words(["a", "bow"], encode)) == [1, 3]
    assert encode.asked == [["a"], ["bow"], ["bow"]]


def test_another_key_drops_all():
    encode, words = Counting(), WordVectors(10)
    words(["a"], encode, key=1)
    words(["a"], encode, key=2)
    assert encode.asked == [["a"], ["a"]]
    words.clear()
    assert len(words) == 0


@given(st.lists(st.lists(st.text("abc", max_size=3), min_size=1, max_size=6), max_size=12), st.integers(0, 5))
def test_any_capacity_gives_the_same(batches, capacity):
    words = WordVectors(capacity)
    for batch in batches:
        assert lengths(words(batch, Counting())) == [len(word) for word in batch]
        assert len(words) <= capacity


def test_threads_share_a_cache():
    words, wrong = WordVectors(20), []

    def work(seed: int) -> None:
        for n in range(150):
            batch = ["x" * ((seed * n + i) % 40) for i in range(5)]
            if lengths(words(batch, Counting())) != [len(word) for word in batch]:
                wrong.append(batch)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("batch", [["a"], ["a"] * 5])
def test_results_are_not_the_cache(batch):
    words = WordVectors(10)
    words(batch, Counting()).zero_()
    assert lengths(words(batch, Counting())) == [1] * len(batch)
