"""Layers that runs share: computed once, checked when they are read, limited in size, and without effect on results."""

import copy
import itertools
import logging
import threading

import pytest
import torch
from safetensors.torch import load_file
from tiny_tasks import pos_config, write_pos

from torchelmo import Elmo
from torchelmo.tasks import load, train
from torchelmo.tasks.cache import SharedLayers, link_bilm
from torchelmo.tasks.config import ElmoConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.text.batching import draw_share

SENTENCES = [["I", "took", "a", "bow"], ["bow", "and", "arrow"], ["Zürich"], ["I", "took", "a", "bow"], ["the", "end"]]


@pytest.fixture
def count_streams(monkeypatch):
    """The numbers of sentences that biLMs were run over, call by call."""
    found = []
    original = Elmo.stream

    def stream(self, sentences, **settings):
        found.append(len(sentences))
        return original(self, sentences, **settings)

    monkeypatch.setattr(Elmo, "stream", stream)
    return found


def build(bilm, cache, **settings):
    return ElmoLayers(copy.deepcopy(bilm), ElmoConfig(place="input", cache=cache, **settings)).eval()


def mixes(elmo, sentences=SENTENCES):
    elmo.precompute(sentences)
    return elmo(sentences).mixes[0]


@pytest.mark.parametrize("layers", ["all", "top", "average", "0", "1"])
def test_layers_are_those_of_a_run_by_itself_bit_for_bit(tiny_bilm, tmp_path, layers, count_streams):
    expected = mixes(build(tiny_bilm, None, layers=layers))
    assert torch.equal(mixes(build(tiny_bilm, tmp_path / "cache")), mixes(build(tiny_bilm, None)))
    count_streams.clear()
    assert torch.equal(mixes(build(tiny_bilm, tmp_path / "cache", layers=layers)), expected)
    assert sum(count_streams) == 0


def test_only_new_sentences_run(tiny_bilm, tmp_path, count_streams):
    mixes(build(tiny_bilm, tmp_path))
    more = [*SENTENCES, [], ["a", "new", "one"], ["I", "took a", "bow"]]
    found = mixes(build(tiny_bilm, tmp_path), more)
    assert [n for n in count_streams if n] == [4, 2]
    torch.testing.assert_close(found, mixes(build(tiny_bilm, None), more))


def test_models_do_not_share_layers(tiny_bilm, tmp_path, count_streams):
    mixes(build(tiny_bilm, tmp_path))
    other = copy.deepcopy(tiny_bilm)
    with torch.no_grad():
        next(other.parameters()).add_(0.01)
    mixes(build(other, tmp_path))
    assert [n for n in count_streams if n] == [4, 4]


@pytest.mark.parametrize("name", ["layers.bin", "index.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "remove"])
def test_a_damaged_file_is_computed_again(tiny_bilm, tmp_path, name, damage, caplog):
    expected = mixes(build(tiny_bilm, tmp_path))
    (file,) = tmp_path.glob(f"layers/*/*/{name}")
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[-3] ^= 64
    file.write_bytes({"flip": content, "cut": content[:-4], "empty": b"", "remove": b""}[damage])
    if damage == "remove":
        file.unlink()
    with caplog.at_level(logging.WARNING):
        found = mixes(build(tiny_bilm, tmp_path))
    torch.testing.assert_close(found, expected)
    assert str(file.parent) in caplog.text
    caplog.clear()


def test_the_least_recently_used_layers_make_space(tiny_bilm, tmp_path, caplog):
    n_layers, dim = tiny_bilm.config.n_layers + 1, tiny_bilm.config.dim
    limit = 5 * n_layers * dim * 4
    shared = [SharedLayers(tmp_path, name, (n_layers, dim), max_bytes=limit) for name in "ab"]
    four, two = torch.rand(n_layers, 4, dim).numpy(), torch.rand(n_layers, 2, dim).numpy()
    for store, sentence, values in ((shared[0], ["1"] * 4, four), (shared[1], ["2"] * 2, two)):
        with store.lock():
            assert store.missing([sentence]) == [sentence]
            assert list(store.add([sentence], [values])) == [sentence]
        assert (store.get(sentence) == values).all()
    again = SharedLayers(tmp_path, "a", (n_layers, dim), max_bytes=limit)
    assert again.missing([["1"] * 4]) == [["1"] * 4]
    assert (shared[0].get(["1"] * 4) == four).all()  # a run that uses them keeps them
    with again.lock(), caplog.at_level(logging.WARNING):
        list(again.add([["3"] * 6], [torch.rand(n_layers, 6, dim).numpy()]))
    assert again.get(["3"] * 6) is None
    assert "do not fit" in caplog.text


def test_without_space_the_layers_are_computed_in_every_step(tiny_bilm, tmp_path):
    found = mixes(build(tiny_bilm, tmp_path, cache_mb=0.0, memory_mb=0.0, disk_mb=0.0))
    torch.testing.assert_close(found, mixes(build(tiny_bilm, None)))


def test_a_second_run_waits_and_then_finds_the_layers(tiny_bilm, tmp_path, count_streams):
    first, second = build(tiny_bilm, tmp_path), build(tiny_bilm, tmp_path)
    with first.shared.lock():
        thread = threading.Thread(target=second.precompute, args=(SENTENCES,))
        thread.start()
        missing = first.shared.missing(SENTENCES)
        list(first.shared.add(missing, first.elmo.stream(missing, layers="all")))
        assert thread.is_alive()
    thread.join(30)
    assert [n for n in count_streams if n] == [4]
    assert torch.equal(first(SENTENCES).mixes[0], second(SENTENCES).mixes[0])


def test_a_run_folder_links_to_one_copy_of_the_bilm(tiny_bilm, tmp_path):
    for name in ("one", "two", "one"):
        (tmp_path / name).mkdir(exist_ok=True)
        link_bilm(tiny_bilm, tmp_path / "cache", tmp_path / name / "bilm")
    inodes = {(tmp_path / name / "bilm" / "model.safetensors").stat().st_ino for name in ("one", "two")}
    assert len(inodes) == 1


def test_a_run_gives_the_same_bits_with_and_without_the_cache(bilm_folder, tmp_path, count_streams):
    write_pos(tmp_path)
    elmo = {"model": str(bilm_folder), "place": "input"}
    for name, cache in (
        ("alone", {}),
        ("fills", {"cache": str(tmp_path / "c")}),
        ("uses", {"cache": str(tmp_path / "c")}),
    ):
        train(pos_config(tmp_path, tmp_path / name, elmo={**elmo, **cache}))
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("alone", "fills", "uses")]
    for other in weights[1:]:
        assert weights[0].keys() == other.keys()
        assert all(torch.equal(weights[0][key], other[key]) for key in other)
    assert len([n for n in count_streams if n]) == 2
    assert load(tmp_path / "uses").predict([["Ann", "sees", "Bob"]])


def test_a_share_of_the_training_data(bilm_folder, tmp_path, count_streams, caplog):
    write_pos(tmp_path)
    elmo = {"model": str(bilm_folder), "place": "input", "cache": str(tmp_path / "cache")}
    with caplog.at_level(logging.INFO):
        for share in (0.1, 0.5, 1.0):
            train(pos_config(tmp_path, tmp_path / str(share), share=share, elmo=elmo))
    assert [f"{n} training example" in caplog.text for n in (2, 10, 20)] == [True] * 3
    assert len([n for n in count_streams if n]) == 1


def test_smaller_shares_are_parts_of_larger_ones():
    items = list(range(100))
    drawn = [draw_share(items, share, seed=5) for share in (0.001, 0.1, 0.5, 1.0)]
    assert [len(part) for part in drawn] == [1, 10, 50, 100]
    assert all(set(small) < set(large) and large == sorted(large) for small, large in itertools.pairwise(drawn))
    assert draw_share(items, 0.5, seed=6) != drawn[2]
    assert draw_share([], 0.5, seed=1) == []
