"""The enhanced sequential inference model."""

import pytest
import torch
from facts import mentions
from fitting import fit, predict

from torchelmo.errors import ConfigError
from torchelmo.tasks.config import ElmoConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.nli import LABELS, Esim, EsimConfig, NliExample
from torchelmo.tasks.words import WordEmbedding

WORDS = "a dog cat runs sleeps happy not today".split()
SMALL = EsimConfig(encoder_dim=5, projection_dim=6, composition_dim=4, classifier_dim=7)
EXAMPLES = [
    NliExample(("a", "dog", "runs"), ("a", "dog", "sleeps", "today", "happy"), "contradiction"),
    NliExample(("a", "happy", "cat", "sleeps", "today", "not"), ("a", "cat"), "entailment"),
    NliExample(("cat",), ("today",), "neutral"),
]


def build(elmo: ElmoLayers | None = None, config: EsimConfig = SMALL) -> Esim:
    torch.manual_seed(1)
    return Esim(config, TokenInput(WordEmbedding(WORDS, dim=8), elmo=elmo), labels=LABELS)


def test_the_published_widths():
    model = Esim(EsimConfig(), TokenInput(WordEmbedding(WORDS, dim=300)), labels=LABELS)
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters() if "weight" in name}
    assert shapes["encoder.layers.0.weight_ih_l0"] == [1200, 300]
    assert shapes["projection.layers.0.weight"] == [300, 8 * 300]
    assert shapes["composition.layers.0.weight_ih_l0"] == [1200, 300]
    assert [shapes[f"classifier.layers.{i}.weight"] for i in range(2)] == [[300, 8 * 300], [3, 300]]


def test_scores_are_those_of_the_equations():
    model = build().eval()
    (scores,) = model(EXAMPLES[:1])
    a, b = (
        model.encoder.layers[0](model.inputs([sentence]).vectors[0])[0]
        for sentence in (EXAMPLES[0].premise, EXAMPLES[0].hypothesis)
    )
    pooled = []
    for x, other in ((a, b), (b, a)):
        rows = []
        for i in range(len(x)):
            weights = torch.softmax(torch.stack([x[i] @ other[j] for j in range(len(other))]), dim=0)
            aligned = sum(weights[j] * other[j] for j in range(len(other)))
            rows.append(torch.cat([x[i], aligned, x[i] - aligned, x[i] * aligned]))
        projection = model.projection.layers[0]
        composed = model.composition.layers[0](torch.relu(torch.stack(rows) @ projection.weight.T + projection.bias))[0]
        pooled += [composed.mean(0), composed.amax(0)]
    hidden, last = model.classifier.layers
    expected = torch.tanh(torch.cat(pooled) @ hidden.weight.T + hidden.bias) @ last.weight.T + last.bias
    torch.testing.assert_close(scores, expected)


@pytest.mark.parametrize("place", ["none", "input", "output", "both"])
def test_batch_mates_and_their_padding_change_nothing(place, tiny_bilm):
    elmo = ElmoLayers(tiny_bilm, ElmoConfig(place=place)) if place != "none" else None
    model = build(elmo).eval()
    together = model(EXAMPLES)
    for row, example in enumerate(EXAMPLES):
        torch.testing.assert_close(together[row], model([example])[0])


def test_premise_and_hypothesis_are_not_the_same_to_it():
    model = build().eval()
    exchanged = [NliExample(example.hypothesis, example.premise, example.label) for example in EXAMPLES]
    assert not torch.allclose(model(EXAMPLES), model(exchanged))


def test_elmo_stands_beside_the_encoder_at_the_output(tiny_bilm):
    without, at_output = build(), build(ElmoLayers(tiny_bilm, ElmoConfig(place="output")))
    dim = at_output.inputs.output_dim
    assert dim
    assert at_output.projection.layers[0].in_features == without.projection.layers[0].in_features + 4 * dim
    at_output.loss(EXAMPLES).backward()
    assert at_output.inputs.elmo is not None
    assert at_output.inputs.elmo.mixes[0].scalars.grad.any()


def test_dropout_comes_before_both_layers_of_the_classifier():
    """With all else at rest, a training step's scores vary by the dropout on the pooled vectors alone."""
    model = build().eval()
    model.pooled_dropout.train()
    assert not torch.allclose(model(EXAMPLES), model(EXAMPLES))
    model.pooled_dropout.eval()
    torch.testing.assert_close(model(EXAMPLES), model(EXAMPLES), rtol=0, atol=0)


def test_every_parameter_is_trained():
    model = build()
    model.loss(EXAMPLES).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_learns_twenty_pairs_by_heart():
    generator = torch.Generator().manual_seed(0)
    picks = [torch.randint(len(WORDS), (5 + i % 4,), generator=generator).tolist() for i in range(20)]
    sentences = [tuple(WORDS[j] for j in pick) for pick in picks]
    examples = [NliExample(words[:3], words[3:], LABELS[i % 3]) for i, words in enumerate(sentences)]
    config = EsimConfig(encoder_dim=16, projection_dim=16, composition_dim=16, classifier_dim=16, dropout=0.0)
    model = build(config=config)
    fit(model, examples, steps=60, lr=0.01)
    assert [found.label for found in predict(model, examples)] == [example.label for example in examples]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"projection_dim": 0}, ("projection_dim", 0)),
        ({"dropout": 1.0}, ("dropout", 1.0)),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(ConfigError, match=mentions(*message)):
        EsimConfig(**setting)
