"""The task as the runner and the command line see it."""

import json

from torchelmo.config import config_to_dict
from torchelmo.tasks.classification import Prediction
from torchelmo.tasks.nli import LABELS, Nli, NliData, NliExample
from torchelmo.tasks.task import Source, find_task

TASK = Nli()
EXAMPLE = NliExample(("A", "dog", "runs", "."), ("It", "sleeps", "."), None)


def test_is_found_by_its_name():
    assert isinstance(find_task("nli"), Nli)


def test_labels_do_not_depend_on_the_training_data():
    assert TASK.vocabularies([EXAMPLE._replace(label="neutral")], NliData()) == {"labels": LABELS}


def test_premise_and_hypothesis_go_through_the_bilm_by_themselves():
    assert TASK.sentences(EXAMPLE) == [EXAMPLE.premise, EXAMPLE.hypothesis]


def test_reads_input_without_labels(tmp_path):
    (tmp_path / "pairs.tsv").write_text("A dog runs .\tIt sleeps .\n")
    (found,) = TASK.read_input(Source(str(tmp_path / "pairs.tsv")), NliData(), {})
    assert found._replace(places=(None, None)) == EXAMPLE
    assert found.places[1].offsets == [(0, 2), (3, 9), (10, 11)]


def test_a_prediction_is_shown_and_recorded():
    prediction = Prediction("contradiction", {"entailment": 0.1, "neutral": 0.15, "contradiction": 0.75})
    assert TASK.show(EXAMPLE, prediction) == "contradiction 0.75  A dog runs . → It sleeps ."
    assert json.loads(json.dumps(TASK.record(EXAMPLE, prediction))) == {
        "premise": ["A", "dog", "runs", "."],
        "hypothesis": ["It", "sleeps", "."],
        "label": "contradiction",
        "probabilities": {"entailment": 0.1, "neutral": 0.15, "contradiction": 0.75},
    }


def test_settings_have_a_plain_form():
    assert TASK.model_config(**config_to_dict(TASK.model_config())) == TASK.model_config()
    assert TASK.data_config(**config_to_dict(TASK.data_config())) == TASK.data_config()
