"""The module: shapes, mixes, freezing, dropout, boundaries, and bad inputs."""

import copy
import io

import numpy as np
import pytest
import torch
from facts import mentions
from official_files import WORDS, random_official
from oracle import Oracle
from oracle import mix as oracle_mix

from torchelmo import BiLM, Elmo, ScalarMix
from torchelmo.errors import ConfigError, InputError

SENTENCES = [["I", "took", "a", "bow"], ["bow"], ["bow", "and", "arrow"]]


@pytest.fixture
def bilm(tiny_bilm) -> BiLM:
    return copy.deepcopy(tiny_bilm)


def test_shapes_and_mask(bilm):
    elmo = Elmo(bilm)
    mixes, mask = elmo(elmo.encode(SENTENCES))
    assert [tuple(mix.shape) for mix in mixes] == [(3, 4, 16)]
    assert elmo.dim == 16
    assert mask.tolist() == [[True] * 4, [True] + [False] * 3, [True] * 3 + [False]]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("keep_boundaries", [False, True])
def test_agrees_with_the_oracle(norm, keep_boundaries, bilm, tiny_official):
    scalars, gamma = [0.5, -1.0, 0.2], 1.7
    mix = ScalarMix(3, initial=scalars, gamma=gamma, layer_norm=norm, norm_over="batch")
    elmo = Elmo(bilm, mixes=[mix], keep_boundaries=keep_boundaries).double().eval()
    (mixed,), mask = elmo(elmo.encode(SENTENCES))
    oracle = Oracle(tiny_official.options, tiny_official.arrays)
    expected = oracle_mix([oracle.layers(tokens)[0] for tokens in SENTENCES], scalars, gamma, norm)
    cut = slice(None) if keep_boundaries else slice(1, -1)
    for row, vectors in enumerate(expected):
        n = len(vectors[cut])
        np.testing.assert_allclose(mixed[row, :n].detach(), vectors[cut], atol=1e-6)
        assert int(mask[row].sum()) == n
        assert not mixed[row, n:].any()  # padding, and </S> where a row is shorter


@pytest.mark.parametrize("norm", [False, True])
def test_a_sentence_has_the_same_mix_alone_and_in_a_batch(norm, bilm):
    elmo = Elmo(bilm, layer_norm=norm).eval()
    (together,), _ = elmo(elmo.encode(SENTENCES))
    for row, tokens in enumerate(SENTENCES):
        (alone,), _ = elmo(elmo.encode([tokens]))
        torch.testing.assert_close(together[row, : len(tokens)], alone[0])


def test_several_mixes_of_one_run(bilm):
    elmo = Elmo(bilm, n_mixes=3, dropout=0.0)
    with torch.no_grad():
        elmo.mixes[1].scalars.copy_(torch.tensor([9.0, 0.0, 0.0]))
        elmo.mixes[2].gamma.mul_(2.0)
    (first, second, third), _ = elmo(elmo.encode(SENTENCES))
    assert not torch.allclose(first, second)
    torch.testing.assert_close(third, 2.0 * first)
    assert elmo.mixes[1].weights[0] > 0.99


@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (1, 2, 3)])
def test_extra_leading_dimensions(leading, bilm):
    elmo = Elmo(bilm).eval()
    ids = elmo.encode(SENTENCES)
    tiled = ids.expand(*leading, *ids.shape) if leading else ids
    (mixed,), mask = elmo(tiled)
    (expected,), expected_mask = elmo(ids)
    assert mixed.shape == (*leading, 3, 4, 16)
    assert mask.shape == (*leading, 3, 4)
    torch.testing.assert_close(mixed, expected.expand_as(mixed))
    assert torch.equal(mask, expected_mask.expand_as(mask))


def test_one_sentence_without_a_batch(bilm):
    elmo = Elmo(bilm).eval()
    ids = elmo.encode(SENTENCES[:1])
    (mixed,), mask = elmo(ids[0])
    assert mixed.shape == (4, 16)
    assert mask.tolist() == [True] * 4
    torch.testing.assert_close(mixed, elmo(ids).mixes[0][0])


@pytest.mark.parametrize("sentences", [[], [[]], [[], []]])
@pytest.mark.parametrize("keep_boundaries", [False, True])
def test_nothing(sentences, keep_boundaries, bilm):
    elmo = Elmo(bilm, keep_boundaries=keep_boundaries, layer_norm=True)
    (mixed,), mask = elmo(elmo.encode(sentences))
    assert mixed.shape == (len(sentences), 2 if keep_boundaries else 0, 16)
    assert not mask.any()


def test_frozen_and_not(bilm):
    elmo = Elmo(bilm)
    assert not any(p.requires_grad for p in bilm.parameters())
    elmo(elmo.encode(SENTENCES)).mixes[0].sum().backward()
    assert all(p.grad is None for p in bilm.parameters())
    assert elmo.mixes[0].scalars.grad is not None
    elmo = Elmo(bilm, freeze=False)
    elmo(elmo.encode(SENTENCES)).mixes[0].sum().backward()
    assert all(p.grad is not None for p in bilm.parameters())


def test_training_an_unfrozen_elmo_changes_its_vectors(bilm):
    """Nothing that was prepared for speed outlives the weights it was prepared from."""
    elmo = Elmo(bilm, freeze=False, dropout=0.0)
    before = elmo.embed(SENTENCES)
    ids = elmo.encode(SENTENCES)
    optimizer = torch.optim.SGD(elmo.parameters(), lr=0.1)
    elmo(ids).mixes[0].square().sum().backward()
    optimizer.step()
    after = elmo.embed(SENTENCES)
    assert all(abs(a - b).max() > 1e-3 for a, b in zip(before, after))
    with torch.no_grad():
        out = bilm(ids, path="reference")
    np.testing.assert_allclose(after[0], out.layers[:, 0, 1:5], atol=2e-6)


def test_dropout_falls_on_the_result_in_training_only(bilm):
    elmo = Elmo(bilm, dropout=0.5)
    ids = elmo.encode([["bow"] * 200])
    plain = elmo.eval()(ids).mixes[0]
    dropped = elmo.train()(ids).mixes[0]
    zeros = dropped == 0
    assert 0.4 < zeros.float().mean() < 0.6
    torch.testing.assert_close(dropped[~zeros], 2.0 * plain[~zeros])
    torch.testing.assert_close(Elmo(bilm, dropout=0.0).train()(ids).mixes[0], plain, rtol=0, atol=2e-6)


def test_penalty_sums_over_the_mixes(bilm):
    elmo = Elmo(bilm, mixes=[ScalarMix(3, initial=[1.0, 2.0, 0.0]), ScalarMix(3, initial=[0.0, 0.0, 3.0])])
    assert elmo.penalty().item() == pytest.approx(14.0)
    elmo.penalty().backward()
    assert elmo.mixes[1].scalars.grad.tolist() == [0.0, 0.0, 6.0]


def test_encode(bilm):
    elmo = Elmo(bilm)
    ids = elmo.encode(SENTENCES)
    assert ids.shape == (3, 4, bilm.config.max_characters)
    assert ids.dtype == torch.int64
    assert torch.equal(elmo.encode(tuple(map(tuple, SENTENCES))), ids)
    assert torch.equal(elmo.encode(iter(SENTENCES)), ids)
    assert torch.equal(elmo.encode([np.array(tokens) for tokens in SENTENCES]), ids)


def test_int32_ids(bilm):
    elmo = Elmo(bilm).eval()
    ids = elmo.encode(SENTENCES)
    torch.testing.assert_close(elmo(ids.int()).mixes[0], elmo(ids).mixes[0], rtol=0, atol=2e-6)


def test_words_in(load_random):
    elmo = Elmo(load_random(random_official(words=len(WORDS))))
    (mixed,), mask = elmo(elmo.encode([["the", "bow"], ["unheard"]]))
    assert mixed.shape == (2, 2, 10)
    assert mask.tolist() == [[True, True], [True, False]]
    assert elmo(elmo.encode([[["the"]]][0] * 2)[None]).mixes[0].shape == (1, 2, 1, 10)


def test_copies(bilm):
    elmo = Elmo(bilm, n_mixes=2).eval()
    ids = elmo.encode(SENTENCES)
    elmo.embed(SENTENCES)
    other = copy.deepcopy(elmo)
    torch.testing.assert_close(other(ids).mixes[0], elmo(ids).mixes[0], rtol=0, atol=2e-6)
    file = io.BytesIO()
    torch.save(elmo, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    torch.testing.assert_close(loaded(ids).mixes[0], elmo(ids).mixes[0], rtol=0, atol=2e-6)
    np.testing.assert_allclose(loaded.embed(SENTENCES)[0], elmo.embed(SENTENCES)[0], rtol=0, atol=2e-6)


def test_state_dicts(bilm):
    elmo = Elmo(bilm, n_mixes=2)
    other = Elmo(BiLM(bilm.config), n_mixes=2).eval()
    other.embed(SENTENCES)  # what is prepared here must not survive the loading
    other.load_state_dict(elmo.state_dict())
    np.testing.assert_allclose(other.embed(SENTENCES)[0], elmo.embed(SENTENCES)[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("sentences", "facts"),
    [
        ("a string", [0, "'a'"]),
        (["a", "b"], [0, "'a'"]),
        ([["a"], "b c"], [1, "'b c'"]),
        ([["a", 3]], [0, "token 1", 3]),
        ([["a"], [b"b"]], [1, "token 0", "b'b'"]),
        ([[None]], [0, "token 0", None]),
        ([[["a"]]], [0, "token 0", ["a"]]),
        (None, ["encode", None]),
        ([None], [0, None]),
        ([7], [0, 7]),
        ([b"ab"], [0, "b'ab'"]),
    ],
)
def test_wrong_sentences(sentences, facts, bilm):
    with pytest.raises(InputError, match=mentions(*facts)):
        Elmo(bilm).encode(sentences)


def test_words_without_a_vocabulary(load_random):
    bilm = load_random(random_official(words=len(WORDS)))
    bilm.vocabulary = None
    with pytest.raises(InputError, match=mentions("load_official", "vocab.txt")):
        Elmo(bilm).encode([["the"]])


@pytest.mark.parametrize("n_mixes", [0, -1])
def test_no_mixes(n_mixes, bilm):
    with pytest.raises(ConfigError, match=mentions("n_mixes", 1, n_mixes)):
        Elmo(bilm, n_mixes=n_mixes)


def test_mixes_of_ones_own_are_all_the_mixes(bilm):
    with pytest.raises(ConfigError, match=mentions("mixes", None, 0)):
        Elmo(bilm, mixes=[])
    with pytest.raises(ConfigError, match=mentions("n_mixes", 3, 2)):
        Elmo(bilm, n_mixes=3, mixes=[ScalarMix(3), ScalarMix(3)])
    assert len(Elmo(bilm, n_mixes=2, mixes=[ScalarMix(3), ScalarMix(3)]).mixes) == 2


def test_ids_that_are_no_tensor(bilm):
    with pytest.raises(InputError, match=mentions("list", "Elmo.encode")):
        Elmo(bilm)([[1]])


def test_mixes_for_another_number_of_layers(bilm):
    with pytest.raises(ConfigError, match=mentions("mixes", 3, 2)):
        Elmo(bilm, mixes=[ScalarMix(3), ScalarMix(2)])


@pytest.mark.parametrize("cache", ["64 parrots", "MB", "-1MB", -1, 1.5])
def test_a_wrong_cache(cache, bilm):
    with pytest.raises(ConfigError, match=mentions("cache", "64MB", repr(cache))):
        Elmo(bilm, cache=cache)


def test_sizes_of_the_cache(bilm):
    assert Elmo(bilm, cache="1MB").token_cache.capacity == 2**20 // (4 * 8)
    assert Elmo(bilm, cache="2 kb").token_cache.capacity == 2**11 // (4 * 8)
    assert Elmo(bilm, cache=7).token_cache.capacity == 7


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("layer_norm", [True, False])
def test_autocast(freeze, layer_norm, bilm):
    elmo = Elmo(bilm, freeze=freeze, layer_norm=layer_norm, dropout=0.0)
    ids = elmo.encode(SENTENCES)
    expected = elmo(ids).mixes[0].detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (mixed,), _ = elmo(ids)
    mixed.sum().backward()
    torch.testing.assert_close(mixed.detach().float(), expected, rtol=0, atol=0.2 if layer_norm else 0.05)


def test_a_model_by_its_name(tiny_bilm, tmp_path):
    tiny_bilm.save(tmp_path / "mine")
    assert Elmo(str(tmp_path / "mine")).dim == Elmo(tmp_path / "mine").dim == 16
    assert Elmo().dim == Elmo("english-small").dim == 384
    with pytest.raises(InputError, match="no-such-model"):
        Elmo("no-such-model")
