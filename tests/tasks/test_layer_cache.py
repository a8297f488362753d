"""Frozen biLM outputs by sentence: in memory, in a file, or not at all."""

import gc
import re
import tempfile

import numpy as np
import pytest
from facts import mentions

from torchelmo.tasks.elmo import LayerCache

SENTENCES = [["a", "bow"], ["one"], ["three", "more", "words"], ["so", "four", "of", "them"], []]


def layers(sentence):
    pick = np.random.default_rng(len(sentence))
    return pick.normal(size=(3, len(sentence), 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("memory", "disk", "kept"),
    [(100, 0, 5), (0, 100, 5), (3, 100, 5), (0, 0, 1), (3, 3, 4), (2, 0, 2), (0, 4, 3)],
)
def test_what_is_kept_comes_back_bit_for_bit(tmp_path, memory, disk, kept):
    cache = LayerCache(memory_tokens=memory, disk_tokens=disk, folder=tmp_path)
    fitting = cache.fitting(SENTENCES)
    for sentence in SENTENCES:
        cache.add(sentence, layers(sentence))
    assert len(cache) == kept
    for sentence in SENTENCES:
        found = cache.get(sentence)
        assert (found is None) == (sentence in cache.missing(SENTENCES))
        if found is not None:
            assert np.array_equal(found, layers(sentence))
        if sentence:
            assert (sentence in fitting) == (found is not None)
    assert list(tmp_path.iterdir()) == []


def test_a_sentence_that_comes_twice_is_missing_once():
    cache = LayerCache(memory_tokens=9, disk_tokens=0)
    assert cache.missing([["a"], ["b"], ("a",)]) == [("a",), ["b"]]
    assert cache.fitting([["a"], ["b"], ["a"]]) == [["a"], ["b"]]


def test_the_file_is_closed_with_the_cache(tmp_path):
    cache = LayerCache(memory_tokens=0, disk_tokens=9, folder=tmp_path)
    cache.add(["a"], layers(["a"]))
    file = cache._file
    del cache
    gc.collect()
    assert file.closed
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_time_only(tmp_path, monkeypatch, caplog):
    def on_a_full_disk(*, dir, buffering):
        return open("/dev/full", "r+b", buffering=buffering)

    monkeypatch.setattr(tempfile, "TemporaryFile", on_a_full_disk)
    cache = LayerCache(memory_tokens=0, disk_tokens=9, folder=tmp_path)
    for sentence in SENTENCES[:2]:
        cache.add(sentence, layers(sentence))
        assert cache.get(sentence) is None
    assert cache.fitting(SENTENCES) == []
    (said,) = caplog.messages  # once is enough
    assert re.search(mentions("biLM", "No space left"), said)
