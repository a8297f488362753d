"""Mixes of the biLM's layers in a task: the cache changes nothing but the time."""

import copy
import gc
import re
import shutil
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from facts import mentions

from torchelmo import BiLM, BiLMConfig, Elmo
from torchelmo.errors import ConfigError, WeightsError
from torchelmo.runs.resume import Stop
from torchelmo.tasks.config import ElmoConfig
from torchelmo.tasks.elmo import ElmoLayers, LayerCache

SENTENCES = [["I", "took", "a", "bow"], ["bow", "and", "arrow"], ["Zürich"], ["I", "took", "a", "bow"], ["the", "end"]]
ROOM = {"memory": (100, 0), "disk": (0, 100), "none": (0, 0), "memory and disk": (4, 5), "partly": (3, 2)}


def build(bilm, room="memory", **settings):
    n_kept = 3 if settings.get("layers", "all") in ("all", "average") else 1
    memory, disk = (tokens * 4 * n_kept * bilm.config.dim / 1e6 for tokens in ROOM[room])
    config = ElmoConfig(**{"place": "both", "memory_mb": memory, "disk_mb": disk, **settings})
    found = ElmoLayers(copy.deepcopy(bilm), config)
    with torch.no_grad():
        for number, mix in enumerate(found.mixes):  # as if they had learned something
            if config.layers == "all":
                mix.scalars.copy_(torch.tensor([0.3, -0.5, 0.1]) * (number + 1))
                mix.gamma.fill_(1.5 + number)
    return found


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("layers", ["all", "top", "average", "0", "1", "2"])
def test_the_cache_changes_no_vector(tiny_bilm, layers, layer_norm):
    """By the biLM itself in every step, which is what an unfrozen one does."""
    expected = build(tiny_bilm, layers=layers, layer_norm=layer_norm, unfreeze=True).eval()(SENTENCES)
    for room in ROOM:
        elmo = build(tiny_bilm, room, layers=layers, layer_norm=layer_norm).eval()
        elmo.precompute(SENTENCES)
        for _ in range(2):
            found = elmo(SENTENCES)
            assert torch.equal(found.mask, expected.mask)
            assert len(found.mixes) == 2
            for one, other in zip(found.mixes, expected.mixes, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
                assert not one[~found.mask].any()


@pytest.mark.parametrize(("layers", "name"), [("all", "mix"), ("top", "top"), ("average", "average"), ("1", 1)])
def test_the_vectors_are_those_that_embed_gives(tiny_bilm, layers, name):
    elmo = build(tiny_bilm, layers=layers).eval()
    one = elmo(SENTENCES).mixes[0]
    plain = Elmo(tiny_bilm, mixes=[copy.deepcopy(elmo.mixes[0])])
    for row, expected in zip(one, plain.embed(SENTENCES, layers=name), strict=True):
        np.testing.assert_allclose(row[: len(expected)].detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_full_cache_replaces_the_bilm(tiny_bilm):
    elmo = build(tiny_bilm).eval()
    elmo.precompute(SENTENCES)
    expected = elmo(SENTENCES).mixes
    with torch.no_grad():
        for parameter in elmo.bilm.parameters():
            parameter.fill_(torch.nan)
    assert all(torch.equal(one, other) for one, other in zip(elmo(SENTENCES).mixes, expected))
    with pytest.raises(WeightsError, match=mentions("NaN")):  # the biLM runs for a sentence that is not cached
        elmo([["new"]])


def test_a_fixed_layer_is_all_that_is_kept(tiny_bilm):
    elmo = build(tiny_bilm, layers="1")
    elmo.precompute(SENTENCES)
    assert elmo.cache.get(SENTENCES[0]).shape == (1, 4, elmo.dim)


def test_precomputing_ends_when_it_is_asked_to(tiny_bilm):
    elmo, stop = build(tiny_bilm), Stop()
    stop.requested = True
    elmo.precompute(SENTENCES, stop)
    assert len(elmo.cache) == 1


def test_a_trained_bilm_has_no_cache(tiny_bilm):
    elmo = build(tiny_bilm, unfreeze=True)
    elmo.precompute(SENTENCES)
    elmo(SENTENCES)
    assert len(elmo.cache) == 0


def test_a_sentence_without_tokens_is_all_padding(tiny_bilm):
    for unfreeze in (False, True):
        found = build(tiny_bilm, unfreeze=unfreeze)([["bow"], []])
        assert found.mask.tolist() == [[True], [False]]
        assert not found.mixes[0][1].any()


def test_dropout_and_gradients_are_those_of_training(tiny_bilm):
    elmo = build(tiny_bilm, dropout=0.5).train()
    assert not elmo.bilm.training
    first, second = elmo(SENTENCES).mixes[0], elmo(SENTENCES).mixes[0]
    assert not torch.equal(first, second)
    (first.sum() + elmo.penalty()).backward()
    assert elmo.mixes[0].scalars.grad.abs().sum() > 0
    assert elmo.mixes[0].gamma.grad != 0
    assert all(parameter.grad is None for parameter in elmo.bilm.parameters())


def test_the_penalty_is_the_squared_norm_of_the_weights(tiny_bilm):
    elmo = build(tiny_bilm, l2=0.1)
    assert elmo.penalty().item() == pytest.approx(0.1 * (0.35 + 4 * 0.35))
    assert build(tiny_bilm, layers="top", l2=0.1).penalty().item() == 0.0


def test_room_is_counted_in_bytes_and_half_of_the_free_disk_is_left(tiny_bilm, monkeypatch):
    token = 4 * tiny_bilm.config.dim  # of one layer
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2 * 60 * token))
    for layers, n_kept in (("top", 1), ("all", 3)):
        config = ElmoConfig(place="input", layers=layers, memory_mb=30 * token / 1e6, disk_mb=1000)
        cache = ElmoLayers(tiny_bilm, config).cache
        assert (cache.memory_tokens, cache.disk_tokens) == (30 // n_kept, 60 // n_kept)


def test_a_layer_that_the_bilm_has_not_is_refused():
    shape = {"filters": ((1, 4),), "n_highway": 1, "projection_dim": 4, "cell_dim": 6}
    with pytest.raises(ConfigError, match=mentions("elmo.layers", 0, 1, 2)):
        ElmoLayers(BiLM(BiLMConfig(n_layers=1, **shape)), ElmoConfig(place="input", layers="2"))
    deep = ElmoLayers(BiLM(BiLMConfig(n_layers=3, **shape)), ElmoConfig(place="input", layers="3"))
    assert deep.mixes[0].layer == 3
    for wrong in ("-1", "second", "²"):
        with pytest.raises(ConfigError, match=mentions("layers", "all", "top", "average", f"'{wrong}'")):
            ElmoConfig(layers=wrong)


def test_elmo_nowhere_is_no_part_of_a_model(tiny_bilm):
    with pytest.raises(ConfigError, match=mentions("elmo.place", "input", "output", "both", "none")):
        ElmoLayers(tiny_bilm, ElmoConfig())


CACHED = [["a", "bow"], ["one"], ["three", "more", "words"], ["so", "four", "of", "them"], []]


def layers(sentence):
    pick = np.random.default_rng(len(sentence))
    return pick.normal(size=(3, len(sentence), 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("memory", "disk", "kept"),
    [(100, 0, 5), (0, 100, 5), (3, 100, 5), (0, 0, 1), (3, 3, 4), (2, 0, 2), (0, 4, 3)],
)
def test_what_is_kept_comes_back_bit_for_bit(tmp_path, memory, disk, kept):
    cache = LayerCache(memory_tokens=memory, disk_tokens=disk, folder=tmp_path)
    fitting = cache.fitting(CACHED)
    for sentence in CACHED:
        cache.add(sentence, layers(sentence))
    assert len(cache) == kept
    for sentence in CACHED:
        found = cache.get(sentence)
        assert (found is None) == (sentence in cache.missing(CACHED))
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
    for sentence in CACHED[:2]:
        cache.add(sentence, layers(sentence))
        assert cache.get(sentence) is None
    assert cache.fitting(CACHED) == []
    (warning,) = caplog.messages  # one is enough
    assert re.search(mentions("biLM", "No space left"), warning)
