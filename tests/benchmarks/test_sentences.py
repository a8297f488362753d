"""benchmarks.sentences scores vectors on similarity tasks."""

import json
import sys

import numpy as np
import pytest

from benchmarks import sentences
from benchmarks.sentences import Data, score, unit


def test_scores_by_hand():
    data = Data(["p", "p", "q"], ["a", "b", "c"], ["entailment", "contradiction", "entailment"], [], [], [])
    data = data._replace(articles=[(["one", "two"], [("first?", 0), ("second?", 1)])])
    premises = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    hypotheses = unit(np.array([[2, 1], [0, 1], [1, 0]], dtype=np.float32))  # the last is nearer to p
    articles = [(np.eye(2), np.array([[1, 0], [1, 0]]))]
    premise, relation, paragraph = score(data, premises, hypotheses, articles)
    assert (premise, paragraph) == (50, 50)
    assert relation == pytest.approx(50)  # ranks 3, 1.5, 1.5 of the cosines for ranks 2.5, 1, 2.5 of the grades


def test_the_table_has_a_row_for_each_choice(tmp_path, monkeypatch, capsys, bilm_folder):
    words = ["sun", "rain", "snow", "wind", "fog", "hail"]
    endings = {"entailment": "came today", "neutral": "and more and more", "contradiction": "", "-": ""}
    lines = [
        json.dumps({"gold_label": label, "sentence1": f"The {word} came .", "sentence2": f"The {word} {ending} ."})
        for word in words
        for label, ending in endings.items()
    ]
    paragraphs = [{"context": f"About {word}. It came.", "qas": [{"question": f"Which {word}?"}]} for word in words]
    for part in ("train", "dev"):
        for folder, name, text in (
            ("snli_small", f"{part}.jsonl", "\n".join(lines)),
            ("squad_small", f"{part}-v1.1.json", json.dumps({"data": [{"paragraphs": paragraphs}]})),
        ):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).write_text(text, encoding="utf-8")
    vectors = tmp_path / "glove.txt"
    vectors.write_text(
        "".join(f"{word} {i} {i % 3}\n" for i, word in enumerate([*words, "and", "came"])), encoding="utf-8"
    )
    monkeypatch.setattr(sentences, "REMOVED", (None, 1))
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "sentences",
            str(tmp_path),
            "--model",
            str(bilm_folder),
            "--glove",
            str(vectors),
            "--texts",
            "8",
            "--seeds",
            "2",
        ],
    )
    sentences.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ") and "±" in line]
    assert len(rows) == 1 + len(sentences.ENCODERS)
