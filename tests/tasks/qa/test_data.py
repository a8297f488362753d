"""Reading questions, and what is said about files that cannot be read."""

import gzip
import json
import logging
import re

import pytest
from facts import mentions
from tiny_squad import contexts, paragraphs, question, read_tiny, write_squad

from torchelmo.errors import ConfigError, InputError, MissingFileError
from torchelmo.tasks.qa import Qa
from torchelmo.tasks.qa.data import QuestionData
from torchelmo.tasks.task import Source

OPTIONS = QuestionData()


def answer_texts(example):
    offsets = example.passage.offsets
    return [example.passage.text[offsets[a.first][0] : offsets[a.last][1]] for a in example.answers]


def test_every_question_is_read_with_its_passage_and_answers(tmp_path):
    examples = read_tiny(tmp_path)
    assert [example.id for example in examples] == [f"{i}-{j}" for i in range(4) for j in range(5)]
    first = examples[0]
    assert first.text == "Where does Ann live?"
    assert first.tokens == ["Where", "does", "Ann", "live", "?"]
    assert first.passage.text == contexts()[0]
    assert all(answer_texts(example) == [a.text for a in example.answers] for example in examples[:16])
    assert examples[1].passage is first.passage
    assert Qa().sentences(first) == [first.tokens, first.passage.windows[0].tokens]


def test_an_answer_within_a_token_takes_the_whole_token(tmp_path):
    context = "A silver-plated spoon, an €8-note."
    path = write_squad(tmp_path / "a.json", [{"context": context, "qas": [question(context, "What?", "ver-plat")]}])
    (example,) = Qa().read(path, OPTIONS)
    (found,) = answer_texts(example)
    assert found == "silver-plated"
    assert example.answers[0].text == "ver-plat"  # what is scored stays as it is


def test_long_passages_and_answers_are_not_trained_on(tmp_path, caplog):
    examples = read_tiny(tmp_path)
    lengths = [len(example.passage.offsets) for example in examples]
    longest = max(lengths)
    assert 0 < lengths.count(longest) < 20
    n_long = sum(a.last > a.first for e, n in zip(examples, lengths) if n < longest for a in e.answers)
    options = QuestionData(max_context=longest - 1, max_answer=1)
    with caplog.at_level(logging.INFO):
        kept = Qa().training(examples, options)
    assert len(kept) == 20 - lengths.count(longest) - n_long
    assert all(a.first == a.last for example in kept for a in example.answers)
    (line,) = caplog.messages
    numbers = {20 - len(kept), 20, lengths.count(longest), longest - 1, n_long, 1}
    assert numbers <= {int(number) for number in re.findall(r"\d+", line)}
    assert re.search(mentions("data.max_context", "data.max_answer"), line)


def test_nothing_is_said_where_all_is_trained_on(tmp_path, caplog):
    examples = read_tiny(tmp_path)
    with caplog.at_level(logging.INFO):
        assert Qa().training(examples, OPTIONS) == examples
    assert not caplog.messages


def test_of_several_answers_the_short_ones_are_trained_on(tmp_path):
    context = contexts()[0]
    asked = question(context, "Where?", "lives in Rome", "Rome")
    (example,) = Qa().read(write_squad(tmp_path / "a.json", [{"context": context, "qas": [asked]}]), OPTIONS)
    (kept,) = Qa().training([example], QuestionData(max_answer=2))
    assert [answer.text for answer in kept.answers] == ["Rome"]
    assert len(example.answers) == 2


def broken(change):
    content = paragraphs()
    change(content)
    return content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p: p[1]["qas"][2]["answers"][0].update(answer_start=1),
            ("article 1", "People", "paragraph 2", "question 1-2", "'Bob'", "'ob '", "answer_start"),
        ),
        (lambda p: p[0]["qas"][0]["answers"][0].update(answer_start=-4), ("question 0-0", "'Rome'")),
        (lambda p: p[0]["qas"][0]["answers"][0].update(text=""), ("question 0-0", "''")),
        (lambda p: p[0]["qas"][0].update(answers=[]), ("question 0-0",)),
        (lambda p: p[0]["qas"][0].pop("answers"), ("question 0-0",)),
        (lambda p: p[0]["qas"][0].pop("question"), ("question 0-0", "'question'", "'id'", "'answers'")),
        (lambda p: p[0]["qas"][0].update(question="  "), ("question 0-0",)),
        (lambda p: p[3].update(context=[1]), ("paragraph 4", "context", "[1]")),
        (lambda p: p[3].update(qas={}), ("paragraph 4", "qas", "{}")),
        (lambda p: p.append("x"), ("paragraph 5", "'context'", "'x'")),
        (
            lambda p: p[0]["qas"][4]["answers"][0].update(answer_start="9"),
            ("question 0-4", "answer_start", "'9'"),
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named_by_its_place(tmp_path, change, message):
    path = write_squad(tmp_path / "bad.json", broken(change))
    with pytest.raises(InputError, match=mentions(path, *message)):
        Qa().read(path, OPTIONS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", ("'data'", "[]")),
        ('{"version": 1}', ("'data'", "'version'")),
        ("{", ("JSON", "SQuAD")),
        ("Ann lives in Rome.", ("`questions`",)),
        ('{"context": "a b", "question": "c"}\n{"context"', ("line 2", "JSON")),
        ('{"context": "a b", "question": "c"}\n{"context": "a"}', ("line 2", "'question'")),
        ('{"context": "a b", "question": "c"}\n\n[]', ("line 3", "JSON", "'[]'")),
        ('{"context": " ", "question": "c"}', ("context",)),
        ('{"data": ' + "9" * 5000 + "}", ("JSON", "SQuAD")),
        ('{"context": "a", "question": "b", "answers": ' + "9" * 5000 + "}\n{}", ("JSON", "SQuAD")),
    ],
)
def test_files_that_hold_no_questions_are_named(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=mentions(path, *message)):
        list(Qa().read_input(Source(str(path)), OPTIONS, {}))


def test_a_plain_text_to_train_on_gets_no_advice_for_predicting(tmp_path):
    (tmp_path / "letters.txt").write_text("Ann lives in Rome.")
    with pytest.raises(InputError, match=mentions("letters.txt", "SQuAD")) as error:
        Qa().read(tmp_path / "letters.txt", OPTIONS)
    assert "questions" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingFileError, match=mentions(tmp_path / "none.json")):
        Qa().read(tmp_path / "none.json", OPTIONS)


def asked(path, options=OPTIONS, **source):
    return list(Qa().read_input(Source(str(path), **source), options, {}))


def test_questions_are_asked_of_a_whole_text(tmp_path):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"Ann lives\nin Rome.\n\nShe's well.\n"))
    examples = asked(path, questions=["Who?", "Where?"])
    assert [(example.id, example.text) for example in examples] == [("0", "Who?"), ("1", "Where?")]
    assert examples[0].passage.text == "Ann lives\nin Rome.\n\nShe's well."
    assert examples[0].passage.windows[0].tokens == ["Ann", "lives", "in", "Rome", ".", "She", "'s", "well", "."]
    assert examples[0].answers is None


def test_tokens_of_a_text_stay_as_they_are_on_request(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Ann 's  cat.\n\nIt sat\n")
    (example,) = asked(path, questions=["Whose cat?"], lang=None)
    assert example.tokens == ["Whose", "cat?"]
    assert example.passage.windows[0].tokens == ["Ann", "'s", "cat.", "It", "sat"]
    assert example.passage.sentences == [0, 3]


def test_long_texts_are_read_by_windows(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("word " * 1000)
    (example,) = asked(path, questions=["What?"])
    assert [window.start for window in example.passage.windows] == [0, 200, 400, 600]
    assert max(len(window.tokens) for window in example.passage.windows) == 400
    (shorter,) = asked(path, QuestionData(max_context=300), questions=["What?"])
    assert max(len(window.tokens) for window in shorter.passage.windows) == 300


def test_json_lines_hold_a_question_each(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = [{"context": contexts()[0], "question": "Who?"}, {"id": 7, "context": contexts()[0], "question": "Where?"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    examples = asked(path)
    assert [example.id for example in examples] == ["0", "7"]
    assert examples[0].passage is examples[1].passage
    path.write_text(json.dumps(lines[1]), encoding="utf-8")
    assert [example.id for example in asked(path)] == ["7"]


def test_a_squad_file_may_come_without_answers(tmp_path):
    content = paragraphs()
    for paragraph in content:
        for each in paragraph["qas"]:
            del each["answers"]
    assert [example.answers for example in asked(write_squad(tmp_path / "a.json", content))] == [None] * 20


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match=mentions("max_context", 0)):
        QuestionData(max_context=0)
    with pytest.raises(ConfigError, match=mentions("max_answer", -1)):
        QuestionData(max_answer=-1)
