"""embed: every form of input and output, and nothing but the sentence in its vectors."""

import copy
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from official_files import WORDS, random_official
from oracle import Oracle

from torchelmo import BiLM, Elmo, ScalarMix
from torchelmo.analysis import compare
from torchelmo.bilm.fast.products import Tuning

SENTENCES = [["I", "took", "a", "bow"], [], ["bow"], ["bow", "and", "arrow", "<S>", "naïve", ""]]
texts = st.lists(st.lists(st.sampled_from("a bow the arrow naïve 日本 x".split()) | st.text(max_size=5), max_size=6))


@pytest.fixture
def elmo(tiny_bilm) -> Elmo:
    return Elmo(copy.deepcopy(tiny_bilm))


@pytest.fixture(scope="module")
def shared(tiny_bilm) -> Elmo:
    """For tests that only read; what it keeps of earlier calls is part of what is tested."""
    return Elmo(copy.deepcopy(tiny_bilm), cache=5)


def assert_close(ours, theirs, tolerance: float = 2e-6) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def test_agrees_with_the_oracle(elmo, tiny_official):
    oracle = Oracle(tiny_official.options, tiny_official.arrays)
    for tokens, vectors in zip(SENTENCES, elmo.embed(SENTENCES)):
        expected = oracle.layers(tokens)[0][:, 1:-1]
        assert vectors.shape == expected.shape
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=5e-6)


def test_carried_state_agrees_with_the_oracle(elmo, tiny_official):
    oracle, state = Oracle(tiny_official.options, tiny_official.arrays), None
    for tokens, vectors in zip(SENTENCES, elmo.embed(SENTENCES, state="carry")):
        if tokens:  # a sentence with no tokens is not there
            expected, state = oracle.layers(tokens, state)
            np.testing.assert_allclose(vectors, expected[:, 1:-1], rtol=0, atol=5e-6)


def test_every_choice_of_layers(elmo):
    elmo.mixes = torch.nn.ModuleList([ScalarMix(3, initial=[1.0, 0.0, -1.0], gamma=2.0)])
    layers = elmo.embed(SENTENCES)
    shares = np.exp([1.0, 0.0, -1.0]) / np.exp([1.0, 0.0, -1.0]).sum()
    expected = {
        "all": layers,
        "top": [array[2] for array in layers],
        "average": [array.mean(axis=0) for array in layers],
        "sum": [array.sum(axis=0) for array in layers],
        "concat": [np.concatenate(array, axis=-1) for array in layers],
        "mix": [2.0 * np.tensordot(shares, array, 1) for array in layers],
        0: [array[0] for array in layers],
        1: [array[1] for array in layers],
        2: [array[2] for array in layers],
        -1: [array[2] for array in layers],
        np.int64(1): [array[1] for array in layers],
    }
    for choice, arrays in expected.items():
        found = elmo.embed(SENTENCES, layers=choice)
        assert all(array.dtype == np.float32 for array in found)
        assert [array.shape for array in found] == [array.shape for array in arrays]
        assert_close(found, arrays)


@pytest.mark.parametrize("layers", ["all", "top", "concat", 0])
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_pooling_over_the_tokens(layers, pool, elmo):
    texts = [*SENTENCES, "I took a bow. Don't!"]
    for vectors, pooled in zip(elmo.embed(texts, layers), elmo.embed(texts, layers, pool=pool)):
        expected = np.zeros((*vectors.shape[:-2], vectors.shape[-1]))
        if vectors.shape[-2]:
            expected = getattr(vectors, pool)(axis=-2)
        assert pooled.shape == expected.shape
        assert pooled.dtype == np.float32
        assert_close([pooled], [expected])


def test_the_language_of_the_model_is_the_default(elmo):
    text = "Wir kommen z.B. heute."
    english, german = elmo.embed([text], lang="en")[0].shape[1], elmo.embed([text], lang="de")[0].shape[1]
    assert english != german
    assert elmo.embed([text])[0].shape[1] == english
    elmo.bilm.lang = "de"
    assert elmo.embed([text])[0].shape[1] == german


def test_the_layer_norm_of_the_mix_is_computed_for_each_sentence(tiny_bilm):
    elmo = Elmo(copy.deepcopy(tiny_bilm), layer_norm=True).eval()
    together = elmo.embed(SENTENCES, layers="mix")
    for tokens, vectors in zip(SENTENCES, together):
        if tokens:
            (mixed,), _ = elmo(elmo.encode([tokens]))
            np.testing.assert_allclose(vectors, mixed[0].detach(), rtol=0, atol=5e-6)


@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("direction", [None, False])
def test_other_shapes(n_layers, direction, load_random):
    bilm = load_random(random_official(n_layers=n_layers, bidirectional=direction))
    elmo = Elmo(bilm)
    arrays = elmo.embed(SENTENCES)
    assert [array.shape for array in arrays] == [(n_layers + 1, len(s), elmo.dim) for s in SENTENCES]


def test_words_in(load_random):
    official = random_official(words=len(WORDS))
    elmo = Elmo(load_random(official))
    oracle = Oracle(official.options, official.arrays, vocabulary=WORDS)
    for tokens, vectors in zip(SENTENCES, elmo.embed(SENTENCES)):
        np.testing.assert_allclose(vectors, oracle.layers(tokens)[0][:, 1:-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("sentences", [[], (), iter([]), (x for x in [])])
def test_no_sentences(sentences, elmo):
    assert elmo.embed(sentences) == []


@pytest.mark.parametrize("empty", [[], (), "", "  \n"])
def test_a_sentence_without_tokens(empty, elmo):
    assert [array.shape for array in elmo.embed([empty])] == [(3, 0, 16)]
    assert [array.shape for array in elmo.embed([empty], layers="top")] == [(0, 16)]
    arrays = elmo.embed([["bow"], empty, ["bow"]], state="carry")
    assert [array.shape for array in arrays] == [(3, 1, 16), (3, 0, 16), (3, 1, 16)]
    assert arrays[1].dtype == np.float32


def test_strings_go_through_spacy(elmo):
    (vectors,) = elmo.embed(["I took a bow. Don't!"])
    expected = elmo.embed([["I", "took", "a", "bow", "."], ["Do", "n't", "!"]])
    assert_close([vectors], [np.concatenate(expected, axis=1)])
    mixed = elmo.embed(["I took a bow.", ["Do", "n't", "!"]], lang="en")
    assert_close(mixed, expected)


def test_the_rules_of_a_language_are_built_once(elmo, monkeypatch):
    elmo.embed(["I took a bow."])
    monkeypatch.setattr("spacy.blank", None)  # whoever builds rules now fails
    assert elmo.embed(["It is new."])[0].shape == (3, 4, 16)
    assert compare(elmo, "bow", ["A bow", "His bow"]).shape == (3, 2, 2)


def test_forms_of_sentences(elmo):
    expected = elmo.embed([["a", "bow"]])
    for form in (("a", "bow"), np.array(["a", "bow"]), [np.str_("a"), "bow"]):
        assert_close(elmo.embed([form]), expected)
    assert_close(elmo.embed(np.array([["a", "bow"]])), expected)
    assert_close(elmo.embed(iter([["a", "bow"]])), expected)


def test_a_stream_reads_no_more_than_it_needs(elmo):
    read = itertools.count()
    endless = (["bow", str(next(read))] for _ in itertools.repeat(None))
    stream = elmo.stream(endless, layers="top", batch_tokens=50)
    first = [next(stream) for _ in range(100)]
    assert next(read) < 1000
    assert_close(first, elmo.embed([["bow", str(i)] for i in range(100)], layers="top"))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, st.integers(1, 60))
def test_batch_size_and_what_ran_before_change_nothing(shared, tiny_bilm, sentences, batch_tokens):
    fresh = Elmo(tiny_bilm, cache=0)
    alone = [fresh.embed([tokens])[0] for tokens in sentences]
    assert_close(shared.embed(sentences, batch_tokens=batch_tokens), alone)
    assert_close(shared.embed(sentences[::-1]), alone[::-1])


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, st.integers(1, 60))
def test_carried_state_is_the_same_for_every_batch_size(shared, sentences, batch_tokens):
    expected = shared.embed(sentences, state="carry")
    assert_close(shared.embed(sentences, state="carry", batch_tokens=batch_tokens), expected)


@pytest.mark.parametrize("cache", [0, 1, 3, 50_000, "1KB"])
def test_the_cache_changes_nothing(cache, tiny_bilm):
    elmo = Elmo(copy.deepcopy(tiny_bilm), cache=cache)
    plain = Elmo(copy.deepcopy(tiny_bilm), cache=0)
    for batch in (SENTENCES, SENTENCES[::-1], [["a", "new", "word"]], SENTENCES):
        assert_close(elmo.embed(batch, batch_tokens=5), plain.embed(batch))
    assert len(elmo.token_cache) <= elmo.token_cache.capacity


@pytest.mark.parametrize(
    "change",
    [
        lambda bilm: bilm.encoder.embedding.detach().mul_(2.0),
        lambda bilm: bilm.encoder.projection.bias.detach().add_(1.0),
        lambda bilm: bilm.forward_lstms[0].bias.detach().add_(1.0),
        lambda bilm: bilm.load_state_dict(BiLM(bilm.config).state_dict()),
        lambda bilm: setattr(bilm.forward_lstms[1], "bias", torch.nn.Parameter(torch.ones(64))),
        lambda bilm: setattr(bilm.encoder.projection.weight, "data", torch.ones(8, 14)),
        lambda bilm: bilm.double(),
    ],
)
def test_changed_weights_are_seen(change, elmo):
    """The cache and the prepared weights belong to the weights they were made from."""
    elmo.embed(SENTENCES)
    with torch.no_grad():
        change(elmo.bilm)
        out = elmo.bilm(elmo.encode(SENTENCES[:1]), path="reference")
    (vectors,) = elmo.embed(SENTENCES[:1])
    np.testing.assert_allclose(vectors, out.layers[:, 0, 1:-1], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("part", ["", "encoder.embedding", "encoder.highways", "backward_lstms.1"])
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_training_between_two_frozen_calls_is_seen(part, name, elmo):
    """Fused optimizers do not raise the version of what they write to."""
    elmo.embed(SENTENCES)
    trained = [weight for at, weight in elmo.bilm.named_parameters() if at.startswith(part)]
    elmo.bilm.requires_grad_(True)
    elmo.bilm(elmo.encode(SENTENCES)).layers.square().sum().backward()
    getattr(torch.optim, name)(trained, lr=0.1, fused=True).step()
    elmo.bilm.requires_grad_(False)
    expected = elmo.bilm(elmo.encode(SENTENCES[:1]), path="reference").layers[:, 0, 1:-1]
    np.testing.assert_allclose(elmo.embed(SENTENCES[:1])[0], expected, rtol=1e-5, atol=2e-6)


def test_weights_may_lie_in_memory_in_any_order(tiny_bilm):
    expected = Elmo(copy.deepcopy(tiny_bilm)).embed(SENTENCES)
    turned = Elmo(copy.deepcopy(tiny_bilm), freeze=False)
    for module in (turned.bilm.encoder.projection, turned.bilm.encoder.highways[0].carry):
        module.weight = torch.nn.Parameter(module.weight.detach().T.contiguous().T)
    assert_close(turned.embed(SENTENCES), expected)


def tuned(elmo: Elmo, tuning: Tuning) -> Elmo:
    copied = Elmo(copy.deepcopy(elmo.bilm))
    copied.bilm.fast.tuning = tuning
    return copied


def test_half_precision_is_near(elmo):
    exact = elmo.embed(SENTENCES)
    half = tuned(elmo, Tuning(min_half_weight=0)).embed(SENTENCES, precision="float16")
    assert_close(half, exact, 2e-2)
    assert_close(elmo.embed(SENTENCES, precision="float16"), exact, 2e-2)
    assert_close(elmo.embed(SENTENCES), exact)  # the two precisions do not share cached vectors


def test_half_precision_keeps_the_direction_of_every_vector(elmo):
    exact = elmo.embed(SENTENCES)
    half = tuned(
        elmo, Tuning(min_half_weight=0, max_paired_weight=0)
    )  # as for large models: the LSTMs in half precision
    for one, other in zip(exact, half.embed(SENTENCES, precision="float16")):
        cosine = (one * other).sum(-1) / (np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1))
        assert (cosine >= 0.9999).all()


def test_small_chunks_of_words(elmo):
    assert_close(tuned(elmo, Tuning(table_chunk=1)).embed(SENTENCES), elmo.embed(SENTENCES))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.float16, 0.05), (torch.bfloat16, 0.2)])
def test_models_of_other_precisions(dtype, tolerance, elmo):
    expected = elmo.embed(SENTENCES)
    arrays = elmo.to(dtype).embed(SENTENCES)
    assert_close(arrays, expected, tolerance)
    assert all(array.dtype == np.float32 for array in arrays)


def test_a_very_long_sentence(elmo):
    tokens = ["bow", "and", "arrow", "x"] * 5_000
    (vectors,) = elmo.embed([tokens], layers="top")
    assert vectors.shape == (20_000, 16)
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(vectors[9_998], vectors[10_002], atol=1e-4)  # far from both ends


def test_a_very_long_token(elmo):
    # Equal ids, but two calls: a kernel may sum in another order for another alignment of its buffers.
    assert_close(elmo.embed([["x" * 10_000]]), elmo.embed([["x" * 10]]))


def test_marks_in_the_text_are_the_marks(elmo):
    assert_close([elmo.embed([["<S>"]], layers=0)[0]], [elmo.embed([["<S>"]], layers=0)[0]])
    marks = elmo.bilm(elmo.encode([["x"]])).layers[0, 0].detach()
    assert_close([elmo.embed([["<S>"]], layers=0)[0][0]], [marks[0]])
    assert_close([elmo.embed([["</S>"]], layers=0)[0][0]], [marks[2]])


def test_results_are_independent_arrays(elmo):
    one, two = elmo.embed([["a", "bow"], ["a", "bow"]])
    one[:] = 0.0
    assert two.any()
    assert elmo.embed([["a", "bow"]])[0].any()


def test_several_threads_at_once(tiny_bilm):
    elmo = Elmo(copy.deepcopy(tiny_bilm), cache=4)
    expected = elmo.embed(SENTENCES)
    with ThreadPoolExecutor(4) as pool:
        for arrays in pool.map(lambda _: elmo.embed(SENTENCES, batch_tokens=5), range(24)):
            assert_close(arrays, expected)


def test_progress_is_reported(elmo):
    finished: list[int] = []
    elmo.embed(SENTENCES, progress=finished.append)
    assert sum(finished) == len(SENTENCES)
    assert len(elmo.embed(SENTENCES, progress=True)) == len(SENTENCES)


def test_modes_are_left_alone(elmo):
    elmo.train()
    first = elmo.embed(SENTENCES, layers="mix")
    assert elmo.training
    assert torch.is_grad_enabled()
    assert_close(elmo.embed(SENTENCES, layers="mix"), first)  # no dropout
    with torch.inference_mode():
        elmo.embed(SENTENCES)
        elmo.embed([["new", "words"]])
    elmo.embed([["newer", "words"]])
    elmo(elmo.encode(SENTENCES)).mixes[0].sum().backward()  # nothing kept from there is in the way


def test_words_that_inference_mode_kept_first_make_room_for_others(tiny_bilm):
    elmo = Elmo(copy.deepcopy(tiny_bilm), cache=4)
    with torch.inference_mode():
        elmo.embed(SENTENCES)
    found = elmo.embed([["new", "words", "in", "all", "places"]])
    assert_close(found, Elmo(copy.deepcopy(tiny_bilm)).embed([["new", "words", "in", "all", "places"]]))
