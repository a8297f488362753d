"""The task through the runner and back from its folder."""

from tiny_squad import contexts, paragraphs, write_squad

from torchelmo.config import build_config
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.runner import train
from torchelmo.tasks.task import Source
from torchelmo.tasks.trained import load


def test_a_trained_folder_answers_questions_about_a_text(tmp_path):
    data = str(write_squad(tmp_path / "tiny.json", paragraphs()))
    settings = {
        **{"task": "qa", "train": data, "dev": data, "out": str(tmp_path / "run"), "epochs": 2, "ema": 0.5},
        "model": {"hidden_dim": 4, "linear_dim": 8},
        "words": {"dim": 6, "min_count": 1},
        "characters": {"n_filters": 4},
    }
    result = train(build_config(TaskConfig, settings)).result
    assert result is not None
    assert {"em", "f1"} <= result.scores.keys()
    trained = load(tmp_path / "run")
    text = tmp_path / "text.txt"
    text.write_text(contexts()[2], encoding="utf-8")
    source = Source(str(text), questions=["Where does Cleo live?"])
    (example,) = trained.task.read_input(source, trained.data_options, trained.vocabularies)
    assert len(trained.task.sentences(example)) == 2
    (found,) = trained.predict_examples([example])
    record = trained.task.record(example, found)
    assert record["answer"] == contexts()[2][record["start_char"] :][: len(record["answer"])]
    assert 0 < record["score"] <= 1
