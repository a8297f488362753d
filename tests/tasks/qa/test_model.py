"""The model, and the task around it."""

import pytest
import torch
from facts import mentions
from fitting import fit, predict
from tiny_squad import build, contexts, question, read_tiny, write_squad
from torch.nn.functional import cross_entropy

from torchelmo.errors import ConfigError, InputError
from torchelmo.tasks.config import ElmoConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.qa import Qa
from torchelmo.tasks.qa import model as model_file
from torchelmo.tasks.qa.data import QuestionData, Window
from torchelmo.tasks.qa.model import QuestionConfig
from torchelmo.tasks.task import Source


@pytest.fixture
def examples(tmp_path):
    return read_tiny(tmp_path)


def scores_of(model, examples):
    with torch.no_grad():
        return model([e.tokens for e in examples], [e.passage.windows[0] for e in examples])


def test_the_mates_of_a_question_do_not_change_its_scores(examples):
    torch.manual_seed(0)
    model = build(examples).eval()
    together = scores_of(model, examples)
    for row, example in enumerate(examples):
        alone = scores_of(model, [example])
        n_tokens = len(example.passage.offsets)
        for found, expected in zip(together, alone):
            torch.testing.assert_close(found[row, :n_tokens], expected[0])
            assert found[row, n_tokens:].eq(-torch.inf).all()
    with torch.no_grad():
        assert [found[:3] for found in model.predict(examples)] == [model.predict([e])[0][:3] for e in examples]


def test_a_passage_is_encoded_once_for_all_its_questions(examples):
    model = build(examples).eval()
    sizes = []
    model.context.register_forward_hook(lambda module, arguments, output: sizes.append(len(output)))
    scores = scores_of(model, examples)
    assert sizes == [20, 4]
    copies = [e._replace(passage=e.passage._replace(windows=[Window(*e.passage.windows[0])])) for e in examples]
    for found, expected in zip(scores, scores_of(model, copies)):
        torch.testing.assert_close(found, expected)
    assert sizes == [20, 4, 20, 20]


def test_the_loss_is_the_cross_entropy_of_start_and_end(examples):
    torch.manual_seed(0)
    model = build(examples).eval()
    scores = scores_of(model, examples)
    right = zip(*(example.answers[0][1:] for example in examples))
    first, last = (cross_entropy(*pair) for pair in zip(scores, map(torch.tensor, right)))
    torch.testing.assert_close(model.loss(examples), first + last)


def test_any_reference_answer_may_be_right_or_the_first_alone(tmp_path):
    context = contexts()[0]
    content = [{"context": context, "qas": [question(context, "Where?", "in Rome", "Rome", "Rome.")]}]
    examples = Qa().read(write_squad(tmp_path / "a.json", content), QuestionData())
    model = build(examples).eval()
    start, end = (scores.softmax(dim=1)[0] for scores in scores_of(model, examples))
    torch.testing.assert_close(model.loss(examples), -((start[2] + start[3]) * (end[3] + end[4])).log())
    first = build(examples, loss="first").eval()
    first.load_state_dict(model.state_dict())
    torch.testing.assert_close(first.loss(examples), -(start[2] * end[3]).log())


def test_every_parameter_but_one_learns(examples):
    torch.manual_seed(0)
    model = build(examples)
    model.loss(examples).backward()
    parameters = [(name, p) for name, p in model.named_parameters() if not name.startswith("inputs")]
    still = [name for name, p in parameters if p.grad is None or not p.grad.abs().max() > 1e-7]
    # What a passage's own token adds to all its scores is lost in the softmax over the others.
    assert still == ["self_attention.scores.left"]


def test_twenty_questions_are_learnt_by_heart(examples):
    torch.manual_seed(0)
    model = build(examples, hidden_dim=12, linear_dim=24, dropout=0.1)
    fit(model, examples, steps=80, lr=0.01)
    predictions = predict(model, examples)
    scores = Qa().score(examples, predictions)
    assert scores["f1"] >= 99
    assert scores["em"] >= 95
    assert all(found.score > 0.5 for found in predictions)


@pytest.mark.parametrize("place", ["input", "output", "both"])
def test_elmo_enters_before_and_after_the_contextual_gru(examples, tiny_bilm, place):
    torch.manual_seed(0)
    elmo = ElmoLayers(tiny_bilm, ElmoConfig(place=place))
    model = build(examples, elmo=elmo)
    assert model.context.layers[0].input_size == 12 + elmo.dim * (place != "output")
    assert model.attention.dim == 4 * (2 * 8 + elmo.dim * (place != "input"))
    model.loss(examples[:6]).backward()
    for mix in elmo.mixes:
        assert mix.scalars.grad is not None
        assert mix.scalars.grad.abs().max() > 0


def ask(tmp_path, text, *questions):
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    return list(Qa().read_input(Source(str(path), questions=questions), QuestionData(), {}))


def test_the_best_window_of_a_long_text_answers(tmp_path, monkeypatch):
    torch.manual_seed(0)
    text = " ".join(f"w{i % 97} x{i % 31}" for i in range(500))
    (example,) = ask(tmp_path, text, "w3 x5 w7?")
    model = build([example], max_span=3).eval()
    windows = example.passage.windows
    assert len(windows) == 4
    with torch.no_grad():
        (found,) = model.predict([example])
        scores = [model([example.tokens], [window]) for window in windows]
    spans: dict[tuple[int, int], float] = {}
    for window, (start, end) in zip(windows, scores):
        for i in range(len(window.tokens)):
            for j in range(i, min(i + 3, len(window.tokens))):
                span = window.start + i, window.start + j  # which may lie in two windows
                spans[span] = max(spans.get(span, -99.0), (start[0, i] + end[0, j]).item())
    first, last = max(spans, key=lambda span: spans[span])
    offsets = example.passage.offsets
    assert (found.start, found.end) == (first, last + 1)
    assert (found.start_char, found.end_char) == (offsets[first][0], offsets[last][1])
    assert found.text == text[found.start_char : found.end_char]
    starts, ends = (torch.cat([pair[side][0] for pair in scores]).logsumexp(0) for side in (0, 1))
    assert found.score == pytest.approx((spans[first, last] - starts - ends).exp().item(), rel=1e-4)
    monkeypatch.setattr(model_file, "_MAX_PAIRS", 1)  # one window at a time
    with torch.no_grad():
        assert model.predict([example])[0][:5] == found[:5]


def test_windows_are_taken_together_as_far_as_memory_allows(examples, monkeypatch):
    longest = max(len(example.passage.offsets) for example in examples)
    monkeypatch.setattr(model_file, "_MAX_PAIRS", 3 * longest**2)
    model = build(examples).eval()
    sizes = []
    model.attention.register_forward_hook(lambda module, arguments, output: sizes.append(output.shape[:2]))
    with torch.no_grad():
        found = model.predict(examples)
    assert len(found) == 20
    assert sum(size[0] for size in sizes) == 20
    assert all(1 <= n_windows and n_windows * n_tokens**2 <= 3 * longest**2 for n_windows, n_tokens in sizes)
    assert len(sizes) < 20


def test_training_on_windows_is_refused(tmp_path):
    (example,) = ask(tmp_path, "word " * 500, "What?")
    with pytest.raises(InputError, match=mentions(0, 2)):
        build([example]).loss([example])


def test_a_prediction_is_shown_and_recorded(tmp_path):
    text = "Ann sat. Bob lives in New\nYork today. So."
    (example,) = ask(tmp_path, text, "Where does Bob live? ")
    start = text.index("New")
    found = model_file.PredictedAnswer(text[start : start + 8], 6, 8, start, start + 8, 0.876)
    assert found.text == "New\nYork"
    shown = Qa().show(example, found)
    assert shown == "Where does Bob live?\n  New York  (0.88)\n  Bob lives in [New York] today.\n"
    assert Qa().record(example, found) == {
        "id": "0",
        "question": "Where does Bob live? ",
        "answer": "New\nYork",
        "start": 6,
        "end": 8,
        "start_char": start,
        "end_char": start + 8,
        "score": 0.876,
    }


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"hidden_dim": 0}, ("hidden_dim", 0)),
        ({"max_span": 0}, ("max_span", 0)),
        ({"dropout": 1.0}, ("dropout", 1.0)),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(ConfigError, match=mentions(*message)):
        QuestionConfig(**setting)
