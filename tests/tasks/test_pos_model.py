"""The tagger of parts of speech, and the linear probe."""

import dataclasses
import itertools

import pytest
import torch
from facts import mentions
from fitting import fit, predict

from torchelmo.errors import ConfigError, InputError
from torchelmo.tasks.config import ElmoConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.pos import Pos, PosConfig, PosData
from torchelmo.tasks.tagging import Tagged
from torchelmo.tasks.task import Source
from torchelmo.tasks.words import WordEmbedding

NOUNS = ["dog", "cat", "bird", "fish", "bow"]
# "bow" is a noun after "the" and a verb after "they": only the words around it tell.
EXAMPLES = [
    Tagged(["the", *["old"] * n_old, noun, "sleeps", "."], ["DET", *["ADJ"] * n_old, "NOUN", "VERB", "PUNCT"])
    for noun, n_old in itertools.product(NOUNS, range(3))
] + [Tagged(["they", "bow", *["."] * n], ["PRON", "VERB", *["PUNCT"] * n]) for n in range(5)]
WORDS = sorted({token for example in EXAMPLES for token in example.tokens})
SMALL = PosConfig(hidden_dim=8, n_layers=1, dropout=0.0)
LINEAR = PosConfig(head="linear", dropout=0.9)


def word_input(elmo=None):
    return TokenInput(words=WordEmbedding(WORDS, dim=8), elmo=elmo)


def build(config=SMALL, inputs=None):
    task = Pos()
    return task.build(config, inputs or word_input(), task.vocabularies(EXAMPLES, PosData()))


@pytest.mark.parametrize("config", [SMALL, dataclasses.replace(SMALL, n_layers=2, dropout=0.2)])
def test_twenty_sentences_are_learned(config):
    assert len(EXAMPLES) == 20
    model = build(config)
    losses = fit(model, EXAMPLES, steps=60)
    assert losses[-1] < 0.2 * losses[0]
    assert Pos().score(EXAMPLES, predict(model, EXAMPLES))["accuracy"] >= 99


@pytest.mark.parametrize("config", [SMALL, LINEAR])
def test_padding_does_not_change_predictions_nor_the_loss(config):
    model = build(config)
    fit(model, EXAMPLES, steps=5)
    assert predict(model, EXAMPLES) == [predict(model, [example])[0] for example in EXAMPLES]
    with torch.no_grad():
        sums = [model.loss([example]) * len(example.tokens) for example in EXAMPLES]
        n_tokens = sum(len(example.tokens) for example in EXAMPLES)
        torch.testing.assert_close(model.loss(EXAMPLES), torch.stack(sums).sum() / n_tokens)


def test_the_linear_probe_is_one_matrix_on_one_frozen_layer(tiny_bilm):
    elmo = ElmoLayers(tiny_bilm, ElmoConfig(place="input", layers="1", dropout=0.0))
    model = build(LINEAR, TokenInput(elmo=elmo))
    own = {name: p.shape for name, p in model.named_parameters() if not name.startswith("inputs.")}
    assert own == {"scores.weight": (6, tiny_bilm.config.projection_dim * 2), "scores.bias": (6,)}
    tokens = EXAMPLES[0].tokens
    layer = torch.from_numpy(elmo.elmo.embed([tokens], layers=1)[0])
    with torch.no_grad():
        best = model.scores(layer).argmax(dim=-1).tolist()
    assert predict(model, [Tagged(tokens)]) == [[model.tags[i] for i in best]]


def test_the_linear_probe_has_no_dropout_and_no_context():
    model = build(LINEAR).train()
    assert model.loss(EXAMPLES).item() == model.loss(EXAMPLES).item()
    fit(model, EXAMPLES, steps=60)
    predicted = [tags[example.tokens.index("bow")] for example, tags in pairs_with_bow(model)]
    assert len(set(predicted)) == 1
    accuracy = Pos().score(EXAMPLES, predict(model, EXAMPLES))["accuracy"]
    assert 90 <= accuracy < 99  # every other word has one tag


def pairs_with_bow(model):
    return [(e, tags) for e, tags in zip(EXAMPLES, predict(model, EXAMPLES)) if "bow" in e.tokens]


@pytest.mark.parametrize("place", ["input", "output", "both"])
def test_elmo_joins_at_each_place_and_is_trained(tiny_bilm, place):
    model = build(SMALL, word_input(ElmoLayers(tiny_bilm, ElmoConfig(place=place, dropout=0.0))))
    assert model.scores.in_features == 16 + (0 if place == "input" else tiny_bilm.config.projection_dim * 2)
    model.loss(EXAMPLES[:3]).backward()
    for mix in model.inputs.elmo.mixes:
        assert mix.scalars.grad.abs().sum() > 0


def test_the_linear_probe_refuses_elmo_at_an_output_it_does_not_have(tiny_bilm):
    elmo = ElmoLayers(tiny_bilm, ElmoConfig(place="both"))
    with pytest.raises(ConfigError, match=mentions("head", '"linear"', "elmo.place", '"input"')):
        build(LINEAR, word_input(elmo))


def test_an_unknown_tag_is_named():
    with pytest.raises(InputError, match=mentions("ADJ, DET, ", "INTJ")):
        build().loss([Tagged(["oh"], ["INTJ"])])


def test_settings_are_checked():
    for name in ("hidden_dim", "n_layers"):
        with pytest.raises(ConfigError, match=mentions(name, 0)):
            PosConfig(**{name: 0})
    with pytest.raises(ConfigError, match=mentions("dropout", -0.1)):
        PosConfig(dropout=-0.1)


def test_words_stand_above_their_tags():
    example = Tagged(["the", "dog", "東京", "e\u0301", "."])
    shown = Pos().show(example, ["DET", "NOUN", "PROPN", "X", "PUNCT"])
    assert shown == "the  dog   東京   e\u0301  .\nDET  NOUN  PROPN  X  PUNCT\n"


def test_long_sentences_are_broken_into_lines():
    example = Tagged([f"word{i}" for i in range(40)])
    shown = Pos().show(example, ["VERB"] * 40)
    assert shown.endswith("\n")  # with the line end of the command line, a blank line between sentences
    lines = shown.splitlines()
    assert "" not in lines
    assert len(lines) > 2
    words = [word for line in lines[::2] for word in line.split()]
    assert words == example.tokens
    for above, below in zip(lines[::2], lines[1::2], strict=True):
        assert len(above) <= 100
        starts = [i for i, sign in enumerate(above) if sign == "w"]
        assert starts == [i for i, sign in enumerate(below) if sign == "V"]


def test_a_prediction_as_json():
    example = Tagged(["dogs", "bark"])
    assert Pos().record(example, ["NOUN", "VERB"]) == {"tokens": ["dogs", "bark"], "tags": ["NOUN", "VERB"]}


def test_text_is_read_for_prediction(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the dog sleeps .\nthey bow\n", encoding="utf-8")
    examples = list(Pos().read_input(Source(str(path), lang=None), PosData(), {}))
    assert [example.tokens for example in examples] == [["the", "dog", "sleeps", "."], ["they", "bow"]]
    assert [example.place.line for example in examples] == [1, 2]
