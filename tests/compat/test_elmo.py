"""`Elmo`, `batch_to_ids` and `ElmoTokenEmbedder` against the core."""

import copy
import inspect
import io
import logging

import pytest
import torch
from facts import mentions
from torch import nn

import torchelmo
from torchelmo.compat.allennlp import Elmo, ElmoBiLm, ElmoTokenEmbedder, ScalarMix, _ElmoBiLm, batch_to_ids
from torchelmo.errors import ConfigError, InputError, MissingFileError

BATCH = [["I", "took", "a", "bow"], ["naïve", "日本"], ["arrow"]]


def core_vectors(bilm, sentences, **options):
    elmo = torchelmo.Elmo(bilm, dropout=0.0, **options)
    with torch.no_grad():
        return elmo(elmo.encode(sentences))


def test_the_signatures_are_those_of_allennlp():
    def defaults(function):
        parameters = inspect.signature(function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD}

    required = inspect.Parameter.empty
    assert list(defaults(Elmo).items()) == [
        ("options_file", required),
        ("weight_file", required),
        ("num_output_representations", required),
        ("requires_grad", False),
        ("do_layer_norm", False),
        ("dropout", 0.5),
        ("vocab_to_cache", None),
        ("keep_sentence_boundaries", False),
        ("scalar_mix_parameters", None),
        ("module", None),
    ]
    assert list(defaults(ElmoTokenEmbedder).items()) == [
        ("options_file", None),
        ("weight_file", None),
        ("do_layer_norm", False),
        ("dropout", 0.5),
        ("requires_grad", False),
        ("projection_dim", None),
        ("vocab_to_cache", None),
        ("scalar_mix_parameters", None),
    ]
    assert list(inspect.signature(Elmo.forward).parameters) == ["self", "inputs", "word_inputs"]
    assert list(inspect.signature(ElmoTokenEmbedder.forward).parameters) == ["self", "elmo_tokens", "word_inputs"]
    assert _ElmoBiLm is ElmoBiLm


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("shape", [{}, {"residual": False}, {"n_layers": 1}, {"activation": "tanh", "n_highway": 0}])
def test_vectors_are_those_of_the_core(write_files, shape, layer_norm):
    files = write_files(**shape)
    elmo = Elmo(*files, 2, do_layer_norm=layer_norm, dropout=0.0)
    output = elmo(batch_to_ids(BATCH))
    bilm = torchelmo.load_official(*files)
    mix = torchelmo.ScalarMix(bilm.config.n_layers + 1, layer_norm=layer_norm, norm_over="batch")
    expected = core_vectors(bilm, BATCH, mixes=[mix])
    assert len(output["elmo_representations"]) == 2
    for representation in output["elmo_representations"]:
        torch.testing.assert_close(representation.detach(), expected.mixes[0], rtol=0, atol=2e-6)
    assert torch.equal(output["mask"], expected.mask)
    assert elmo.get_output_dim() == output["elmo_representations"][0].shape[-1] == 12


def test_a_model_without_character_projection(write_files):
    files = write_files(char_projection=False, filters=((1, 2), (3, 4)))
    output = Elmo(*files, 1, dropout=0.0)(batch_to_ids(BATCH))
    expected = core_vectors(torchelmo.load_official(*files), BATCH)
    torch.testing.assert_close(output["elmo_representations"][0].detach(), expected.mixes[0], rtol=0, atol=2e-6)


def test_dropout_is_on_in_training_and_off_in_evaluation(files):
    elmo, ids = Elmo(*files, 1, stateful=False), batch_to_ids(BATCH)
    kept = elmo(ids)["elmo_representations"][0]
    assert 0.2 < float((kept[0] == 0).float().mean()) < 0.8
    elmo.eval()
    torch.testing.assert_close(
        elmo(ids)["elmo_representations"][0], elmo(ids)["elmo_representations"][0], rtol=0, atol=2e-6
    )
    assert not bool((elmo(ids)["elmo_representations"][0][0] == 0).any())


def test_sentence_boundaries_are_kept_on_demand(files, bilm):
    output = Elmo(*files, 1, dropout=0.0, keep_sentence_boundaries=True)(batch_to_ids(BATCH))
    expected = core_vectors(bilm, BATCH, keep_boundaries=True)
    torch.testing.assert_close(output["elmo_representations"][0].detach(), expected.mixes[0], rtol=0, atol=2e-6)
    assert output["mask"].sum(dim=1).tolist() == [6, 4, 3]


def test_an_empty_sentence_has_no_tokens_but_its_marks(files):
    ids = batch_to_ids([["a", "bow"], []])
    output = Elmo(*files, 1, dropout=0.0, keep_sentence_boundaries=True)(ids)
    assert output["mask"].sum(dim=1).tolist() == [4, 2]
    output = Elmo(*files, 1, dropout=0.0)(ids)
    assert output["mask"].sum(dim=1).tolist() == [2, 0]
    assert not output["elmo_representations"][0][1].any()


@pytest.mark.parametrize("keep", [False, True])
def test_extra_dimensions_come_back(files, keep):
    ids = batch_to_ids(BATCH + BATCH[::-1])
    flat = Elmo(*files, 1, dropout=0.0, keep_sentence_boundaries=keep)(ids)
    deep = Elmo(*files, 1, dropout=0.0, keep_sentence_boundaries=keep)(ids.view(3, 2, 1, 4, 50))
    n_tokens = 6 if keep else 4
    assert deep["elmo_representations"][0].shape == (3, 2, 1, n_tokens, 12)
    torch.testing.assert_close(
        deep["elmo_representations"][0].flatten(0, 2), flat["elmo_representations"][0], rtol=0, atol=2e-6
    )
    assert torch.equal(deep["mask"].flatten(0, 2), flat["mask"])


def test_fixed_mixes_are_not_trained_and_others_are(files, bilm):
    elmo = Elmo(*files, 2, dropout=0.0, scalar_mix_parameters=[-9e10, 1.0, -9e10])
    assert not any(parameter.requires_grad for parameter in elmo.parameters())
    out = bilm(batch_to_ids(BATCH))
    first = out.layers[1, 0, 1:5].detach()
    torch.testing.assert_close(elmo(batch_to_ids(BATCH))["elmo_representations"][1][0], first, rtol=0, atol=2e-6)
    trained = [name for name, parameter in Elmo(*files, 1).named_parameters() if parameter.requires_grad]
    assert trained == ["scalar_mix_0.gamma", *(f"scalar_mix_0.scalar_parameters.{i}" for i in range(3))]


def test_activations_of_the_bilm_itself(files, bilm):
    output = Elmo(*files, 1)._elmo_lstm(batch_to_ids(BATCH))
    out = bilm(batch_to_ids(BATCH))
    torch.testing.assert_close(torch.stack(output["activations"]), out.layers.detach(), rtol=0, atol=2e-6)
    assert torch.equal(output["mask"], out.mask)


def test_token_vectors_and_lstm_by_themselves(files, bilm):
    inner = Elmo(*files, 1)._elmo_lstm
    encoded = inner._token_embedder(batch_to_ids(BATCH))
    layers = inner._elmo_lstm(encoded["token_embedding"], encoded["mask"])
    out = bilm(batch_to_ids(BATCH))
    assert inner._token_embedder.get_output_dim() == 6
    torch.testing.assert_close(encoded["token_embedding"], out.layers[0, ..., :6].detach(), rtol=0, atol=2e-6)
    torch.testing.assert_close(layers, out.layers[1:].detach(), rtol=0, atol=2e-6)


class Constant(nn.Module):
    """A biLM of another kind: every vector of layer j is j + 1."""

    num_layers = 2

    def get_output_dim(self):
        return 4

    def forward(self, inputs, word_inputs=None):
        mask = torch.ones(len(inputs), inputs.shape[1] + 2, dtype=torch.bool)
        return {"activations": [torch.full((*mask.shape, 4), j + 1.0) for j in range(2)], "mask": mask}


def test_a_module_of_ones_own():
    elmo = Elmo(None, None, 1, dropout=0.0, module=Constant())
    output = elmo(torch.ones(2, 3, 50, dtype=torch.int64))
    torch.testing.assert_close(output["elmo_representations"][0], torch.full((2, 3, 4), 1.5), rtol=0, atol=2e-6)
    assert elmo.get_output_dim() == 4
    elmo.reset_states()  # it has none


def test_files_beside_a_module_are_refused(files):
    with pytest.raises(ConfigError, match=mentions("module", "options_file", "weight_file", *files)):
        Elmo(*files, 1, module=Constant())


@pytest.mark.parametrize("name", ["options_file", "weight_file"])
def test_an_address_must_be_downloaded_first(files, name):
    given = dict(zip(("options_file", "weight_file"), files)) | {name: "https://example.org/elmo.hdf5"}
    with pytest.raises(MissingFileError, match=mentions(name, "https://example.org/elmo.hdf5")):
        Elmo(**given, num_output_representations=1)


def test_one_file_alone_is_refused(files):
    with pytest.raises(ConfigError, match=mentions("weight_file", None)):
        Elmo(files[0], None, 1)


def test_without_files_it_is_the_model_of_the_package(bilm, tmp_path, monkeypatch):
    bilm.save(tmp_path / "english-small")
    monkeypatch.setattr("torchelmo.formats.load.PRETRAINED", tmp_path)
    vectors = ElmoTokenEmbedder(dropout=0.0)(batch_to_ids(BATCH))
    torch.testing.assert_close(vectors.detach(), core_vectors(bilm, BATCH).mixes[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "facts"), [({"words": 8}, ["input", "'words'"]), ({"bidirectional": False}, ["direction", "'forward'"])]
)
def test_models_that_allennlp_could_not_read_are_named(write_files, shape, facts):
    with pytest.raises(ConfigError, match=mentions(*facts, "torchelmo.Elmo")):
        Elmo(*write_files(**shape), 1)


def test_wrong_number_of_mix_parameters(files):
    with pytest.raises(ConfigError, match=mentions("initial_scalar_parameters", 3, 2)):
        Elmo(*files, 1, scalar_mix_parameters=[0.0, 1.0])


def test_scalar_mix_by_itself():
    mix = ScalarMix(2, initial_scalar_parameters=[0.0, 0.0])
    mixed = mix([torch.zeros(1, 2, 3), torch.ones(1, 2, 3)])
    torch.testing.assert_close(mixed, torch.full((1, 2, 3), 0.5), rtol=0, atol=2e-6)
    with pytest.raises(InputError, match=mentions("ScalarMix", 2, 1)):
        mix([torch.zeros(1, 2, 3)])


def test_a_token_embedder_gives_one_tensor(files, bilm):
    embedder = ElmoTokenEmbedder(*files, dropout=0.0)
    torch.testing.assert_close(
        embedder(batch_to_ids(BATCH)).detach(), core_vectors(bilm, BATCH).mixes[0], rtol=0, atol=2e-6
    )
    assert embedder.get_output_dim() == 12


def test_a_token_embedder_projects(files):
    plain, projecting = ElmoTokenEmbedder(*files, dropout=0.0), ElmoTokenEmbedder(*files, dropout=0.0, projection_dim=5)
    ids = batch_to_ids(BATCH + BATCH).view(2, 3, 4, 50)
    assert projecting.get_output_dim() == 5
    assert torch.allclose(projecting(ids), projecting._projection(plain(ids)))
    assert projecting(ids).shape == (2, 3, 4, 5)


def test_ids_of_an_empty_batch_and_sentence():
    assert batch_to_ids([[]]).shape == (1, 0, 50)
    assert batch_to_ids([]).shape == (0, 0, 50)
    assert not batch_to_ids([["a"], []])[1].any()


def test_ids_of_a_string_are_those_of_its_characters_and_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert torch.equal(batch_to_ids(["ab", "c"]), batch_to_ids([["a", "b"], ["c"]]))
    assert "batch_to_ids" in caplog.text


def test_ids_of_something_else_are_refused():
    with pytest.raises(InputError, match=mentions(1, "token 0", 7)):
        batch_to_ids([["a"], [7]])


def test_a_copy_and_a_saved_model_are_whole(files):
    elmo = Elmo(*files, 1, dropout=0.0, stateful=False)
    ids = batch_to_ids(BATCH)
    expected = elmo(ids)["elmo_representations"][0]
    stream = io.BytesIO()
    torch.save(elmo, stream)
    stream.seek(0)
    for other in (copy.deepcopy(elmo), torch.load(stream, weights_only=False)):
        torch.testing.assert_close(other(ids)["elmo_representations"][0], expected, rtol=0, atol=2e-6)
        with torch.no_grad():
            other.scalar_mix_0.gamma.fill_(2.0)
            other._elmo_lstm._elmo_lstm.forward_layer_0.state_linearity.bias.fill_(0.0)
        assert not torch.allclose(other(ids)["elmo_representations"][0], 2 * expected)
        torch.testing.assert_close(elmo(ids)["elmo_representations"][0], expected, rtol=0, atol=2e-6)
