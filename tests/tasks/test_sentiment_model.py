"""The biattentive classification network."""

import pytest
import torch
from facts import mentions
from fitting import fit, predict

from torchelmo.errors import ConfigError
from torchelmo.tasks.config import ElmoConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.sentiment import BCN, FINE, BCNConfig, SentimentExample
from torchelmo.tasks.words import WordEmbedding

WORDS = "it works well enough not at all never".split()
SMALL = BCNConfig(feed_forward_dim=6, encoder_dim=5, integrator_dim=4, classifier_dim=7)
EXAMPLES = [
    SentimentExample(("it", "works"), "positive"),
    SentimentExample(("it", "never", "works", "well", "at", "all"), "negative"),
    SentimentExample(("enough",), "neutral"),
]


def build(elmo: ElmoLayers | None = None, config: BCNConfig = SMALL) -> BCN:
    torch.manual_seed(1)
    return BCN(config, TokenInput(WordEmbedding(WORDS, dim=8), elmo=elmo), labels=FINE)


def test_the_published_widths():
    model = BCN(BCNConfig(), TokenInput(WordEmbedding(WORDS, dim=300)), labels=FINE)
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters() if "weight" in name}
    assert shapes["feed_forward.layers.0.weight"] == [300, 300]
    assert shapes["encoder.layers.0.weight_ih_l0"] == [1200, 300]
    assert shapes["integrator.layers.0.weight_ih_l0"] == [1200, 3 * 600]
    assert [shapes[f"classifier.layers.{i}.weight"] for i in range(3)] == [[300, 4 * 600], [300, 300], [5, 300]]


def test_scores_are_those_of_the_equations():
    model = build().eval()
    (scores,) = model(EXAMPLES[:1])
    vectors = model.inputs([EXAMPLES[0].tokens]).vectors[0]
    lower = model.feed_forward.layers[0]
    x = model.encoder.layers[0](torch.relu(vectors @ lower.weight.T + lower.bias))[0]  # (2 tokens, dim)
    rows = []
    for i in range(2):
        weights = torch.softmax(torch.stack([x[i] @ x[j] for j in range(2)]), dim=0)
        seen = weights[0] * x[0] + weights[1] * x[1]
        rows.append(torch.cat([x[i], x[i] - seen, x[i] * seen]))
    y = model.integrator.layers[0](torch.stack(rows))[0]
    attention = torch.softmax(model.attentive_pool.score(y)[:, 0], dim=0)
    pooled = torch.cat([y.amax(0), y.mean(0), y.amin(0), attention[0] * y[0] + attention[1] * y[1]])
    torch.testing.assert_close(scores, model.classifier(pooled))


@pytest.mark.parametrize("place", ["none", "input", "output", "both"])
def test_batch_mates_and_their_padding_change_nothing(place, tiny_bilm):
    elmo = ElmoLayers(tiny_bilm, ElmoConfig(place=place)) if place != "none" else None
    model = build(elmo).eval()
    together = model(EXAMPLES)
    for row, example in enumerate(EXAMPLES):
        torch.testing.assert_close(together[row], model([example])[0])


def test_elmo_stands_beside_the_integrator_at_the_output(tiny_bilm):
    without, at_input, at_output = (
        build(ElmoLayers(tiny_bilm, ElmoConfig(place=place)) if place != "none" else None)
        for place in ("none", "input", "output")
    )
    dim = at_output.inputs.output_dim
    assert dim
    assert at_input.feed_forward.layers[0].in_features == without.feed_forward.layers[0].in_features + dim
    assert at_output.classifier.layers[0].in_features == without.classifier.layers[0].in_features + 4 * dim
    assert at_output.attentive_pool.score.in_features == without.attentive_pool.score.in_features + dim
    at_output.loss(EXAMPLES).backward()
    assert at_output.inputs.elmo is not None
    assert at_output.inputs.elmo.mixes[0].scalars.grad.any()


def test_every_parameter_is_trained():
    model = build()
    model.loss(EXAMPLES).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_the_loss_is_the_mean_of_that_of_the_gold_labels():
    model = build().eval()
    probabilities = [model.predict([example])[0].probabilities[example.label or ""] for example in EXAMPLES]
    torch.testing.assert_close(model.loss(EXAMPLES), -torch.tensor(probabilities).log().mean())


def test_predictions_hold_the_likeliest_label_and_all_probabilities():
    (prediction,) = build().eval().predict(EXAMPLES[:1])
    assert list(prediction.probabilities) == FINE
    assert sum(prediction.probabilities.values()) == pytest.approx(1.0)
    assert prediction.probabilities[prediction.label] == max(prediction.probabilities.values())


def test_learns_twenty_sentences_by_heart():
    generator = torch.Generator().manual_seed(0)
    picks = [torch.randint(len(WORDS), (3 + i % 5,), generator=generator).tolist() for i in range(20)]
    examples = [SentimentExample(tuple(WORDS[j] for j in pick), FINE[i % 5]) for i, pick in enumerate(picks)]
    config = BCNConfig(
        feed_forward_dim=16, encoder_dim=16, integrator_dim=16, classifier_dim=16, input_dropout=0.0, dropout=0.0
    )
    model = build(config=config)
    fit(model, examples, steps=60, lr=0.01)
    assert [found.label for found in predict(model, examples)] == [example.label for example in examples]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"encoder_dim": 0}, ("encoder_dim", 0)),
        ({"dropout": 1.0}, ("dropout", 1.0)),
        ({"input_dropout": -0.1}, ("input_dropout", -0.1)),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(ConfigError, match=mentions(*message)):
        BCNConfig(**setting)
