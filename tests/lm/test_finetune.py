"""Fine-tuning: the same vocabulary, the best model kept, a new softmax where there is none."""

import json
import multiprocessing
import random
import signal
import time

import pytest
import torch
from facts import mentions
from official_files import random_official
from tiny_runs import NAMES, VERBS, sentences, tiny_config
from torch.optim.optimizer import register_optimizer_step_post_hook

import torchelmo
from torchelmo.errors import ConfigError, InputError, OutputExistsError, WrongCallError
from torchelmo.lm.finetune import fine_tune
from torchelmo.lm.loop import pretrain
from torchelmo.lm.predict import perplexity
from torchelmo.runs.resume import Stop

QUICK = ["batch_size=8", "unroll=5", "epochs=2", "dropout=0.0", "log_every=10"]


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "run"
    pretrain(tiny_config(data, out, steps=30, batch_size=8, dropout=0.0, reset_state=True))
    return out


@pytest.fixture
def text(tmp_path):
    """Another grammar over the same words: the verb stands last."""
    lines = [f"{a} {c} {b} ." for (a, b, *_, c, _) in sentences(200, seed=5)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "text.txt"


def held_out_of(tmp_path):
    lines = [f"{a} {c} {b} ." for (a, b, *_, c, _) in sentences(40, seed=6)]
    (tmp_path / "heldout.txt").write_text("\n".join(lines) + "\n")
    return [line.split() for line in lines], tmp_path / "heldout.txt"


def test_perplexity_falls_and_the_vocabulary_stays(model, text, tmp_path):
    out = tmp_path / "out"
    lines, heldout = held_out_of(tmp_path)
    tuned = fine_tune(model, [text], out, heldout=[heldout], pretokenized=True, settings=[*QUICK, "optim.lr=0.02"])
    before, after = torchelmo.load(model), torchelmo.load(out)
    assert after.vocabulary == before.vocabulary
    assert perplexity(before, lines).average == pytest.approx(tuned.before.average, rel=1e-6)
    assert perplexity(after, lines).average == pytest.approx(tuned.after.average, rel=1e-6)
    assert tuned.after.average < 0.8 * tuned.before.average
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "model.safetensors",
        "vocab.txt",
        "metrics.jsonl",
        "run.json",
    }


def test_a_model_that_gains_nothing_is_left_as_it_was(model, text, tmp_path):
    _, heldout = held_out_of(tmp_path)
    tuned = fine_tune(
        model, [text], tmp_path / "out", heldout=[heldout], pretokenized=True, settings=[*QUICK, "optim.lr=0.5"]
    )
    assert (tuned.step, tuned.after) == (0, tuned.before)
    before, after = torchelmo.load(model), torchelmo.load(tmp_path / "out")
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


def test_official_weights_are_given_a_softmax_first(text, tmp_path):
    official = random_official(seed=3, filters=((1, 4), (2, 4)), n_highway=1, projection_dim=6, cell_dim=8)
    options, weights = official.write(tmp_path / "official")
    (tmp_path / "official" / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")  # of no softmax: a new one is free to choose
    before = torchelmo.load_official(options, weights)
    settings = [*QUICK, "optim.lr=0.01"]
    tuned = fine_tune(
        tmp_path / "official", [text], tmp_path / "out", heldout=0.2, pretokenized=True, settings=settings
    )
    after = torchelmo.load(tmp_path / "out")
    assert set(NAMES + VERBS) <= set(after.vocabulary.words)
    assert tuned.after.average < tuned.before.average
    # It goes back into the official format, and is read from it with the same vectors.
    torchelmo.save_official(after, tmp_path / "again" / "options.json", tmp_path / "again" / "weights.hdf5")
    again = torchelmo.load(tmp_path / "again")
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, after.state_dict()[name])
    assert not torch.equal(after.forward_lstms[0].bias, before.forward_lstms[0].bias)


def test_several_processes_are_refused(model, text, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(WrongCallError, match=mentions("fine-tune", "2", "torchrun", "pretrain")):
        fine_tune(model, [text], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(model, text):
    before = {path: path.stat().st_mtime_ns for path in model.rglob("*")}
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError, match=mentions(model)):
            fine_tune(model, [text], model, overwrite=overwrite)
    assert {path: path.stat().st_mtime_ns for path in model.rglob("*")} == before


def test_text_without_a_held_out_line_is_refused(model, tmp_path):
    (tmp_path / "short.txt").write_text("ann sees the dog .\n")
    with pytest.raises(InputError, match=mentions("`heldout`")):
        fine_tune(model, [tmp_path / "short.txt"], tmp_path / "out", heldout=0.0, pretokenized=True)
    assert not (tmp_path / "out").exists()  # so that the advice can be followed


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("epoch=1", ("fine-tune", "'epoch'", "Did you mean 'epochs'")),
        ("batch_size=0", ("batch_size", 0)),
    ],
)
def test_a_wrong_setting_is_named_before_the_text_is_read(setting, words, model, tmp_path):
    with pytest.raises(ConfigError, match=mentions(*words)):
        fine_tune(model, [tmp_path / "not-there.txt"], tmp_path / "out", settings=[setting])


def test_a_softmax_whose_words_are_not_known_is_refused(model, text, tmp_path):
    import shutil

    shutil.copytree(model, tmp_path / "copy")
    (tmp_path / "copy" / "vocab.txt").unlink()
    with pytest.raises(InputError, match=mentions(tmp_path / "copy", "vocab.txt")):
        fine_tune(tmp_path / "copy", [text], tmp_path / "out", pretokenized=True)


def contents(folder):
    """Every file that a finished call leaves, without the clock."""
    marker = json.loads((folder / "run.json").read_text())
    return (
        (folder / "model.safetensors").read_bytes(),
        (folder / "config.json").read_bytes(),
        {name: marker[name] for name in ("options", "inputs", "result", "finished")},
        sorted(path.name for path in folder.iterdir()),
    )


def arguments_of(model, text, tmp_path, *more):
    _, heldout = held_out_of(tmp_path)
    settings = [*QUICK, "optim.lr=0.02", "checkpoint_every=2", *more]
    return {"model": str(model), "texts": [str(text)], "heldout": [str(heldout)], "settings": settings}


def tune(arguments, out, **options):
    return fine_tune(out=out, pretokenized=True, **arguments, **options)


def test_a_stopped_call_is_not_finished_and_can_be_resumed_exactly(model, text, tmp_path):
    arguments = arguments_of(model, text, tmp_path)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    expected = tune(arguments, straight)
    stop, n_stops = Stop(), 0
    handle = register_optimizer_step_post_hook(lambda *_: setattr(stop, "requested", True))
    try:
        while n_stops < 3:
            stop.requested = False
            result = tune(arguments, broken, resume=True, stop=stop)
            assert not result.finished
            assert not (broken / "config.json").exists()
            with pytest.raises(OutputExistsError, match=mentions(broken, "resume=True", "overwrite=True")):
                tune(arguments, broken)
            n_stops += 1
    finally:
        handle.remove()
    assert tune(arguments, broken, resume=True) == expected
    assert contents(broken) == contents(straight)
    assert tune(arguments, broken, resume=True) == expected  # a finished one is a success


def test_another_model_text_or_setting_cannot_be_resumed_with(model, text, tmp_path):
    out, stop = tmp_path / "out", Stop()
    stop.requested = True
    arguments = arguments_of(model, text, tmp_path)
    assert not tune(arguments, out, stop=stop).finished
    with pytest.raises(ConfigError, match=mentions(out, "settings")):
        tune({**arguments, "settings": ["epochs=9"]}, out, resume=True)
    with pytest.raises(ConfigError, match=mentions(out, "heldout")):
        tune({**arguments, "heldout": 0.3}, out, resume=True)
    text.write_text(text.read_text() + "ann sees bob .\n")
    with pytest.raises(ConfigError, match=mentions(out, "texts")):
        tune(arguments, out, resume=True)
    assert tune(arguments, out, overwrite=True).finished


def test_a_killed_call_is_not_finished_and_can_be_resumed_exactly(model, text, tmp_path):
    arguments = arguments_of(model, text, tmp_path)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    tune(arguments, straight)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torchelmo.lm.finetune", "safetensors.torch", "torch._dynamo"])
    pick, kills, resumed = random.Random(3), 0, 0
    while not (killed / "config.json").exists():
        before = len(list(killed.glob("run/model/checkpoints/step-*")))
        child = context.Process(target=tune, args=(arguments, killed), kwargs={"resume": True})
        child.start()
        if kills < 4:
            while child.is_alive() and not list(killed.glob("run/model/checkpoints/step-*")):
                time.sleep(0.005)
            child.join(pick.uniform(0.0, 0.1))
            if child.is_alive():
                child.kill()
                kills, resumed = kills + 1, resumed + bool(before)
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
    assert kills > 0
    tune(arguments, killed, resume=True)  # a kill between the last two files is repaired
    assert contents(killed) == contents(straight)


def test_the_language_of_the_model_is_that_of_its_text(model, text, tmp_path):
    assert (torchelmo.load(model).lang, torchelmo.load(model).pretokenized) == (None, True)
    tuned = fine_tune(model, [text], tmp_path / "out", heldout=0.2, settings=[*QUICK, "epochs=1"])  # as the model
    assert tuned.finished
    assert torchelmo.load(tmp_path / "out").pretokenized
    fine_tune(model, [text], tmp_path / "is", heldout=0.2, lang="is", settings=[*QUICK, "epochs=1"])
    assert (torchelmo.load(tmp_path / "is").lang, torchelmo.load(tmp_path / "is").pretokenized) == ("is", False)
