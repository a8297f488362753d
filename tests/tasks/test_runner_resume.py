"""A run that was stopped and resumed gives the same bytes as a run without interruption."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from facts import mentions
from safetensors.torch import load_file, save_file
from tiny_tasks import merge, pos_config, write_pos, write_vectors

from torchelmo.config import config_to_dict
from torchelmo.errors import ConfigError, WeightsError
from torchelmo.files import content_hash
from torchelmo.formats import load as weights
from torchelmo.formats.load import DEFAULT_MODEL, load_folder
from torchelmo.runs.checkpoint import _card_hash, checkpoints
from torchelmo.runs.resume import Stop
from torchelmo.tasks import load, train
from torchelmo.tasks.runner import find_finished


def outcome(folder):
    """All that must be equal: the weights, the scores, and what is said of every epoch."""
    result = json.loads((folder / "metrics.json").read_text())
    epochs = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    for record in (result, *epochs):
        for name in ("seconds", "bilm_seconds"):
            record.pop(name, None)
    (last,) = checkpoints(folder)
    weights = [(folder / "model.safetensors"), last / "model.safetensors", last / "optimizer.safetensors"]
    return result, epochs, [path.read_bytes() for path in weights]


def steps_taken(folder):
    (last,) = checkpoints(folder)
    return json.loads((last / "checkpoint.json").read_text())["progress"]["step"]


VARIANTS = {
    "plain": {},
    "average": {"ema": 0.8},
    "halving": {"optim": {"lr": 0.4, "halve_after": 1}},
    "patience": {"patience": 2, "optim": {"lr": 0.4}, "epochs": 9},
    "rate": {"optim": {"name": "adadelta", "lr": 1.0, "warmup": 0.2, "decay": "linear"}},
    "elmo": {"elmo": {"place": "both"}},
    "unfrozen": {"elmo": {"place": "input", "unfreeze": True}, "epochs": 3},
    "little room": {"elmo": {"place": "input", "memory_mb": 0.004, "disk_mb": 0.006}},
    "less room": {"elmo": {"place": "input", "memory_mb": 0.002, "disk_mb": 0.003}},
    "no room": {"elmo": {"place": "input", "memory_mb": 0.0, "disk_mb": 0.0}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_is_the_same_run(data, bilm_folder, tmp_path, variant, stop_after):
    changes = {"epochs": 4, **VARIANTS[variant]}
    if "elmo" in changes:
        changes["elmo"] = {**changes["elmo"], "model": str(bilm_folder)}
    whole = train(pos_config(data, tmp_path / "whole", **changes)).result
    config = pos_config(data, tmp_path / "pieces", **changes)
    taken = []
    for steps in (3, 2, 7):  # in the middle of an epoch, at its last step, in the one after the next
        assert train(config, resume=True, stop=stop_after(steps)).stopped
        taken.append(steps_taken(tmp_path / "pieces"))
    assert taken == [3, 5, min(12, whole.steps)]
    result = train(config, resume=True).result
    assert result.finished
    assert outcome(tmp_path / "pieces") == outcome(tmp_path / "whole")


def test_a_longer_run_goes_on_from_a_finished_one(data, tmp_path, stop_after):
    train(pos_config(data, tmp_path / "whole", epochs=4, patience=0))
    first = train(pos_config(data, tmp_path / "run", epochs=2)).result
    assert train(pos_config(data, tmp_path / "run", epochs=2), resume=True).result == first
    longer = pos_config(data, tmp_path / "run", epochs=4)
    assert find_finished(longer) is None
    assert train(longer, resume=True, stop=stop_after(1)).stopped
    assert train(longer, resume=True).result.epochs == 4
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_longer_run_is_not_the_result_of_a_shorter_one(data, tmp_path):
    train(pos_config(data, tmp_path, epochs=2))
    words = mentions(tmp_path, "epochs", 2, 1, "another out")
    with pytest.raises(ConfigError, match=words):
        train(pos_config(data, tmp_path, epochs=1), resume=True)
    with pytest.raises(ConfigError, match=words):
        find_finished(pos_config(data, tmp_path, epochs=1))


@pytest.mark.parametrize("optim", [{"decay": "linear"}, {"warmup": 0.5}], ids=["decay", "warm-up"])
def test_epochs_that_set_the_learning_rate_must_not_change(data, tmp_path, optim, stop_after):
    assert train(pos_config(data, tmp_path, optim=optim), stop=stop_after(2)).stopped
    with pytest.raises(ConfigError, match=mentions("epochs", 2, 3)):
        train(pos_config(data, tmp_path, optim=optim, epochs=3), resume=True)
    assert train(pos_config(data, tmp_path, optim=optim), resume=True).result.finished


def test_a_warm_up_of_steps_lets_a_run_go_on(data, tmp_path):
    train(pos_config(data, tmp_path, epochs=1, optim={"warmup": 3}))
    assert train(pos_config(data, tmp_path, epochs=2, optim={"warmup": 3}), resume=True).result.epochs == 2


def test_a_stopped_run_that_is_wanted_no_longer_is_finished(data, tmp_path, stop_after):
    assert train(pos_config(data, tmp_path, epochs=9), stop=stop_after(7)).stopped
    assert not json.loads((tmp_path / "metrics.json").read_text())["finished"]
    assert train(pos_config(data, tmp_path, epochs=1), resume=True).result.finished
    assert json.loads((tmp_path / "metrics.json").read_text())["finished"]


def test_a_run_that_was_stopped_before_its_first_step_begins_anew(data, tmp_path):
    stop = Stop()
    stop.requested = True
    assert train(pos_config(data, tmp_path), stop=stop).stopped
    assert train(pos_config(data, tmp_path), resume=True).result.finished


def test_a_killed_run_goes_on(data, bilm_folder, tmp_path):
    """SIGKILL at any moment: nothing half written is ever read."""
    changes = {"elmo": {"place": "input", "model": str(bilm_folder)}, "checkpoint_every": 1}
    endless = pos_config(data, tmp_path / "killed", epochs=10_000, **changes)
    code = (
        "import json, sys\n"
        "from torchelmo.config import build_config\n"
        "from torchelmo.tasks import TaskConfig, train\n"
        "train(build_config(TaskConfig, json.loads(sys.argv[1])))\n"
    )
    arguments = [sys.executable, "-c", code, json.dumps(config_to_dict(endless))]
    process = subprocess.Popen(arguments, env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while not checkpoints(tmp_path / "killed") and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    changes["epochs"] = steps_taken(tmp_path / "killed") // 5 + 2
    train(pos_config(data, tmp_path / "killed", **changes), resume=True)
    train(pos_config(data, tmp_path / "whole", **changes))
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    left = [path.name for path in (tmp_path / "killed").rglob(".*")]
    assert left == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 2}, ("seed", 1, 2)),
        ({"optim": {"lr": 0.5}}, ("optim.lr", 0.02, 0.5)),
        ({"model": {"n_layers": 2}}, ("model.n_layers", 1, 2)),
        ({"data": {"column": "xpos"}}, ("data.column", "'upos'", "'xpos'")),
        ({"ema": 0.5}, ("ema", 0.0, 0.5)),
        ({"elmo": {"place": "input"}}, ("elmo.place", "'none'", "'input'")),
    ],
)
def test_a_setting_that_must_not_change_is_named(data, tmp_path, changes, words, stop_after):
    assert train(pos_config(data, tmp_path), stop=stop_after(2)).stopped
    with pytest.raises(ConfigError, match=mentions(*words, "another out")):
        train(pos_config(data, tmp_path, **changes), resume=True)


def test_defaults_that_are_written_out_are_no_change(data, tmp_path, stop_after):
    assert train(pos_config(data, tmp_path), stop=stop_after(2)).stopped
    changes = {"data": {"column": "upos"}, "model": {"head": "bilstm"}, "threads": 1, "elmo": {"memory_mb": 7.0}}
    assert train(pos_config(data, tmp_path, **changes), resume=True).result.finished


@pytest.fixture
def replaceable(bilm_folder, tmp_path):
    """The settings of a run with all kinds of inputs, and how to put another under the name of each."""
    write_pos(tmp_path), write_vectors(tmp_path / "vectors.txt")
    load_folder(bilm_folder).save(tmp_path / "bilm")
    elmo = {"place": "input", "model": str(tmp_path / "bilm")}
    changes = {"words": {"vectors": str(tmp_path / "vectors.txt"), "dim": 0}, "elmo": elmo}
    other = load_folder(bilm_folder)
    with torch.no_grad():
        other.encoder.projection.bias += 1.0
    ways = {
        "train": lambda: (tmp_path / "train.conllu").write_bytes((tmp_path / "dev.conllu").read_bytes()),
        "dev": lambda: (tmp_path / "dev.conllu").write_bytes((tmp_path / "train.conllu").read_bytes()),
        "words.vectors": lambda: write_vectors(tmp_path / "vectors.txt", seed=4),
        "elmo.model": lambda: other.save(tmp_path / "bilm"),
    }
    return changes, ways


@pytest.mark.parametrize("name", ["train", "dev", "words.vectors", "elmo.model"])
def test_another_input_under_the_same_name_is_refused(replaceable, tmp_path, name, stop_after):
    changes, ways = replaceable
    finished, longer = (pos_config(tmp_path, tmp_path / "run", epochs=epochs, **changes) for epochs in (1, 2))
    result = train(finished).result
    assert train(finished, resume=True).result == result
    ways[name]()
    words = mentions(tmp_path / "run", name, "another out")
    for config in (finished, longer):
        with pytest.raises(ConfigError, match=words):
            train(config, resume=True)
    with pytest.raises(ConfigError, match=words):
        find_finished(finished)


def test_the_model_inside_the_package_is_known_by_its_content(data, bilm_folder, tmp_path, monkeypatch):
    load_folder(bilm_folder).save(tmp_path / "inside" / DEFAULT_MODEL)
    monkeypatch.setattr(weights, "PRETRAINED", tmp_path / "inside")
    config = pos_config(data, tmp_path / "run", epochs=1, elmo={"place": "input"})
    train(config)
    other = load_folder(bilm_folder)
    with torch.no_grad():
        other.encoder.projection.bias += 1.0
    other.save(tmp_path / "inside" / DEFAULT_MODEL)
    with pytest.raises(ConfigError, match=mentions(tmp_path / "run", "elmo.model")):
        train(config, resume=True)


def test_without_elmo_the_bilm_does_not_matter(data, tmp_path):
    first = train(pos_config(data, tmp_path, epochs=1, elmo={"model": "no/such/model"})).result
    assert train(pos_config(data, tmp_path, epochs=1, elmo={"model": "no/such/model"}), resume=True).result == first
    (folder,) = checkpoints(tmp_path)
    assert json.loads((folder / "checkpoint.json").read_text())["inputs"].keys() == {"train", "dev"}


def test_settings_of_elmo_do_not_matter_where_it_does_not_enter(data, tmp_path):
    first = train(pos_config(data, tmp_path, elmo={"model": "runs/one"})).result
    assert train(pos_config(data, tmp_path, elmo={"model": "runs/other", "l2": 0.5}), resume=True).result == first


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_checkpoint_is_an_error_in_words(data, tmp_path, name, damage, stop_after):
    assert train(pos_config(data, tmp_path), stop=stop_after(2)).stopped
    path = checkpoints(tmp_path)[0] / name
    path.write_bytes(path.read_bytes()[:40])
    if damage == "gone":
        path.unlink()
    with pytest.raises((WeightsError, FileNotFoundError), match=mentions("step-00000002")):
        train(pos_config(data, tmp_path), resume=True)


@pytest.mark.parametrize("group", ["model", "optimizer", "average"])
@pytest.mark.parametrize("damage", ["missing", "shape", "dtype", "nan"])
def test_tensors_that_do_not_fit_are_refused(data, tmp_path, stop_after, group, damage):
    """Even if somebody gave the file the right checksum."""
    assert train(pos_config(data, tmp_path, ema=0.5), stop=stop_after(2)).stopped
    name = "inputs.words.unknown" + ("/exp_avg" if group == "optimizer" else "")

    def change(tensors):
        tensor = tensors.pop(name)
        if damage != "missing":
            wrong = {"shape": tensor[:1], "dtype": tensor.to(torch.int32), "nan": tensor * torch.nan}
            tensors[name] = wrong[damage].clone()

    forge(checkpoints(tmp_path)[0], group, change)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(WeightsError, match=mentions("step-00000002", name)):
        train(pos_config(data, tmp_path, ema=0.5), resume=True)
    assert (tmp_path / "run.json").read_bytes() == before


def forge(folder, group, change):
    """Change the tensors of a checkpoint and give it the checksums of the result."""
    path = folder / f"{group}.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    forge_card(folder, lambda card: card["files"].update({path.name: content_hash(path)}))


def forge_card(folder, change):
    card = json.loads((folder / "checkpoint.json").read_text())
    change(card)
    card.pop("sha256")
    (folder / "checkpoint.json").write_text(json.dumps({**card, "sha256": _card_hash(card)}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": -1}, ("step", -1)),
        ({"epoch": "1"}, ("epoch", "'1'")),
        ({"best": [1.0]}, ("best", "[1.0]")),
        ({"best": {"f1": 1.0}}, ("accuracy",)),
        ({"mixes": [{"place": 1}]}, ("mixes", "place")),
        ({"steps": 1}, ("'steps'", "Did you mean 'step'")),
    ],
)
def test_progress_that_makes_no_sense_is_refused(data, tmp_path, stop_after, change, words):
    assert train(pos_config(data, tmp_path), stop=stop_after(2)).stopped
    folder = checkpoints(tmp_path)[0]
    forge_card(folder, lambda card: card["progress"].update(change))
    with pytest.raises(WeightsError, match=mentions("step-00000002", *words)):
        train(pos_config(data, tmp_path), resume=True)


def test_a_moved_or_compressed_input_is_the_same_input(replaceable, tmp_path, stop_after):
    changes, _ = replaceable
    assert train(pos_config(tmp_path, tmp_path / "run", **changes), stop=stop_after(2)).stopped
    train_file, vectors, bilm = (tmp_path / name for name in ("moved.conllu", "vectors.txt.gz", "other"))
    (tmp_path / "train.conllu").rename(train_file)
    vectors.write_bytes(gzip.compress((tmp_path / "vectors.txt").read_bytes()))
    (tmp_path / "bilm").rename(bilm)
    changes = merge(changes, {"words": {"vectors": str(vectors)}, "elmo": {"model": str(bilm)}})
    config = pos_config(tmp_path, tmp_path / "run", train=str(train_file), **changes)
    assert train(config, resume=True).result.finished


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"[" * 100_000, b'{"epoch": 1}\n', b""])
def test_a_damaged_log_does_not_stop_a_run(data, tmp_path, damage, stop_after):
    assert train(pos_config(data, tmp_path), stop=stop_after(7)).stopped
    (tmp_path / "epochs.jsonl").write_bytes(damage)
    assert train(pos_config(data, tmp_path), resume=True).result.finished
    (record,) = map(json.loads, (tmp_path / "epochs.jsonl").read_text().splitlines())
    assert record["epoch"] == 2


def test_a_checkpoint_of_another_kind_of_run_is_refused(data, tmp_path, stop_after):
    assert train(pos_config(data, tmp_path), stop=stop_after(2)).stopped
    card = checkpoints(tmp_path)[0] / "checkpoint.json"
    card.write_text(json.dumps({"format": 7}))
    with pytest.raises(WeightsError, match=mentions("step-00000002", "format", 3, 7)):
        train(pos_config(data, tmp_path), resume=True)


def test_a_stopped_run_can_be_used_after_its_first_epoch_only(data, tmp_path, stop_after):
    assert train(pos_config(data, tmp_path), stop=stop_after(3)).stopped
    with pytest.raises(FileNotFoundError, match=mentions(tmp_path / "model.safetensors")):
        load(tmp_path)
    assert train(pos_config(data, tmp_path), resume=True, stop=stop_after(4)).stopped
    assert load(tmp_path).evaluate(data / "dev.conllu").n_examples == 12
