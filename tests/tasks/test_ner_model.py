"""The tagger of named entities."""

import dataclasses

import pytest
import torch
from facts import mentions
from fitting import fit, predict

from torchelmo.errors import ConfigError, InputError
from torchelmo.tasks.config import ElmoConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenCharCNN, TokenInput
from torchelmo.tasks.ner import Ner, NerConfig, NerData, NerModel
from torchelmo.tasks.tagging import Tagged
from torchelmo.tasks.task import Source
from torchelmo.tasks.words import WordEmbedding
from torchelmo.text.places import Place

NAMES = [["Ada", "Lovelace"], ["Bob"], ["Grace", "Brewster", "Hopper"], ["Kurt"]]
PLACES = [["Paris"], ["New", "York"], ["Rio", "de", "Janeiro"], ["Oslo"], ["Addis", "Ababa"]]
SMALL = NerConfig(hidden_dims=(12, 10), dropout=0.0)


def sentence(name, place):
    tags = ["B-PER", *["I-PER"] * (len(name) - 1), "O", *["B-LOC", *["I-LOC"] * (len(place) - 1)], "O"]
    return Tagged([*name, "left", *place, "."], tags)


EXAMPLES = [sentence(name, place) for name in NAMES for place in PLACES]  # 20 of them
WORDS = sorted({token for example in EXAMPLES for token in example.tokens})


def word_input(elmo=None, characters=None):
    return TokenInput(words=WordEmbedding(WORDS, dim=8), characters=characters, elmo=elmo)


def build(config=SMALL, inputs=None):
    task = Ner()
    return task.build(config, inputs or word_input(), task.vocabularies(EXAMPLES, NerData()))


@pytest.mark.parametrize("scheme", ["bio", "bioes"])
def test_twenty_sentences_are_learned(scheme):
    model = build(dataclasses.replace(SMALL, scheme=scheme))
    losses = fit(model, EXAMPLES, steps=40)
    assert losses[-1] < 0.1 * losses[0]
    assert Ner().score(EXAMPLES, predict(model, EXAMPLES))["f1"] >= 99


def test_it_learns_with_dropout_and_characters_too():
    model = build(dataclasses.replace(SMALL, dropout=0.2), word_input(characters=TokenCharCNN(n_filters=6)))
    fit(model, EXAMPLES, steps=60)
    assert Ner().score(EXAMPLES, predict(model, EXAMPLES))["f1"] >= 99


def test_padding_does_not_change_predictions_nor_the_loss():
    model = build()
    fit(model, EXAMPLES, steps=10)
    alone = [predict(model, [example])[0] for example in EXAMPLES]
    assert len({len(example.tokens) for example in EXAMPLES}) > 1
    assert predict(model, EXAMPLES) == alone
    with torch.no_grad():
        single = torch.stack([model.loss([example]) for example in EXAMPLES])
        torch.testing.assert_close(model.loss(EXAMPLES), single.mean())


@pytest.mark.parametrize("scheme", ["bio", "bioes"])
def test_predictions_are_well_formed_whatever_the_weights(scheme):
    model = build(dataclasses.replace(SMALL, scheme=scheme))
    with torch.no_grad():
        model.scores.weight.mul_(30)
    for tags in predict(model, EXAMPLES):
        assert all(tag[0] != "I" or before[1:] == tag[1:] for before, tag in zip(["O", *tags], tags))


def test_labels_cover_every_prefix_of_a_type_that_was_seen_once():
    model = Ner().build(SMALL, word_input(), Ner().vocabularies([Tagged(["Paris"], ["B-LOC"])], NerData()))
    assert model.labels == ["O", "B-LOC", "I-LOC", "E-LOC", "S-LOC"]


def test_data_without_entities_trains_and_predicts_none():
    examples = [Tagged(["left", "."], ["O", "O"])]
    model = Ner().build(SMALL, word_input(), Ner().vocabularies(examples, NerData()))
    assert model.loss(examples).item() == pytest.approx(0.0, abs=1e-5)
    assert predict(model, examples) == [["O", "O"]]


@pytest.mark.parametrize("place", ["input", "output", "both"])
@pytest.mark.parametrize("where", ["end", "between"])
def test_elmo_joins_at_each_place_and_is_trained(tiny_bilm, place, where):
    config = dataclasses.replace(SMALL, elmo_output=where)
    model = build(config, word_input(ElmoLayers(tiny_bilm, ElmoConfig(place=place, dropout=0.0))))
    n_output = tiny_bilm.config.projection_dim * 2 if place != "input" else 0
    assert model.scores.in_features == 20 + (n_output if where == "end" else 0)
    assert model.second.layers[0].input_size == 24 + (n_output if where == "between" else 0)
    model.loss(EXAMPLES[:3]).backward()
    for mix in model.inputs.elmo.mixes:
        assert mix.scalars.grad.abs().sum() > 0
        assert mix.gamma.grad.abs().sum() > 0


def test_taglm_is_the_top_layer_between_the_two_bilstms(tiny_bilm):
    elmo = ElmoLayers(tiny_bilm, ElmoConfig(place="output", layers="top", dropout=0.0))
    model = build(dataclasses.replace(SMALL, elmo_output="between"), word_input(elmo)).eval()
    seen = []
    model.second.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    predict(model, EXAMPLES[:1])
    top = elmo.elmo.embed([EXAMPLES[0].tokens], layers="top")[0]
    torch.testing.assert_close(seen[0][0, :, 24:], torch.from_numpy(top), atol=1e-5, rtol=1e-4)


def test_an_unknown_type_is_named():
    with pytest.raises(InputError, match=mentions("O, B-LOC", "S-ORG")):
        build().loss([Tagged(["Ada"], ["B-ORG"])])


def test_unlabelled_sentences_have_no_loss():
    with pytest.raises(InputError, match=mentions(1, "'Ada'")):
        build().loss([Tagged(["Ada"])])


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=mentions("hidden_dims", 0)):
        NerConfig(hidden_dims=(200, 0))
    with pytest.raises(ConfigError, match=mentions("dropout", 1.0)):
        NerConfig(dropout=1.0)


def test_the_published_sizes_are_the_defaults():
    model = NerModel(NerConfig(), word_input(), ["LOC"])
    assert (model.first.dim, model.second.dim) == (400, 200)


def test_a_prediction_is_shown_with_brackets():
    example = Tagged("Ada Lovelace left New York and Oslo".split())
    tags = "B-PER I-PER O B-LOC I-LOC O B-LOC".split()
    assert Ner().show(example, tags) == "[PER Ada Lovelace] left [LOC New York] and [LOC Oslo]"


def test_a_prediction_as_json():
    example = Tagged("Ada left New York".split())
    assert Ner().record(example, ["B-PER", "O", "B-LOC", "I-LOC"]) == {
        "tokens": ["Ada", "left", "New", "York"],
        "tags": ["B-PER", "O", "B-LOC", "I-LOC"],
        "spans": [
            {"label": "PER", "start": 0, "end": 1, "text": "Ada"},
            {"label": "LOC", "start": 2, "end": 4, "text": "New York"},
        ],
    }


def test_a_prediction_as_json_can_be_put_back_on_the_text(tmp_path):
    (tmp_path / "text.txt").write_text("\n  Ada left  New York.\n", encoding="utf-8")
    (example,) = Ner().read_input(Source(str(tmp_path / "text.txt")), NerData(), {})
    record = Ner().record(example, ["B-PER", "O", "B-LOC", "I-LOC", "O"])
    assert record["line"] == 2
    assert record["offsets"] == [[2, 5], [6, 10], [12, 15], [16, 20], [20, 21]]
    assert record["spans"][1] == {
        **{"label": "LOC", "start": 2, "end": 4},
        **{"start_char": 12, "end_char": 20, "text": "New York"},
    }


def test_text_is_read_for_prediction(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Ada left Paris. Bob stayed.\n\nOslo!\n", encoding="utf-8")
    raw = list(Ner().read_input(Source(str(path)), NerData(), {}))
    assert raw == [
        Tagged(["Ada", "left", "Paris", "."], None, Place(1, [(0, 3), (4, 8), (9, 14), (14, 15)])),
        Tagged(["Bob", "stayed", "."], None, Place(1, [(16, 19), (20, 26), (26, 27)])),
        Tagged(["Oslo", "!"], None, Place(3, [(0, 4), (4, 5)])),
    ]
    split = list(Ner().read_input(Source(str(path), lang=None), NerData(), {}))
    assert [example.tokens for example in split] == ["Ada left Paris. Bob stayed.".split(), ["Oslo!"]]
    assert [example.place.line for example in split] == [1, 3]
    assert [len(tags) for tags in predict(build(), raw)] == [4, 3, 2]
