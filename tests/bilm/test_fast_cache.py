"""The cache of token vectors, and the version of the weights."""

import itertools
import os
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.bilm.fast.encoder import TokenVectorCache
from torchelmo.bilm.fast.products import WeightsVersion


class Lookup:
    """Encode a word as its length by way of a cache, and record the words that were encoded."""

    def __init__(self, capacity: int) -> None:
        self.cache = TokenVectorCache(capacity)
        self.encoded: list[list[str]] = []

    def __call__(self, words: list[str], key: int = 0) -> list[int]:
        vectors, missing = self.cache.look_up(words, key)
        lengths = [0 if vectors is None else int(vectors[i, 0]) for i in range(len(words))]
        if missing:
            new = [words[i] for i in missing]
            self.encoded.append(new)
            self.cache.add(new, torch.tensor([[float(len(word))] for word in new]), key)
            for i in missing:
                lengths[i] = len(words[i])
        return lengths


def test_a_word_is_encoded_once():
    look_up = Lookup(10)
    assert look_up(["a", "bow"]) == [1, 3]
    assert look_up(["bow", "arrow"]) == [3, 5]
    assert look_up.encoded == [["a", "bow"], ["arrow"]]
    assert len(look_up.cache) == 3


def test_the_least_recently_used_word_is_dropped():
    look_up = Lookup(2)
    for word in ("a", "bow", "a", "arrow"):  # the last drops "bow"
        look_up([word])
    look_up.encoded.clear()
    assert look_up(["a", "arrow"]) == [1, 5]
    assert look_up.encoded == []
    assert look_up(["bow"]) == [3]
    assert look_up.encoded == [["bow"]]


def test_a_frozen_cache_keeps_its_words_and_adds_none():
    look_up = Lookup(10)
    look_up(["a"])
    look_up.cache.frozen = True
    for _ in range(2):
        assert look_up(["a", "bow"]) == [1, 3]
    assert look_up.encoded == [["a"], ["bow"], ["bow"]]


def test_another_key_drops_all_words():
    look_up = Lookup(10)
    look_up(["a"], key=1)
    look_up(["a"], key=2)
    assert look_up.encoded == [["a"], ["a"]]
    look_up.cache.clear()
    assert len(look_up.cache) == 0


def test_vectors_of_an_older_key_are_not_added():
    cache = TokenVectorCache(10)
    cache.look_up(["a"], key=1)
    cache.look_up(["a"], key=2)  # another thread, after the weights have changed
    cache.add(["a"], torch.ones(1, 1), key=1)
    assert len(cache) == 0


@given(
    st.lists(st.lists(st.text("abc", max_size=3), min_size=1, max_size=6, unique=True), max_size=12), st.integers(0, 5)
)
def test_any_capacity_gives_the_same(batches, capacity):
    look_up = Lookup(capacity)
    for batch in batches:
        assert look_up(batch) == [len(word) for word in batch]
        assert len(look_up.cache) <= capacity


def test_threads_share_a_cache():
    look_up, wrong = Lookup(20), []

    def work(seed: int) -> None:
        for n in range(150):
            batch = ["x" * ((seed * n + i) % 40) for i in range(5)]
            if look_up(batch) != [len(word) for word in batch]:
                wrong.append(batch)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_results_are_copies():
    look_up = Lookup(10)
    look_up(["a"])
    vectors, _ = look_up.cache.look_up(["a"], 0)
    vectors.zero_()
    assert look_up(["a"]) == [1]


FORK = """
import os, sys, threading, time
import torch
from torchelmo.bilm.fast.encoder import TokenVectorCache

cache, words, vectors = TokenVectorCache(5), ["a", "b", "c"], torch.ones(3, 1)

def use(n):
    for _ in range(n):
        cache.look_up(words)
        cache.add(words, vectors)

def use_forever():
    while True:
        use(1)

threading.Thread(target=use_forever, daemon=True).start()
for _ in range(60):
    child = os.fork()
    if child == 0:
        use(3)
        os._exit(0)
    deadline = time.monotonic() + 10
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os._exit(1)
        time.sleep(0.001)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_while_a_thread_uses_the_cache_does_not_hang():
    torch_threads = {"OMP_NUM_THREADS": "1"}  # OpenMP itself does not support a fork
    environment = {**os.environ, **torch_threads}
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], env=environment, timeout=120).returncode == 0


def test_the_version_changes_with_every_kind_of_change():
    weight, bias = torch.nn.Parameter(torch.zeros(300, 300)), torch.nn.Parameter(torch.zeros(3))
    version = WeightsVersion()
    keys = [version([weight, bias])]
    assert version([weight, bias]) == keys[0]
    with torch.no_grad():
        bias.add_(1.0)
        keys.append(version([weight, bias]))
        weight.data = torch.zeros(300, 300)
        keys.append(version([weight, bias]))
        keys.append(version([torch.nn.Parameter(torch.zeros(300, 300)), bias]))
        weight.data.numpy()[:] = 1.0  # does not raise the version of the tensor
        keys.append(version([weight, bias]))
    assert all(one != other for one, other in itertools.pairwise(keys))
