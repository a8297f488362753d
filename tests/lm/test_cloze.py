"""Words predicted from both sides: by masked models against their equations, and by other biLMs."""

import numpy as np
import pytest
import torch
from facts import mentions
from tiny_lm import WORDS, MaskedOracle, tiny_lm

from torchelmo.compat.simple_elmo import ElmoModel
from torchelmo.errors import ConfigError, InputError
from torchelmo.lm import Scorer, perplexity, pseudo_perplexity, substitutes, surprisal
from torchelmo.lm.cloze import combine, pseudo_scores, substitutes_by_direction
from torchelmo.lm.pairs import MinimalPair, judge_pairs
from torchelmo.lm.predict import contexts

TEXT = [["the", "bow", "and", "the", "quiver"], [], ["arrow"], ["rose", "and", "bow", "Ærø"]]


@pytest.fixture(scope="module", params=[True, False], ids=["joint", "not joint"])
def bilm(request):
    return tiny_lm(objective="masked", joint=request.param)


@pytest.fixture(scope="module")
def oracle(bilm):
    return MaskedOracle(bilm)


def ids_of(tokens):
    return [WORDS.index(token) if token in WORDS else 2 for token in tokens]


def test_pseudo_perplexity_hides_one_token_at_a_time(bilm, oracle):
    log_p = [
        oracle.log_p(tokens, (k,))[k, word] for tokens in filter(None, TEXT) for k, word in enumerate(ids_of(tokens))
    ]
    found = pseudo_perplexity(bilm, TEXT)
    assert found.pseudo_perplexity == pytest.approx(np.exp(-np.mean(log_p)), rel=1e-5)
    assert found.loss == pytest.approx(-np.sum(log_p), rel=1e-5)
    assert (found.n_tokens, found.n_sentences, found.oov_rate) == (10, 3, pytest.approx(0.2))
    scores = list(pseudo_scores(bilm, TEXT))
    assert [one.tokens for one in scores] == [tokens for tokens in TEXT if tokens]
    assert torch.cat([one.log_p for one in scores]).numpy() == pytest.approx(log_p, rel=1e-4)
    assert scores[0].known.tolist() == [True] * 4 + [False]


@pytest.mark.parametrize("spacing", [1, 2, 3, 9])
def test_several_tokens_may_be_hidden_at_once(bilm, oracle, spacing):
    expected = []
    for tokens in filter(None, TEXT):
        n = len(tokens)
        rows = {first: oracle.log_p(tokens, tuple(range(first, n, spacing))) for first in range(min(spacing, n))}
        expected += [rows[k % spacing][k, word] for k, word in enumerate(ids_of(tokens))]
    found = pseudo_perplexity(bilm, TEXT, spacing=spacing)
    assert found.pseudo_perplexity == pytest.approx(np.exp(-np.mean(expected)), rel=1e-5)


def test_batches_and_parts_do_not_change_pseudo_perplexity(bilm, monkeypatch):
    whole = pseudo_perplexity(bilm, TEXT)
    assert pseudo_perplexity(bilm, TEXT, batch_tokens=3).pseudo_perplexity == pytest.approx(whole[0], rel=1e-6)
    parts = combine([pseudo_perplexity(bilm, TEXT[:2]), pseudo_perplexity(bilm, TEXT[2:])])
    assert parts.pseudo_perplexity == pytest.approx(whole.pseudo_perplexity, rel=1e-6)
    assert parts[1:] == pytest.approx(whole[1:])
    monkeypatch.setattr("torchelmo.lm.cloze.LOGITS", 1)
    assert pseudo_perplexity(bilm, TEXT).pseudo_perplexity == pytest.approx(whole.pseudo_perplexity, rel=1e-6)


def test_progress_counts_tokens(bilm):
    seen = []
    pseudo_perplexity(bilm, TEXT, progress=seen.append)
    assert seen == [5, 1, 4]


@pytest.mark.parametrize("direction", ["both", "forward"])
def test_other_models_combine_their_directions(direction):
    """p(w | both sides) is the normalized product of the directions, divided by p(w)."""
    bilm = tiny_lm(direction)
    prior = bilm.softmax(torch.zeros(6))
    total = 0.0
    for tokens, (forward, backward) in contexts(bilm, TEXT):
        for k, word in enumerate(ids_of(tokens)):
            score = bilm.softmax(forward[k])
            if backward is not None:
                score = score + bilm.softmax(backward[k + 1]) - prior
            total -= score.log_softmax(0)[word].item()
    assert pseudo_perplexity(bilm, TEXT).loss == pytest.approx(total, rel=1e-5)


def test_substitutes_of_a_masked_model_are_its_predictions_with_the_word_hidden(bilm, oracle):
    for position, found in enumerate(substitutes(bilm, TEXT[0], top=99)):
        p = np.exp(oracle.log_p(TEXT[0], (position,))[position])
        p[[0, 1, 2, ids_of(TEXT[0])[position]]] = 0  # the marks, and the word itself
        p /= p.sum()
        order = np.argsort(-p)[: np.count_nonzero(p)]
        assert [one.word for one in found] == [WORDS[i] for i in order]
        assert [one.probability for one in found] == pytest.approx(p[order], rel=1e-4)


def test_substitutes_of_some_positions_are_those_of_all(bilm):
    whole = substitutes(bilm, TEXT[0])
    some = substitutes(bilm, TEXT[0], [3, 1])
    for one, position in zip(some, (3, 1), strict=True):
        assert [x.word for x in one] == [x.word for x in whole[position]]
        assert [x.probability for x in one] == pytest.approx([x.probability for x in whole[position]], rel=1e-5)
    assert substitutes(bilm, TEXT[0], []) == []


def test_a_masked_model_does_not_see_the_word_that_it_replaces(bilm):
    (one,) = substitutes(bilm, ["the", "quiver", "and", "arrow"], [1])
    (other,) = substitutes(bilm, ["the", "wheelbarrow", "and", "arrow"], [1])  # both outside the vocabulary
    assert [x.word for x in one] == [x.word for x in other]
    # The encoder reads both words, whose lengths differ, together with the others, which may round differently.
    assert [x.probability for x in one] == pytest.approx([x.probability for x in other], rel=1e-5)


def test_a_masked_model_has_one_expectation(bilm):
    (found,) = substitutes_by_direction(bilm, TEXT[0], [1], top=3)
    (joint,) = substitutes(bilm, TEXT[0], [1], top=3)
    assert list(found) == ["masked"]
    assert found["masked"].words == [one.word for one in joint]


@pytest.mark.parametrize(
    "use",
    [
        lambda bilm: perplexity(bilm, TEXT),
        lambda bilm: list(surprisal(bilm, TEXT)),
        lambda bilm: contexts(bilm, TEXT),
        lambda bilm: Scorer(bilm),
        lambda bilm: list(judge_pairs(bilm, [MinimalPair("the bow", "bow the", "order")], lang=None)),
    ],
    ids=["perplexity", "surprisal", "contexts", "Scorer", "minimal pairs"],
)
def test_a_masked_model_has_no_perplexity_and_says_what_to_use(use, bilm):
    with pytest.raises(InputError, match=mentions("objective", "masked", "pseudo_perplexity", "--pseudo")):
        use(bilm)


def test_simple_elmo_says_so_too(bilm, tmp_path):
    bilm.save(tmp_path / "model")
    model = ElmoModel()
    model.load(str(tmp_path / "model"))
    with pytest.raises(InputError, match=mentions("masked")):
        model.get_elmo_substitutes(["the bow"])


def test_wrong_calls_are_named(bilm):
    with pytest.raises(InputError, match=mentions("pseudo_perplexity", "tokens")):
        pseudo_perplexity(bilm, [])
    with pytest.raises(ConfigError, match=mentions("spacing", 0)):
        pseudo_perplexity(bilm, TEXT, spacing=0)
    with pytest.raises(InputError, match=mentions("softmax")):
        pseudo_perplexity(tiny_lm_without_softmax(), TEXT)


def tiny_lm_without_softmax():
    from dataclasses import replace

    from torchelmo import BiLM

    return BiLM(replace(tiny_lm().config, softmax_words=0))
