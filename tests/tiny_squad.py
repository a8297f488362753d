"""A little data in SQuAD's form, and models that are built in no time."""

import json
from pathlib import Path
from typing import Any

from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.qa import Qa
from torchelmo.tasks.qa.data import Question, QuestionData
from torchelmo.tasks.qa.model import QuestionAnswering, QuestionConfig
from torchelmo.tasks.words import WordEmbedding

NAMES = "Ann Bob Cleo Dan".split()
PLACES = ["Rome", "New York", "Łódź", "the old town"]
THINGS = ["drum", "red kite", "clock", "silver-spoon"]


def contexts() -> list[str]:
    return [
        f"{NAMES[i]} lives in {PLACES[i]}. {NAMES[i]} has a {THINGS[i]}, and {NAMES[i - 1]} a cat." for i in range(4)
    ]


def question(context: str, text: str, *answers: str, id_: str = "q") -> dict[str, Any]:
    found = [{"text": answer, "answer_start": context.index(answer)} for answer in answers]
    return {"id": id_, "question": text, "answers": found}


def paragraphs() -> list[dict[str, Any]]:
    result = []
    for i, context in enumerate(contexts()):
        asked = [
            (f"Where does {NAMES[i]} live?", PLACES[i]),
            (f"What does {NAMES[i]} have?", THINGS[i]),
            (f"Who lives in {PLACES[i]}?", NAMES[i]),
            ("Who has a cat?", NAMES[i - 1]),
            ("What has the other one?", "a cat"),
        ]
        qas = [question(context, *pair, id_=f"{i}-{number}") for number, pair in enumerate(asked)]
        result.append({"context": context, "qas": qas})
    return result


def write_squad(path: Path, content: list[dict[str, Any]], title: str = "People") -> Path:
    data = {"version": "1.1", "data": [{"title": title, "paragraphs": content}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def read_tiny(folder: Path, **options: Any) -> list[Question]:
    return Qa().read(write_squad(folder / "tiny.json", paragraphs()), QuestionData(**options))


def build(examples: list[Question], elmo: ElmoLayers | None = None, **config: Any) -> QuestionAnswering:
    words = sorted({token for example in examples for sentence in Qa().sentences(example) for token in sentence})
    sizes: dict[str, Any] = {"hidden_dim": 8, "linear_dim": 16, "max_span": 4, **config}
    return QuestionAnswering(QuestionConfig(**sizes), TokenInput(WordEmbedding(words, dim=12), elmo=elmo))
