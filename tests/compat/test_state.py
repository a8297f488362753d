"""State between calls: row i goes on from row i, rows that a batch does not have rest."""

import pytest
import torch
from facts import mentions

from torchelmo.bilm.model import BiLMState
from torchelmo.compat.allennlp import Elmo, ElmoTokenEmbedder, batch_to_ids
from torchelmo.errors import InputError

SENTENCES = [["I", "took", "a", "bow"], ["bow", "and", "arrow"], ["naïve"], ["one", "more"]]
SIZES = [2, 4, 1, 3, 0, 4]


def vectors(elmo, sentences):
    return elmo(batch_to_ids(sentences))["elmo_representations"][0].detach()


@pytest.fixture
def elmo(files):
    return Elmo(*files, 1, dropout=0.0)


def test_every_row_goes_on_from_its_own_last_call(elmo, bilm):
    """Batches that grow and shrink, against one run of the core for each row with its state handed on."""
    rows: list[BiLMState | None] = [None] * 4
    for size in SIZES:
        batch = SENTENCES[:size]
        found = vectors(elmo, batch)
        for i, sentence in enumerate(batch):
            with torch.no_grad():
                out = bilm(batch_to_ids([sentence]), rows[i])
            rows[i] = out.state
            expected = out.layers.mean(dim=0)[0, 1:-1]
            torch.testing.assert_close(found[i, : len(sentence)], expected, rtol=0, atol=2e-6)


def test_a_row_without_tokens_still_reads_its_two_marks(elmo):
    vectors(elmo, [["bow"], ["bow"]])
    before = [part.clone() for part in elmo._elmo_lstm._elmo_lstm._states]
    vectors(elmo, [["arrow"], []])
    for old, new in zip(before, elmo._elmo_lstm._elmo_lstm._states):
        assert not torch.equal(old[:, 1], new[:, 1])


@pytest.mark.parametrize("reset", ["elmo", "bilm", "lstm", "attribute"])
def test_reset_starts_from_zero(elmo, reset):
    first = vectors(elmo, SENTENCES)
    assert not torch.allclose(vectors(elmo, SENTENCES), first, atol=1e-4)
    inner = elmo._elmo_lstm._elmo_lstm
    if reset == "attribute":
        inner._states = None
    else:
        {"elmo": elmo, "bilm": elmo._elmo_lstm, "lstm": inner}[reset].reset_states()
    torch.testing.assert_close(vectors(elmo, SENTENCES), first, rtol=0, atol=2e-6)


def test_chosen_rows_are_reset(elmo):
    first = vectors(elmo, SENTENCES)
    elmo._elmo_lstm._elmo_lstm.reset_states(torch.tensor([True, False, True, False]))
    second = vectors(elmo, SENTENCES)
    torch.testing.assert_close(second[[0, 2]], first[[0, 2]], rtol=0, atol=2e-6)
    assert not torch.allclose(second[1], first[1], atol=1e-4)
    with pytest.raises(InputError, match=mentions("reset_states", (4,), (3,))):
        elmo._elmo_lstm._elmo_lstm.reset_states(torch.tensor([True, False, True]))


def test_resetting_chosen_rows_before_the_first_call_is_harmless(elmo):
    elmo._elmo_lstm._elmo_lstm.reset_states(torch.tensor([True]))
    assert elmo._elmo_lstm._elmo_lstm._states is None


@pytest.mark.parametrize("switch", ["keyword", "attribute"])
def test_without_state_every_call_starts_from_zero(files, switch):
    elmo = Elmo(*files, 1, dropout=0.0, stateful=switch != "keyword")
    elmo._elmo_lstm._elmo_lstm.stateful = False
    first = vectors(elmo, SENTENCES)
    vectors(elmo, SENTENCES[:1])
    torch.testing.assert_close(vectors(elmo, SENTENCES), first, rtol=0, atol=2e-6)


def test_the_attribute_is_stateful_as_allennlps_was(elmo, files):
    assert elmo._elmo_lstm._elmo_lstm.stateful
    assert not Elmo(*files, 1, stateful=False)._elmo_lstm._elmo_lstm.stateful


def test_states_have_allennlps_shapes(elmo):
    vectors(elmo, SENTENCES)
    hidden, cell = elmo._elmo_lstm._elmo_lstm._states
    assert (hidden.shape, cell.shape) == ((2, 4, 12), (2, 4, 18))


def test_state_is_cut_from_the_graph_between_calls(files):
    elmo = Elmo(*files, 1, dropout=0.0, requires_grad=True)
    for _ in range(2):  # a second backward through the first graph would raise
        elmo(batch_to_ids(SENTENCES))["elmo_representations"][0].sum().backward()
    assert not any(part.requires_grad for part in elmo._elmo_lstm._elmo_lstm._states)


def test_state_follows_the_model_to_another_dtype(elmo):
    vectors(elmo, SENTENCES)
    elmo.double()
    assert vectors(elmo, SENTENCES[:2]).dtype == torch.float64
    assert elmo._elmo_lstm._elmo_lstm._states[0].shape[1] == 4


def test_state_is_no_part_of_a_checkpoint(elmo):
    before = list(elmo.state_dict())
    vectors(elmo, SENTENCES)
    assert list(elmo.state_dict()) == before


def test_a_token_embedder_is_reset(files):
    embedder = ElmoTokenEmbedder(*files, dropout=0.0)
    ids = batch_to_ids(SENTENCES)
    first = embedder(ids)
    assert not torch.equal(embedder(ids), first)
    embedder.reset_states()
    torch.testing.assert_close(embedder(ids), first, rtol=0, atol=2e-6)
