"""The task as the runner and the command line see it."""

import json

import pytest

from torchelmo.config import build_config, config_to_dict
from torchelmo.tasks.classification import Prediction
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.runner import set_up
from torchelmo.tasks.sentiment import BINARY, FINE, Sentiment, SentimentData, SentimentExample
from torchelmo.tasks.task import Source, find_task

TASK = Sentiment()


def example(label: str | None, text: str = "It 's a lovely film") -> SentimentExample:
    return SentimentExample(tuple(text.split()), label)


def test_is_found_by_its_name():
    assert isinstance(find_task("sentiment"), Sentiment)


def test_labels_are_five_or_two_whatever_the_training_data_lacks():
    examples = [example("positive"), example("negative")]
    assert TASK.vocabularies(examples, SentimentData(classes="binary")) == {"labels": BINARY}
    assert TASK.vocabularies(examples, SentimentData(classes="fine")) == {"labels": FINE}


def test_phrases_may_have_labels_that_no_sentence_has(tmp_path):
    (tmp_path / "trees.txt").write_text("(3 (2 It) (4 works))\n(1 (2 It) (0 fails))\n")
    options = {"task": "sentiment", "out": tmp_path, "data": {"min_phrase": 1}, "words": {"dim": 3, "min_count": 1}}
    files = {"train": tmp_path / "trees.txt", "dev": tmp_path / "trees.txt"}
    model = {"feed_forward_dim": 2, "encoder_dim": 2, "integrator_dim": 2, "classifier_dim": 2}
    started = set_up(build_config(TaskConfig, {**options, **files, "model": model}))
    assert started.trained.model.labels == FINE
    assert {phrase.label for phrase in started.examples} == set(FINE)
    assert started.trained.model.loss(started.examples).isfinite()


def test_equal_lines_are_all_counted(tmp_path):
    (tmp_path / "train.tsv").write_text("positive\tGood film\nnegative\tBad film\n" * 4)
    files = {"train": tmp_path / "train.tsv", "dev": tmp_path / "train.tsv", "out": tmp_path / "out"}
    options = {"task": "sentiment", "words": {"dim": 3, "min_count": 4}}
    model = {"feed_forward_dim": 2, "encoder_dim": 2, "integrator_dim": 2, "classifier_dim": 2}
    started = set_up(build_config(TaskConfig, {**options, **files, "model": model}))
    assert set(started.trained.model.inputs.words.words) == {"Good", "Bad", "film"}


def test_training_is_on_phrases_and_scoring_on_sentences(tmp_path):
    (tmp_path / "train.txt").write_text("(3 (2 It) (4 works))\n")
    options = TASK.data_config(min_phrase=1)
    examples = TASK.read(tmp_path / "train.txt", options)
    assert len(examples) == 1
    assert len(TASK.training(examples, options)) == 3


@pytest.mark.parametrize(
    ("lang", "expected"),
    [
        ("en", [("It", "'s", "lovely", ".", "Really", "!"), ("No", ".")]),
        (None, [("It's", "lovely.", "Really!"), ("No.",)]),
    ],
)
def test_a_line_to_predict_is_one_example(tmp_path, lang, expected):
    (tmp_path / "input.txt").write_text("It's lovely. Really!\n\nNo.\n")
    source = Source(str(tmp_path / "input.txt"), lang)
    examples = list(TASK.read_input(source, SentimentData(), {}))
    assert [example._replace(place=None) for example in examples] == [
        SentimentExample(tokens, None) for tokens in expected
    ]
    assert [example.place.line for example in examples] == [1, 3]


def test_a_prediction_is_shown_and_recorded():
    prediction = Prediction("very positive", {"positive": 0.19, "very positive": 0.81})
    assert TASK.show(example(None), prediction) == "very positive 0.81  It 's a lovely film"
    assert json.loads(json.dumps(TASK.record(example(None), prediction))) == {
        "tokens": ["It", "'s", "a", "lovely", "film"],
        "label": "very positive",
        "probabilities": {"positive": 0.19, "very positive": 0.81},
    }


def test_settings_have_a_plain_form():
    assert TASK.model_config(**config_to_dict(TASK.model_config())) == TASK.model_config()
    assert TASK.data_config(**config_to_dict(TASK.data_config())) == TASK.data_config()
