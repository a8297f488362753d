"""`vocab_to_cache`: words looked up by number, all others by their characters."""

import logging
import re

import pytest
import torch
from facts import mentions

from torchelmo.compat.allennlp import Elmo, ElmoTokenEmbedder, batch_to_ids
from torchelmo.errors import InputError

BATCH = [["I", "took", "a", "bow"], ["bow", "naïve"]]
VOCABULARY = ["@@PADDING@@", "I", "took", "a", "bow"]
WORDS = torch.tensor([[1, 2, 3, 4], [4, 900, 0, 0]])


@pytest.fixture
def expected(files):
    return Elmo(*files, 1, dropout=0.0)(batch_to_ids(BATCH))


@pytest.mark.parametrize("outside", [5, 900, -1])
def test_words_outside_the_cache_are_read_by_their_characters(files, expected, outside):
    elmo = Elmo(*files, 1, dropout=0.0, vocab_to_cache=VOCABULARY)
    output = elmo(batch_to_ids(BATCH), WORDS.masked_fill(WORDS == 900, outside))
    torch.testing.assert_close(output["elmo_representations"], expected["elmo_representations"], rtol=0, atol=2e-6)
    assert torch.equal(output["mask"], expected["mask"])


def test_cached_words_are_looked_up_and_their_characters_not_read(files, expected):
    elmo = Elmo(*files, 1, dropout=0.0, vocab_to_cache=VOCABULARY)
    output = elmo(torch.zeros(1, 4, 50, dtype=torch.int64), WORDS[:1])
    torch.testing.assert_close(
        output["elmo_representations"][0], expected["elmo_representations"][0][:1], rtol=0, atol=2e-6
    )
    assert output["mask"].tolist() == [[True] * 4]


def test_the_vectors_are_a_parameter_under_allennlps_name(files):
    embedder = ElmoTokenEmbedder(*files, vocab_to_cache=VOCABULARY)
    weight = embedder.state_dict()["_elmo._elmo_lstm._word_embedding.weight"]
    assert weight.shape == (5, 6)
    assert not weight[0].any()
    assert weight[1:].any(dim=1).all()
    assert not embedder._elmo._elmo_lstm._word_embedding.weight.requires_grad


def test_more_words_than_are_encoded_at_once(files):
    words = ["@@PADDING@@", *(f"word{i}" for i in range(2000))]
    elmo = Elmo(*files, 1, dropout=0.0, vocab_to_cache=words)
    sentence = [words[i] for i in (1, 1023, 1024, 1025, 2000)]
    ids = torch.tensor([[1, 1023, 1024, 1025, 2000]])
    torch.testing.assert_close(
        elmo(torch.zeros(1, 5, 50, dtype=torch.int64), ids)["elmo_representations"],
        Elmo(*files, 1, dropout=0.0)(batch_to_ids([sentence]))["elmo_representations"],
        rtol=0,
        atol=2e-6,
    )


def test_extra_dimensions_come_back(files):
    flat, deep = (Elmo(*files, 1, dropout=0.0, vocab_to_cache=VOCABULARY) for _ in range(2))
    ids, words = batch_to_ids(BATCH), WORDS
    output = deep(ids.unsqueeze(0), words.unsqueeze(0))
    torch.testing.assert_close(
        output["elmo_representations"][0][0], flat(ids, words)["elmo_representations"][0], rtol=0, atol=2e-6
    )
    assert output["mask"].shape == (1, 2, 4)


def test_fine_tuning_trains_the_cached_vectors_and_warns(files, caplog):
    with caplog.at_level(logging.WARNING):
        elmo = Elmo(*files, 1, dropout=0.0, requires_grad=True, vocab_to_cache=VOCABULARY)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    elmo(batch_to_ids(BATCH), WORDS)["elmo_representations"][0].sum().backward()
    gradient = elmo._elmo_lstm._word_embedding.weight.grad
    assert gradient[1:].any(dim=1).all()
    assert not gradient[0].any()


def test_word_inputs_without_a_cache_are_left_with_a_warning(files, expected, caplog):
    with caplog.at_level(logging.WARNING):
        output = Elmo(*files, 1, dropout=0.0)(batch_to_ids(BATCH), WORDS)
    assert re.search(mentions("word_inputs", "vocab_to_cache"), caplog.text)
    torch.testing.assert_close(
        output["elmo_representations"][0], expected["elmo_representations"][0], rtol=0, atol=2e-6
    )


def test_characters_of_another_shape_are_refused_where_they_are_needed(files):
    elmo = Elmo(*files, 1, vocab_to_cache=VOCABULARY)
    with pytest.raises(InputError, match=mentions("word_inputs", "vocab_to_cache", (2, 4, 50), (2, 3, 50))):
        elmo(batch_to_ids(BATCH)[:, :3], WORDS)


def test_padding_between_words_is_refused(files):
    elmo = Elmo(*files, 1, vocab_to_cache=VOCABULARY)
    with pytest.raises(InputError, match=mentions("word_inputs", "padding", "id 0")):
        elmo(batch_to_ids(BATCH), torch.tensor([[1, 0, 2, 3], [1, 0, 0, 0]]))
