"""`Scorer` and its agreement with `perplexity` and `surprisal`."""

import math

import pytest
import torch
from facts import mentions
from tiny_lm import WORDS, tiny_lm

from torchelmo.errors import ConfigError, InputError
from torchelmo.lm import Scorer, perplexity, surprisal
from torchelmo.lm.predict import scores
from torchelmo.lm.scorer import tokens_of_words

TEXT = [["the", "bow", "and", "the", "quiver"], ["arrow"], ["rose", "and", "bow", "."]]


@pytest.fixture(scope="module")
def bilm():
    return tiny_lm()


def total(x):
    return x.sum().item()


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_token_scores_are_the_surprisals(bilm, direction):
    found = Scorer(bilm, direction).token_score(TEXT, surprisal=True, base_two=True)
    for pairs, one in zip(found, surprisal(bilm, TEXT), strict=True):
        assert [token for token, _ in pairs] == one.tokens
        assert [bits for _, bits in pairs] == pytest.approx(getattr(one, direction))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_sum_of_sequence_scores_with_ends_is_the_loss_of_perplexity(bilm, direction):
    found = Scorer(bilm, direction).sequence_score(TEXT, total, end_mark=True)
    assert -sum(found) == pytest.approx(perplexity(bilm, TEXT).loss(direction))


def test_both_directions_are_averaged(bilm):
    each = [Scorer(bilm, direction).sequence_score(TEXT, total) for direction in ("forward", "backward", "both")]
    assert each[2] == pytest.approx([(a + b) / 2 for a, b in zip(*each[:2])])


def test_units_of_scores(bilm):
    scorer = Scorer(bilm)
    [[(_, log_p)]] = scorer.token_score([["arrow"]])
    [[(_, p)]] = scorer.token_score([["arrow"]], prob=True)
    [[(_, bits)]] = scorer.token_score([["arrow"]], surprisal=True, base_two=True)
    assert math.log(p) == pytest.approx(log_p)
    assert bits == pytest.approx(-log_p / math.log(2))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_rank_and_entropy_are_those_of_the_distribution(bilm, direction):
    """Against the distributions that `next_word_distribution` gives after the words that the direction has read."""
    scorer = Scorer(bilm, direction)
    [found] = scorer.token_score([TEXT[0]], rank=True, entropy=True, base_two=True)
    sentence = TEXT[0]
    place = 2
    read = sentence[:place] if direction == "forward" else sentence[place + 1 :]
    log_p = scorer.next_word_distribution([read])[0].double()
    token, score, rank, entropy = found[place]
    target = log_p[WORDS.index(token)]
    assert score * math.log(2) == pytest.approx(float(target), rel=1e-5)
    assert rank == 1 + int((log_p > target).sum())
    assert entropy == pytest.approx(float(-(log_p.exp() * log_p).sum()) / math.log(2), rel=1e-5)


def test_scores_have_ranks_and_entropies_only_if_asked(bilm):
    [found] = scores(bilm, [["arrow"]])
    assert not found.ranks
    assert not found.entropies


def test_topk_gives_the_most_probable_words(bilm):
    scorer = Scorer(bilm)
    distribution = scorer.next_word_distribution(TEXT[:2])
    assert distribution.exp().sum(1).tolist() == pytest.approx([1, 1])
    words, probabilities = scorer.topk(distribution, 3)
    order = distribution[1].argsort(descending=True)[:3].tolist()
    assert words[1] == [WORDS[i] for i in order]
    assert probabilities[1] == pytest.approx(distribution[1].exp()[order].tolist())
    assert torch.equal(scorer.next_word_distribution(TEXT[:2], surprisal=True), -distribution)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_conditional_score_is_that_of_the_stimulus_in_its_context(bilm, direction):
    scorer = Scorer(bilm, direction)
    [found] = scorer.conditional_score([["the", "bow"]], [["and", "arrow"]], total, surprisal=True)
    whole = ["the", "bow", "and", "arrow"] if direction == "forward" else ["and", "arrow", "the", "bow"]
    [tokens] = scorer.token_score([whole], surprisal=True)
    own = tokens[2:] if direction == "forward" else tokens[:2]
    assert found == pytest.approx(sum(score for _, score in own))


def test_the_score_of_a_word_is_the_sum_of_its_tokens(bilm):
    scorer = Scorer(bilm)
    [words] = scorer.word_score("rose and bow.", surprisal=True)
    [tokens] = scorer.token_score("rose and bow.", surprisal=True)
    assert [word for word, _ in words] == ["rose", "and", "bow."]
    values = [score for _, score in tokens]
    assert [score for _, score in words] == pytest.approx([*values[:2], values[2] + values[3]])
    assert scorer.word_score([["rose", "and", "bow."]], surprisal=True) == [words]


def test_words_may_hold_spaces_and_be_empty():
    assert tokens_of_words(["New York", "", "end."], "en") == (["New", "York", "end", "."], [0, 0, 2, 2])


def test_strings_and_lists_of_tokens_give_the_same(bilm):
    scorer = Scorer(bilm)
    assert scorer.token_score("the bow") == scorer.token_score([["the", "bow"]])


def test_wrong_calls_are_named(bilm):
    with pytest.raises(ConfigError, match=mentions("prob", "surprisal")):
        Scorer(bilm).token_score("a", prob=True, surprisal=True)
    with pytest.raises(ConfigError, match=mentions("rank", "both")):
        Scorer(bilm, "both").token_score("a", rank=True)
    with pytest.raises(ConfigError, match=mentions("conditional_score", "both")):
        Scorer(bilm, "both").conditional_score("a", "b")
    with pytest.raises(ConfigError, match=mentions("next_word_distribution", "both")):
        Scorer(bilm, "both").next_word_distribution("a")
    with pytest.raises(ConfigError, match=mentions("direction", "left")):
        Scorer(bilm, "left")
    with pytest.raises(ConfigError, match=mentions("direction", "forward", "backward")):
        Scorer(tiny_lm("forward"), "backward")
    with pytest.raises(InputError, match=mentions(2, 1)):
        Scorer(bilm).conditional_score(["a", "b"], ["c"])
    with pytest.raises(InputError, match=mentions("Text 1")):
        Scorer(bilm).token_score(["a", " "])
