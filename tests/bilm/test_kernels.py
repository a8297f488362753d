"""Kernels are chosen by measuring: once per process and shape, with the same results up to rounding."""

import copy
import json
import time

import numpy as np
import pytest
import torch
from facts import mentions

import torchelmo.bulk
from torchelmo import BiLM, BiLMConfig, Elmo
from torchelmo.bilm.fast import products
from torchelmo.bilm.fast.inference import Recurrence
from torchelmo.bilm.fast.int8 import has_int8
from torchelmo.bilm.fast.products import Kernel, Tuning, choose_kernel, list_kernels, measure_kernels
from torchelmo.errors import ConfigError

SHAPE = {"filters": ((1, 8), (2, 8)), "char_dim": 4, "max_characters": 12, "projection_dim": 16, "cell_dim": 40}
SENTENCES = [["I", "took", "a", "bow", "."], ["yes"], ["a", "bow", "and", "an", "arrow", "?"]] * 3
LARGE = Tuning(max_paired_weight=0, min_packed_weight=0, min_half_weight=0)


@pytest.fixture(autouse=True)
def measured(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELMO_KERNELS", "measured")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(products, "_CHOICES", {})


@pytest.fixture
def bilm() -> BiLM:
    torch.manual_seed(0)
    return BiLM(BiLMConfig(**SHAPE))


def prefer(monkeypatch, kernel: Kernel) -> None:
    """Let every choice be this kernel."""
    monkeypatch.setattr(products, "measure_kernels", lambda kernels, prepare: (prepare(kernel)(), kernel)[1])


def timed(**seconds: float):
    def prepare(kernel: Kernel):
        return lambda: time.sleep(seconds[kernel.product])

    return prepare


def test_the_fastest_is_chosen():
    kernels = [Kernel("batched"), Kernel("joined"), Kernel("packed")]
    assert measure_kernels(kernels, timed(batched=0.02, joined=0.005, packed=0.03)) == Kernel("joined")
    assert measure_kernels(kernels, timed(batched=0.02, joined=0.0199, packed=0.03)) == Kernel("batched")  # no gain
    assert measure_kernels(kernels[:1], lambda kernel: pytest.fail("nothing to measure")) == kernels[0]


def test_the_packing_of_the_first_call_and_one_slow_round_do_not_count():
    calls: list[Kernel] = []

    def prepare(kernel: Kernel):
        def run() -> None:
            calls.append(kernel)
            slow = {Kernel("packed"): (1, 2), Kernel("plain"): ()}[kernel]
            time.sleep(0.05 if calls.count(kernel) in slow else {"packed": 0.001, "plain": 0.01}[kernel.product])

        return run

    assert measure_kernels([Kernel("plain"), Kernel("packed")], prepare) == Kernel("packed")


def test_threads_are_measured_in_the_second_of_two_runs():
    calls: list[Kernel] = []

    def prepare(kernel: Kernel):
        def run() -> None:
            first = not calls or calls[-1] != kernel
            calls.append(kernel)
            time.sleep({True: 0.02 if first else 0.002, False: 0.01}[kernel.in_threads])

        return run

    kernels = [Kernel("int8"), Kernel("int8", in_threads=True)]
    assert measure_kernels(kernels, prepare) == kernels[1]


@pytest.mark.parametrize(("sizes", "rows"), [([1] * 9, 1), ([4] * 9, 3), ([32, 32, 20, 1, 1, 1, 1, 1], 32), ([], 1)])
def test_the_rows_of_most_tokens_choose_the_kernel(bilm, sizes, rows):
    recurrence = Recurrence(
        [bilm.forward_lstms, bilm.backward_lstms], residual=True, precision="float32", tuning=Tuning()
    )
    recurrence.choose(sizes, measure=False)
    ((chosen, *_),) = recurrence._chosen
    assert chosen == rows


def test_one_process_keeps_its_choice():
    kernels = [Kernel("batched"), Kernel("joined")]
    first = choose_kernel("key", kernels, timed(batched=0.02, joined=0.005))
    assert choose_kernel("key", kernels, timed(batched=0.0, joined=0.02)) == first == Kernel("joined")
    assert choose_kernel("another", kernels, timed(batched=0.0, joined=0.02)) == Kernel("batched")


def test_a_choice_is_kept_in_a_file_for_later_processes(tmp_path, monkeypatch):
    kernels = [Kernel("packed", in_threads=True), Kernel("packed")]
    never = pytest.fail

    def prepare(kernel: Kernel):
        return lambda: time.sleep(0.02 if kernel.in_threads else 0.005)

    assert choose_kernel("key", kernels, prepare) == Kernel("packed")
    (name, kernel), *others = json.loads((tmp_path / "cache/torchelmo/kernels.json").read_text()).items()
    assert not others
    assert kernel == "packed"
    assert torch.__version__ in name
    monkeypatch.setattr(products, "_CHOICES", {})  # another process
    assert choose_kernel("key", kernels, never) == Kernel("packed")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": 3}', None])
def test_a_damaged_or_unwritable_file_is_ignored(content, tmp_path):
    file = tmp_path / "cache" / "torchelmo" / "kernels.json"
    if content is None:
        (tmp_path / "cache").write_text("a file instead of a folder")
    else:
        file.parent.mkdir(parents=True)
        file.write_text(content)
    kernels = [Kernel("batched"), Kernel("joined")]
    assert choose_kernel("key", kernels, timed(batched=0.02, joined=0.005)) == Kernel("joined")
    assert content is None or len(json.loads(file.read_text())) == 1


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("tuning", [Tuning(), LARGE])
def test_every_kernel_gives_the_same_results(bilm, precision, tuning, monkeypatch, tmp_path):
    if precision == "int8" and not has_int8():
        pytest.skip("this machine has no int8 kernels")
    bilm.fast.tuning = tuning
    expected = Elmo(bilm).embed(SENTENCES, precision=precision, kernels="fixed")
    for kernel in list_kernels(bilm.forward_lstms[0].state_weight, precision, tuning):
        prefer(monkeypatch, kernel)
        monkeypatch.setattr(products, "_CHOICES", {})
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(kernel)))
        found = Elmo(copy.deepcopy(bilm)).embed(SENTENCES, precision=precision)
        assert set(products._CHOICES.values()) == {kernel}
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one, other, rtol=0, atol=0 if precision == "int8" else 1e-6)


def test_measuring_leaves_only_the_weights_that_are_used(bilm, monkeypatch):
    bilm.fast.tuning = LARGE
    plain = Kernel("plain")
    monkeypatch.setattr(
        products, "measure_kernels", lambda kernels, prepare: ([prepare(k)() for k in kernels], plain)[1]
    )
    Elmo(bilm).embed(SENTENCES)
    (_, prepared) = bilm.fast._prepared["lstms", "float32"]
    assert {product for product, _ in prepared._layers} == {"plain"}


def test_the_same_vectors_twice_in_one_process(bilm):
    elmo = Elmo(bilm)
    for one, other in zip(elmo.embed(SENTENCES), elmo.embed(SENTENCES)):
        np.testing.assert_array_equal(one, other)


def test_fixed_kernels_measure_nothing(bilm, monkeypatch):
    monkeypatch.setattr(products, "measure_kernels", lambda *_: pytest.fail("measured"))
    elmo = Elmo(bilm)
    fixed = elmo.embed(SENTENCES, kernels="fixed")
    monkeypatch.setenv("TORCHELMO_KERNELS", "fixed")
    for one, other in zip(elmo.embed(SENTENCES), fixed):
        np.testing.assert_array_equal(one, other)
    bilm(elmo.encode(SENTENCES))  # the module itself always uses fixed kernels


def test_bulk_jobs_and_tasks_use_fixed_kernels(bilm, monkeypatch, tmp_path):
    """So that a resumed run writes the same bytes in another process."""
    monkeypatch.setattr(products, "measure_kernels", lambda *_: pytest.fail("measured"))
    (tmp_path / "text.txt").write_text("I took a bow .\n\nyes\n")
    torchelmo.bulk.embed_file(tmp_path / "text.txt", tmp_path / "vectors.npz", model=Elmo(bilm), pretokenized=True)


def test_wrong_settings_are_named(bilm, monkeypatch):
    with pytest.raises(ConfigError, match=mentions("kernels", "'measured'", "'fixed'", "'fast'")):
        Elmo(bilm).embed(SENTENCES, kernels="fast")
    monkeypatch.setenv("TORCHELMO_KERNELS", "quick")
    with pytest.raises(ConfigError, match=mentions("TORCHELMO_KERNELS", "fixed", "'quick'")):
        Elmo(bilm).embed(SENTENCES)


@pytest.mark.skipif(not products.has_packed(), reason="this PyTorch has no packed products")
def test_single_rows_use_packed_weights_where_plain_products_are_slow(bilm, monkeypatch):
    expected = Elmo(bilm).embed(SENTENCES, kernels="fixed")  # batched directions
    for slow, names in ((True, {"always packed"}), (False, {"packed"})):
        monkeypatch.setattr(products, "prefers_onednn", lambda slow=slow: slow)
        kernels = list_kernels(bilm.forward_lstms[0].state_weight, "float32", LARGE)
        assert {kernel.product for kernel in kernels} == names
        bilm.fast._prepared.clear()
        bilm.fast.tuning = LARGE
        for one, other in zip(Elmo(bilm).embed(SENTENCES, kernels="fixed"), expected):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.skipif(not products.has_packed(), reason="this PyTorch has no packed products")
def test_the_fixed_kernel_of_small_models_depends_on_the_processor_and_the_number_of_rows(bilm, monkeypatch):
    bilm.fast.tuning = Tuning(min_packed_weight=0)
    kernels = list_kernels(bilm.forward_lstms[0].state_weight, "float32", bilm.fast.tuning)

    def fixed() -> list[str]:
        return [products.list_candidates(kernels, rows, 2)[0].product for rows in (1, 3, 8, 32)]

    monkeypatch.setattr(products, "prefers_onednn", lambda: False)
    assert fixed() == ["batched"] * 4
    expected = Elmo(bilm).embed(SENTENCES, kernels="fixed")
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    assert fixed() == ["batched", "batched", "packed", "packed"]
    other_machine = copy.deepcopy(bilm)
    for one, other in zip(Elmo(other_machine).embed(SENTENCES, kernels="fixed"), expected):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    layers = [model.fast._prepared["lstms", "float32"][1]._layers for model in (bilm, other_machine)]
    assert [{product for product, _ in some} for some in layers] == [{"joint"}, {"packed"}]
