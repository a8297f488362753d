"""Perplexity, surprisal and substitutes against the softmax written out in NumPy, in float64."""

import math

import numpy as np
import pytest
import torch
from facts import mentions
from oracle import Oracle

from torchelmo import BiLM, BiLMConfig
from torchelmo.bilm.fast.products import PackedProduct, has_packed
from torchelmo.bilm.model import Softmax
from torchelmo.errors import ConfigError, InputError
from torchelmo.lm import perplexity, substitutes, surprisal
from torchelmo.lm.predict import WordLogP
from torchelmo.text.vocabulary import Vocabulary

WORDS = ["<S>", "</S>", "<UNK>", "the", "bow", "and", "arrow", "rose"]
TEXT = [["the", "bow", "and", "the", "quiver"], [], ["arrow"], ["rose", "and", "bow", "Ærø"]]
SHAPE = {"filters": ((1, 3), (2, 4)), "char_dim": 4, "n_highway": 1, "projection_dim": 6, "cell_dim": 10}


def model(direction="both", **changes):
    torch.manual_seed(5)
    config = BiLMConfig(**SHAPE | {"softmax_words": len(WORDS), "direction": direction} | changes)
    bilm = BiLM(config, Vocabulary(WORDS))
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.7)
    return bilm


@pytest.fixture(scope="module")
def bilm():
    return model()


@pytest.mark.parametrize(
    ("call", "given", "facts"),
    [
        (perplexity, ["I took a bow"], ["Sentence 0", "'I took a bow'", "tokens"]),
        (lambda bilm, text: list(surprisal(bilm, text)), ["I took a bow"], ["Sentence 0", "tokens"]),
        (substitutes, [["I", "took"]], ["one sentence", "1 list"]),
    ],
)
def test_text_of_the_wrong_kind_is_refused_without_advice_for_embed(bilm, call, given, facts):
    with pytest.raises(InputError, match=mentions(*facts)) as error:
        call(bilm, given)
    assert "embed" not in str(error.value)


def log_softmax(bilm, vectors):
    """(n, n_words) in float64."""
    weight, bias = (x.detach().numpy().astype(np.float64) for x in (bilm.softmax.weight, bilm.softmax.bias))
    logits = vectors @ weight.T + bias
    return (
        logits
        - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        - logits.max(1, keepdims=True)
    )


def expected(oracle, bilm, text):
    """For every sentence with tokens: log p (n + 1, n_words) forward and backward, from the oracle's layers."""
    for sentence in filter(None, text):
        top = oracle.layers(sentence)[0][-1]
        dim = bilm.config.projection_dim
        yield sentence, log_softmax(bilm, top[:-1, :dim]), log_softmax(bilm, top[1:, dim:])


def targets(sentence):
    ids = [WORDS.index(token) if token in WORDS else 2 for token in sentence]
    return [*ids, 1], [0, *ids]


@pytest.fixture(scope="module")
def oracle(bilm, tmp_path_factory):
    """The oracle with the same weights, by way of the official files."""
    import json

    from official_files import read_hdf5

    import torchelmo

    folder = tmp_path_factory.mktemp("official")
    torchelmo.save_official(bilm, folder / "options.json", folder / "weights.hdf5")
    options = json.loads((folder / "options.json").read_text(encoding="utf-8"))
    return Oracle(options, read_hdf5(folder / "weights.hdf5"))


def test_perplexity_is_that_of_the_equations(bilm, oracle):
    total = np.zeros(2)
    for sentence, *log_p in expected(oracle, bilm, TEXT):
        for d, (rows, wanted) in enumerate(zip(log_p, targets(sentence))):
            total[d] -= rows[np.arange(len(wanted)), wanted].sum()
    forward, backward = np.exp(total / (10 + 3))  # ten tokens, three sentences, one mark each
    found = perplexity(bilm, TEXT)
    assert found.forward == pytest.approx(forward, rel=1e-5)
    assert found.backward == pytest.approx(backward, rel=1e-5)
    assert found.average == pytest.approx((forward + backward) / 2, rel=1e-5)
    assert (found.n_tokens, found.n_sentences, found.oov_rate) == (10, 3, pytest.approx(0.2))


def test_surprisal_is_that_of_the_equations(bilm, oracle):
    for found, (sentence, forward, backward) in zip(surprisal(bilm, TEXT), expected(oracle, bilm, TEXT), strict=True):
        assert found.tokens == sentence
        ids = targets(sentence)[0][:-1]
        assert found.forward == pytest.approx(-forward[range(len(ids)), ids] / math.log(2), rel=1e-4)
        assert found.backward == pytest.approx(-backward[range(1, len(ids) + 1), ids] / math.log(2), rel=1e-4)
        assert found.in_vocabulary.tolist() == [token in WORDS for token in sentence]


def test_substitutes_are_the_product_of_both_directions_without_the_frequency(bilm, oracle):
    (sentence, forward, backward), *_ = expected(oracle, bilm, TEXT)
    frequency = log_softmax(bilm, np.zeros((1, bilm.config.projection_dim)))[0]
    for position, found in enumerate(substitutes(bilm, sentence, top=99)):
        joint = np.exp(forward[position] + backward[position + 1] - frequency)
        joint[[0, 1, 2, targets(sentence)[0][position]]] = 0  # the marks, and the word itself
        joint /= joint.sum()
        order = np.argsort(-joint)[: np.count_nonzero(joint)]
        assert [substitute.word for substitute in found] == [WORDS[i] for i in order]
        assert [substitute.probability for substitute in found] == pytest.approx(joint[order], rel=1e-4)


def test_substitutes_do_not_see_the_word_itself_and_do_not_contain_it(bilm):
    (one,) = substitutes(bilm, ["the", "bow", "and", "arrow"], [1])
    (other,) = substitutes(bilm, ["the", "quiver", "and", "arrow"], [1])  # a word outside the vocabulary
    rest = [s for s in other if s.word != "bow"]
    assert len(rest) == len(other) - 1
    assert [s.word for s in one] == [s.word for s in rest]
    odds = [s.probability / sum(s.probability for s in rest) for s in rest]
    assert [s.probability for s in one] == pytest.approx(odds, rel=1e-6)


@pytest.mark.parametrize("top", [0, -1])
def test_no_substitutes_are_not_to_be_had(top, bilm):
    with pytest.raises(ConfigError, match=mentions("top", top)):
        substitutes(bilm, ["the", "bow"], top=top)


def test_a_position_outside_the_sentence_is_refused(bilm):
    with pytest.raises(InputError, match=mentions("substitutes", 0, 1, 2)):
        substitutes(bilm, ["the", "bow"], [2])
    assert substitutes(bilm, []) == []


def test_a_list_of_sentences_is_refused(bilm):
    with pytest.raises(InputError, match=mentions("substitutes", "one sentence", 1)):
        substitutes(bilm, [["the", "bow"]])


def test_a_model_that_expects_nothing_has_the_perplexity_of_its_vocabulary():
    bilm = model()
    with torch.no_grad():
        bilm.softmax.weight.zero_()
        bilm.softmax.bias.zero_()
    assert perplexity(bilm, TEXT).average == pytest.approx(len(WORDS), rel=1e-6)


@pytest.mark.parametrize("state", ["reset", "carry"])
def test_batches_do_not_change_perplexity(bilm, state):
    whole = perplexity(bilm, TEXT, state=state)
    alone = perplexity(bilm, TEXT, state=state, batch_tokens=1)
    assert whole[:3] == pytest.approx(alone[:3], rel=1e-5)


def test_a_small_budget_of_logits_changes_nothing(bilm, monkeypatch):
    whole = perplexity(bilm, TEXT)
    monkeypatch.setattr("torchelmo.lm.predict.LOGITS", 2 * len(WORDS))
    assert perplexity(bilm, TEXT)[:3] == pytest.approx(whole[:3], rel=1e-5)


def test_reset_does_not_depend_on_the_order_and_carry_does(bilm):
    other = TEXT[::-1]
    assert perplexity(bilm, other)[:3] == pytest.approx(perplexity(bilm, TEXT)[:3], rel=1e-5)
    assert perplexity(bilm, other, state="carry").forward != pytest.approx(
        perplexity(bilm, TEXT, state="carry").forward, rel=1e-3
    )


def test_carried_state_equals_one_long_sequence(bilm):
    """The text as the batch stream has it: forward <S> w… <S> w…, backward </S> …w </S> …w."""
    text = [sentence for sentence in TEXT if sentence]
    forward = [token for sentence in text for token in ["<S>", *sentence]]
    backward = [token for sentence in text[::-1] for token in [*sentence, "</S>"]]
    from torchelmo.text.characters import CharacterEncoder

    total = np.zeros(2)
    for d, row in enumerate((forward, backward)):
        ids = torch.from_numpy(CharacterEncoder(50).batch([row]))
        with torch.no_grad():
            top = bilm(ids, boundaries=False, path="reference").layers[-1, 0].double().numpy()
        rows = log_softmax(bilm, top[:, d * 6 : d * 6 + 6])
        order = text if d == 0 else text[::-1]
        wanted = [i for sentence in order for i in targets(sentence)[d]]
        total[d] = -rows[np.arange(len(wanted)), wanted].mean()
    found = perplexity(bilm, TEXT, state="carry", batch_tokens=6)
    assert (found.forward, found.backward) == pytest.approx(tuple(np.exp(total)), rel=1e-5)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("state", ["reset", "carry"])
def test_one_direction(direction, state):
    bilm = model(direction)
    found = perplexity(bilm, TEXT, state=state)
    other = "backward" if direction == "forward" else "forward"
    assert getattr(found, other) is None
    assert found.average == getattr(found, direction)
    bits = next(iter(surprisal(bilm, TEXT)))
    assert getattr(bits, other) is None
    assert len(getattr(bits, direction)) == 5
    (found,) = substitutes(bilm, TEXT[0], [0], top=4)
    assert len(found) == 4
    scores = [getattr(next(iter(surprisal(bilm, [[s.word, *TEXT[0][1:]]]))), direction)[0] for s in found]
    assert scores == sorted(scores)  # ranked by the one direction alone


def test_a_word_model_with_a_tied_softmax():
    bilm = model(input="words", n_words=len(WORDS), tied_softmax=True)
    found = perplexity(bilm, TEXT)
    assert found.average == pytest.approx((found.forward + found.backward) / 2)
    assert perplexity(bilm, TEXT, state="carry").oov_rate == pytest.approx(0.2)


def test_progress_counts_tokens(bilm):
    seen = []
    perplexity(bilm, TEXT, progress=seen.append)
    assert sum(seen) == 10


def test_sentences_are_read_as_they_are_needed(bilm):
    def endless():
        while True:
            yield ["the", "bow"]

    assert next(surprisal(bilm, endless())).tokens == ["the", "bow"]
    assert next(surprisal(bilm, endless(), state="carry")).tokens == ["the", "bow"]


def test_text_without_tokens_has_no_perplexity(bilm):
    with pytest.raises(InputError, match=mentions("perplexity")):
        perplexity(bilm, [[], []])


def test_a_string_is_not_a_sentence(bilm):
    with pytest.raises(InputError, match=mentions(0, "'the bow'")):
        perplexity(bilm, ["the bow"])


def test_an_unknown_state_is_refused(bilm):
    with pytest.raises(ConfigError, match=mentions("state", "'reset'", "'carry'", "'keep'")):
        perplexity(bilm, TEXT, state="keep")


def test_a_model_without_a_softmax_says_what_to_do():
    bilm = BiLM(BiLMConfig(**SHAPE))
    with pytest.raises(InputError, match=mentions("softmax", "torchelmo fine-tune")):
        perplexity(bilm, TEXT)
    with pytest.raises(InputError, match=mentions("softmax", "torchelmo fine-tune")):
        substitutes(bilm, TEXT[0])


def test_a_softmax_without_words_says_what_to_do():
    bilm = BiLM(BiLMConfig(**SHAPE, softmax_words=8))
    with pytest.raises(InputError, match=mentions("vocab.txt")):
        next(surprisal(bilm, TEXT))


@pytest.mark.parametrize("joint", [False, True])
def test_packed_weights_of_the_softmax_give_the_same_log_probabilities(joint):
    torch.manual_seed(0)
    softmax = Softmax(2400, 128, joint=joint)
    with torch.no_grad():
        for parameter in softmax.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.2)
    word_log_p, vectors = WordLogP(softmax), torch.randn(300, 256 if joint else 128)
    for _ in range(3):  # packed from the second time on
        torch.testing.assert_close(word_log_p(vectors), softmax(vectors).detach(), rtol=1e-5, atol=1e-5)
    assert isinstance(word_log_p._product, PackedProduct) == has_packed()
