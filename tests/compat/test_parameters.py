"""Parameters: AllenNLP's names and layout, trained or frozen, and never stale."""

import copy
import itertools

import pytest
import torch
from facts import mentions

from torchelmo.compat.allennlp import Elmo, ElmoTokenEmbedder, batch_to_ids

BATCH = [["I", "took", "a", "bow"], ["naïve"]]
ENCODER = ["_char_embedding_weights", *(f"char_conv_{i}.{part}" for i in range(3) for part in ("weight", "bias"))]
NAMES = [
    *(f"_elmo_lstm._token_embedder.{name}" for name in ENCODER),
    *(f"_elmo_lstm._token_embedder._highways._layers.0.{part}" for part in ("weight", "bias")),
    *(f"_elmo_lstm._token_embedder._projection.{part}" for part in ("weight", "bias")),
    *(
        f"_elmo_lstm._elmo_lstm.{direction}_layer_{j}.{part}"
        for j in range(2)
        for direction in ("forward", "backward")
        for part in (
            "input_linearity.weight",
            "state_linearity.weight",
            "state_linearity.bias",
            "state_projection.weight",
        )
    ),
    "scalar_mix_0.gamma",
    *(f"scalar_mix_0.scalar_parameters.{i}" for i in range(3)),
]


def vectors(elmo):
    return elmo(batch_to_ids(BATCH))["elmo_representations"][0]


def test_names_are_those_of_allennlp(files):
    elmo = Elmo(*files, 1)
    assert [name for name, _ in elmo.named_parameters()] == NAMES
    assert list(elmo.state_dict()) == NAMES


def test_names_below_a_token_embedder(files):
    embedder = ElmoTokenEmbedder(*files, projection_dim=3)
    assert list(embedder.state_dict()) == [
        *(f"_elmo.{name}" for name in NAMES),
        "_projection.weight",
        "_projection.bias",
    ]


def test_layout_is_that_of_allennlp(files, bilm):
    """Gates i, f, c, o with the forget bias inside; highways as [transform; −carry]."""
    elmo = Elmo(*files, 1)
    layer, lstm = elmo._elmo_lstm._elmo_lstm.backward_layer_1, bilm.backward_lstms[1]
    i, j, f, o = lstm.bias.detach().chunk(4)
    assert torch.equal(layer.state_linearity.bias, torch.cat([i, f + 1, j, o]))
    for weight, ours in (
        (layer.input_linearity.weight, lstm.input_weight),
        (layer.state_linearity.weight, lstm.state_weight),
    ):
        i, j, f, o = ours.detach().chunk(4, dim=1)
        assert torch.equal(weight, torch.cat([i, f, j, o], dim=1).T)
    assert torch.equal(layer.state_projection.weight, lstm.projection.T)
    highway = bilm.encoder.highways[0]
    joined = elmo.state_dict()["_elmo_lstm._token_embedder._highways._layers.0.weight"]
    assert torch.equal(joined, torch.cat([highway.transform.weight, -highway.carry.weight]))


def test_the_bilm_is_frozen_unless_asked(files):
    for requires_grad in (False, True):
        elmo = Elmo(*files, 1, requires_grad=requires_grad)
        assert {parameter.requires_grad for parameter in elmo._elmo_lstm.parameters()} == {requires_grad}


def test_fine_tuning_reaches_every_parameter_with_the_gradient_of_the_core(files, bilm):
    elmo = Elmo(*files, 1, dropout=0.0, requires_grad=True)
    vectors(elmo).square().sum().backward()
    for name, parameter in elmo.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
    bilm = copy.deepcopy(bilm).requires_grad_(True)
    out = bilm(batch_to_ids(BATCH))
    mixed = out.layers.mean(dim=0)
    (mixed[0, 1:5].square().sum() + mixed[1, 1:2].square().sum()).backward()
    ours = bilm.forward_lstms[0].input_weight.grad.chunk(4, dim=1)
    theirs = elmo._elmo_lstm._elmo_lstm.forward_layer_0.input_linearity.weight.grad.T.chunk(4, dim=1)
    for gate, place in enumerate((0, 2, 1, 3)):
        torch.testing.assert_close(theirs[place], ours[gate])
    torch.testing.assert_close(
        elmo._elmo_lstm._token_embedder._char_embedding_weights.grad, bilm.encoder.embedding.grad
    )


def test_a_layer_can_be_unfrozen_alone(files):
    elmo = Elmo(*files, 1, dropout=0.0)
    vectors(elmo)
    elmo._elmo_lstm._elmo_lstm.forward_layer_1.requires_grad_(True)
    vectors(elmo).sum().backward()
    trained = {name for name, parameter in elmo.named_parameters() if parameter.grad is not None}
    assert trained == {name for name in NAMES if "forward_layer_1" in name or "scalar_mix" in name}


def test_every_step_of_training_is_seen_by_evaluation(files):
    elmo = Elmo(*files, 1, dropout=0.0, requires_grad=True, stateful=False)
    losses = []
    for _ in range(4):
        elmo.zero_grad()
        loss = vectors(elmo).square().sum()
        loss.backward()
        with torch.no_grad():  # this runs on converted weights, which must be those of this step
            losses.append(float(vectors(elmo).square().sum()))
            torch.testing.assert_close(losses[-1], float(loss), rtol=1e-5, atol=0)
            for parameter in elmo.parameters():
                parameter -= 1e-4 * parameter.grad
    assert all(after < before for before, after in itertools.pairwise(losses))


def _load(elmo, other):
    elmo.load_state_dict(other.state_dict())


def _assign(elmo, other):
    elmo.load_state_dict(other.state_dict(), assign=True)


def _copy(elmo, other):
    with torch.no_grad():
        for parameter, new in zip(elmo.parameters(), other.parameters()):
            parameter.copy_(new)


def _data(elmo, other):
    for parameter, new in zip(elmo.parameters(), other.parameters()):
        parameter.data = new.data.clone()


@pytest.mark.parametrize("change", [_load, _assign, _copy, _data])
def test_changed_weights_are_used_from_the_next_call(files, write_files, change):
    elmo = Elmo(*files, 1, dropout=0.0, stateful=False)
    other = Elmo(*write_files(scale=0.7), 1, dropout=0.0, stateful=False)
    before = vectors(elmo)
    change(elmo, other)
    torch.testing.assert_close(vectors(elmo), vectors(other), rtol=0, atol=2e-6)
    assert not torch.allclose(vectors(elmo), before, atol=1e-3)


def test_frozen_weights_are_converted_once(files):
    elmo = Elmo(*files, 1)
    vectors(elmo)
    first = elmo._elmo_lstm._elmo_lstm._frozen
    vectors(elmo)
    assert elmo._elmo_lstm._elmo_lstm._frozen is first


def test_a_checkpoint_of_another_shape_is_refused(files, write_files):
    other = Elmo(*write_files(cell_dim=4), 1).state_dict()
    with pytest.raises(RuntimeError, match=mentions("_elmo_lstm._elmo_lstm.forward_layer_0")):
        Elmo(*files, 1).load_state_dict(other)
    del other["scalar_mix_0.gamma"]
    with pytest.raises(RuntimeError, match=mentions("scalar_mix_0.gamma")):
        Elmo(*files, 1).load_state_dict(other)
