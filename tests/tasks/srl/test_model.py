"""The labeller of semantic roles."""

import dataclasses
import json

import pytest
import torch
from facts import mentions
from fitting import fit, predict

from torchelmo.errors import ConfigError, InputError
from torchelmo.tasks.config import ElmoConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.srl import Srl
from torchelmo.tasks.srl.data import Proposition, SrlData, read
from torchelmo.tasks.srl.model import SrlConfig
from torchelmo.tasks.task import Source
from torchelmo.tasks.words import WordEmbedding

SMALL = SrlConfig(n_layers=2, hidden_dim=24, predicate_dim=6, dropout=0.0)
SUBJECTS = [["Ann"], ["The", "dog"], ["The", "old", "man"], ["Bob"], ["A", "cat"]]
OBJECTS = [["her"], ["the", "red", "ball"]]


def sentence(subject, object_):
    """Two propositions: <subject> saw <object> run .  The object is what was seen, and runs."""
    n, m = len(subject), len(object_)
    tokens = (*subject, "saw", *object_, "run", ".")
    saw, run = n, n + 1 + m
    subject_tags = ["B-A0", *["I-A0"] * (n - 1)]
    seen = [*subject_tags, "B-V", "B-A1", *["I-A1"] * m, "O"]
    ran = [*["O"] * (n + 1), "B-A0", *["I-A0"] * (m - 1), "B-V", "O"]
    return [Proposition(tokens, saw, seen, (saw, run)), Proposition(tokens, run, ran, (saw, run))]


EXAMPLES = [one for subject in SUBJECTS for object_ in OBJECTS for one in sentence(subject, object_)]  # 20 of them
WORDS = sorted({token for example in EXAMPLES for token in example.tokens})


def word_input(elmo=None):
    return TokenInput(words=WordEmbedding(WORDS, dim=8), elmo=elmo)


def build(config=SMALL, inputs=None):
    return Srl().build(config, inputs or word_input(), Srl().vocabularies(EXAMPLES, SrlData()))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_twenty_propositions_are_learned(dropout):
    model = build(dataclasses.replace(SMALL, dropout=dropout))
    losses = fit(model, EXAMPLES, steps=40)
    assert losses[-1] < 0.1 * losses[0]
    assert Srl().score(EXAMPLES, predict(model, EXAMPLES))["f1"] >= 99


def test_the_published_size_is_the_default():
    assert SrlConfig() == SrlConfig(n_layers=8, hidden_dim=300, predicate_dim=100, dropout=0.1)
    model = build(SrlConfig(hidden_dim=8))
    assert len(model.encoder.layers) == 8
    assert model.encoder.layers[0].input_weight.shape == (8 + 100, 6 * 8)


def test_padding_and_batch_mates_do_not_change_predictions_nor_the_loss():
    model = build()
    fit(model, EXAMPLES, steps=10)
    alone = [predict(model, [example])[0] for example in EXAMPLES]
    assert len({len(example.tokens) for example in EXAMPLES}) > 1
    assert predict(model, EXAMPLES) == alone
    assert predict(model, EXAMPLES[::-1]) == alone[::-1]
    with torch.no_grad():
        losses = torch.stack([model.loss([example]) for example in EXAMPLES])
        n_tokens = torch.tensor([float(len(example.tokens)) for example in EXAMPLES])
        torch.testing.assert_close(model.loss(EXAMPLES), (losses * n_tokens).sum() / n_tokens.sum())


def test_the_predicate_decides():
    """The two propositions of a sentence differ by nothing else."""
    model = build()
    fit(model, EXAMPLES, steps=40)
    saw, run = EXAMPLES[:2]
    assert saw.tokens == run.tokens
    assert predict(model, [saw, run]) == [saw.tags, run.tags]


def test_predictions_are_well_formed_whatever_the_weights():
    model = build()
    with torch.no_grad():
        model.scores.weight.normal_(0, 30)
        model.scores.bias.copy_(torch.tensor([100.0 * label.startswith("I-") for label in model.labels]))
    raw = model._scores(EXAMPLES)[0].argmax(-1)
    assert not any(well_formed([model.labels[i] for i in row]) for row in raw.tolist())
    assert all(well_formed(tags) for tags in predict(model, EXAMPLES))


def well_formed(tags):
    return all(tag[0] != "I" or before[1:] == tag[1:] for before, tag in zip(["O", *tags], tags))


def test_a_sentence_goes_through_the_input_once_for_all_its_predicates():
    model = build()
    seen = []
    model.inputs.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    predict(model, EXAMPLES[:4])
    assert seen == [[EXAMPLES[0].tokens, EXAMPLES[2].tokens]]


@pytest.mark.parametrize("place", ["input", "output", "both"])
def test_elmo_enters_at_the_input_and_after_the_last_layer(tiny_bilm, place):
    elmo = ElmoLayers(tiny_bilm, ElmoConfig(place=place, dropout=0.0))
    model = build(inputs=word_input(elmo))
    at_input, at_output = elmo.dim * (place != "output"), elmo.dim * (place != "input")
    assert model.encoder.layers[0].input_weight.shape[0] == 8 + at_input + 6
    assert model.scores.in_features == 24 + at_output
    fit(model, EXAMPLES[:8], steps=30)
    assert all(mix.gamma.grad is not None and mix.gamma.grad.abs() > 0 for mix in elmo.mixes)
    assert predict(model, EXAMPLES[:8]) == [example.tags for example in EXAMPLES[:8]]


def test_a_tag_that_training_had_not_is_left_out_of_the_loss():
    model = build()
    strange = EXAMPLES[0]._replace(tags=["B-A7", *EXAMPLES[0].tags[1:]])
    assert torch.isfinite(model.loss([strange]))
    with pytest.raises(InputError, match=mentions(5, "'Ann saw her run .'")):
        model.loss([EXAMPLES[0]._replace(tags=None)])


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"n_layers": 0}, ("n_layers", 0)),
        ({"hidden_dim": 0}, ("hidden_dim", 0)),
        ({"predicate_dim": 0}, ("predicate_dim", 0)),
        ({"dropout": 1.0}, ("dropout", 1.0)),
    ],
)
def test_settings_are_checked(setting, words):
    with pytest.raises(ConfigError, match=mentions(*words)):
        SrlConfig(**setting)


def test_predicates_are_words_that_are_one_at_least_half_the_time():
    def example(tokens, *predicates):
        tokens = tuple(tokens.split())
        return [Proposition(tokens, p, ["O"] * len(tokens), predicates) for p in predicates]

    # Run: 2 of 3. Set: 2 of 4. saw: 1 of 3. A sentence counts once, however many examples it gives.
    examples = [
        *example("Run a set set", 0, 2),
        *example("run set a saw set", 0, 4),
        *example("saw run saw", 0),
    ]
    assert Srl().vocabularies(examples, SrlData())["predicates"] == ["run", "set"]


def test_text_gives_an_example_for_each_predicate_that_is_found(tmp_path):
    (tmp_path / "in.txt").write_text("Ann Saw her run .\nNothing here\n", encoding="utf-8")
    vocabularies = Srl().vocabularies(EXAMPLES, SrlData())
    found = list(Srl().read_input(Source(str(tmp_path / "in.txt"), lang=None), SrlData(), vocabularies))
    assert [(example.tokens, example.predicate, example.tags) for example in found] == [
        (("Ann", "Saw", "her", "run", "."), 1, None),
        (("Ann", "Saw", "her", "run", "."), 3, None),
        (("Nothing", "here"), None, None),
    ]
    tags = predict(build(), found)
    assert tags[2] == ["O", "O"]
    assert "Nothing here" in Srl().show(found[2], tags[2])
    assert Srl().record(found[2], tags[2])["predicate"] is None


def json_lines(tmp_path, *lines):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return list(Srl().read_input(Source(str(path)), SrlData(), Srl().vocabularies(EXAMPLES, SrlData())))


def test_json_lines_may_name_the_predicates(tmp_path):
    tokens = ["They", "saw", "it"]
    found = json_lines(
        tmp_path,
        {"tokens": tokens, "predicates": [2, 0]},
        "\n",
        {"tokens": tokens},
        {"tokens": tokens, "predicates": []},
    )
    assert [example.predicate for example in found] == [2, 0, 1, None]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ("line 1", "JSON", "'{'")),
        ("[1]", ("line 1", "JSON", "'[1]'")),
        ('{"tokens": []}', ("line 1", '"tokens"', "[]")),
        ('{"tokens": ["a", 1]}', ("line 1", '"tokens"', '["a", 1]')),
        ('{"tokens": ["a"], "predicates": [1]}', ("line 1", '"predicates"', 0, "[1]")),
        ('{"tokens": ["a"], "predicates": [true]}', ("line 1", '"predicates"', 0, "[true]")),
        ('{"tokens": ["a"], "predicates": 0}', ("line 1", '"predicates"', 0)),
    ],
)
def test_json_lines_that_cannot_be_read_are_named(tmp_path, line, words):
    with pytest.raises(InputError, match=mentions(*words)):
        json_lines(tmp_path, line)


def test_a_prediction_is_shown_with_its_roles_in_brackets():
    tokens = tuple("President Bush on Tuesday nominated two people .".split())
    tags = ["B-ARG0", "I-ARG0", "B-ARGM-TMP", "I-ARGM-TMP", "B-V", "B-ARG1", "I-ARG1", "O"]
    example = Proposition(tokens, 4, None, (4,))
    shown = "nominated: [ARG0 President Bush] [ARGM-TMP on Tuesday] [V nominated] [ARG1 two people] ."
    assert Srl().show(example, tags) == shown
    record = Srl().record(example, tags)
    assert json.loads(json.dumps(record)) == record
    assert record["predicate"] == 4
    assert record["spans"][1] == {"label": "ARGM-TMP", "start": 2, "end": 4, "text": "on Tuesday"}


def test_predicates_can_be_named(tmp_path):
    (tmp_path / "in.txt").write_text("Ann saw her Jump .\n", encoding="utf-8")
    source = Source(str(tmp_path / "in.txt"), lang=None, predicates=["jump", "leap"])
    (found,) = Srl().read_input(source, SrlData(), Srl().vocabularies(EXAMPLES, SrlData()))
    assert (found.predicate, found.predicates) == (3, (3,))


def test_predictions_in_columns_are_read_back(tmp_path):
    nothing = Proposition(("No", "verb"), None, None, ())
    predicted = [*((example._replace(tags=None), example.tags) for example in EXAMPLES), (nothing, ["O", "O"])]
    blocks = list(Srl().conll(predicted, SrlData()))
    assert blocks[-1] == "No\t-\nverb\t-\n"
    (tmp_path / "out.conll").write_text("\n".join(blocks), encoding="utf-8")
    assert read(tmp_path / "out.conll", SrlData(format="conll2005")) == EXAMPLES
