"""torchelmo pretrain and fine-tune: the commands, their messages and exit codes."""

import json
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from facts import mentions
from tiny_runs import sentences, tiny_config, write_data
from torch.optim.optimizer import register_optimizer_step_post_hook

import torchelmo
from torchelmo.config import config_to_dict
from torchelmo.runs.checkpoint import checkpoints

TINY = Path(__file__).parents[2] / "experiments" / "pretrain" / "tiny.toml"


@pytest.fixture
def toml(tmp_path):
    """A tiny configuration as a file."""
    settings = config_to_dict(tiny_config(write_data(tmp_path / "data"), tmp_path / "run", steps=6, log_every=2))
    lines = [
        f"{key} = {json.dumps(value)}"
        for key, value in settings.items()
        if value is not None and key not in ("model", "optim")
    ]
    for table in ("model", "optim"):
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in settings[table].items())]
    (tmp_path / "run.toml").write_text("\n".join(lines))
    return tmp_path / "run.toml"


def test_pretrain_trains_and_says_so(call, toml, tmp_path):
    outcome = call("pretrain", toml, "--set", "steps=8")
    assert outcome.code == 0, outcome.err
    assert re.search(r"(?=.*\bstep 8\b)(?=.*\bperplexity\D*\d+\.\d\d\b)", outcome.out)
    steps = re.findall(
        r"^step (\d)/8\b(?=.*\d tokens/s)(?=.*\bloss \d\.\d+)(?=.*\bperplexity \d+\.\d / \d+\.\d)(?=.*\blr \S+)",
        outcome.err,
        re.M,
    )
    assert steps == ["2", "4", "6", "8"]
    assert torchelmo.load(tmp_path / "run").config.cell_dim == 8
    again = call("pretrain", toml, "--set", "steps=8", "--resume")
    assert again.code == 0
    assert re.search(r"\bstep 8\b", again.out)


def test_a_taken_out_is_an_error_that_names_the_ways_on(call, toml):
    assert call("pretrain", toml).code == 0
    outcome = call("pretrain", toml)
    assert outcome.code == 2
    assert "--resume" in outcome.err
    assert "--overwrite" in outcome.err
    assert call("pretrain", toml, "--overwrite").code == 0
    both = call("pretrain", toml, "--overwrite", "--resume")
    assert both.code == 2
    assert re.search(mentions("--resume", "--overwrite"), both.err)


def test_a_wrong_setting_is_a_wrong_call(call, toml):
    outcome = call("pretrain", toml, "--set", "optim.lrr=1")
    assert outcome.code == 2
    assert re.search(mentions("'lrr'", "Did you mean 'lr'"), outcome.err)


def test_plan_prints_and_leaves_nothing(call, toml, tmp_path):
    outcome = call("pretrain", toml, "--plan")
    assert outcome.code == 0
    for word in ("parameters", "tokens", "steps", "tokens/s", "memory", "hours"):
        assert word in outcome.out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_the_run_with_all_saved(start, toml, tmp_path, number, code):
    arguments = ("pretrain", toml, "--set", "steps=1000000", "--set", "checkpoint_every=1h")
    process = start(*arguments)
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    step = int(re.search(r"\bstep (\d+)\b", out)[1])
    assert re.search(r"\btorchelmo pretrain .*--set steps=1000000 --set checkpoint_every=1h --resume\b", out)
    assert checkpoints(tmp_path / "run")[-1].name == f"step-{step:08d}"


def fine_tuning(call, toml, folder):
    assert call("pretrain", toml).code == 0
    (folder / "text.txt").write_text("\n".join(" ".join(s) for s in sentences(60, seed=9)))
    arguments = ["--out", folder / "tuned", "--pretokenized", "--heldout", "0.3"]
    arguments += ["--set", "batch_size=4", "--set", "epochs=1", "--set", "optim.lr=0.02"]
    return ["fine-tune", folder / "run", folder / "text.txt", *arguments]


def test_fine_tune_tells_the_perplexity_before_and_after(call, toml, tmp_path):
    outcome = call(*fine_tuning(call, toml, tmp_path))
    assert outcome.code == 0, outcome.err
    before, after = re.findall(r"\bperplexity\D*(\d+\.\d+)", outcome.out)
    assert float(after) < float(before)
    assert torchelmo.load(tmp_path / "tuned").vocabulary == torchelmo.load(tmp_path / "run").vocabulary


def test_a_fine_tuning_that_is_stopped_can_be_resumed(call, toml, tmp_path):
    arguments = [*fine_tuning(call, toml, tmp_path), "--set", "epochs=3"]
    handle = register_optimizer_step_post_hook(lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        outcome = call(*arguments)
    finally:
        handle.remove()
    assert outcome.code == 143, outcome.err
    assert "--resume" in outcome.out
    assert not (tmp_path / "tuned" / "config.json").exists()  # it does not look finished
    assert call(*arguments).code == 2
    assert call(*arguments, "--resume").code == 0
    assert call(*arguments, "--resume").code == 0
    assert torchelmo.load(tmp_path / "tuned").vocabulary == torchelmo.load(tmp_path / "run").vocabulary


def test_a_trained_model_gives_the_same_vectors_in_the_compat_module(call, toml, tmp_path):
    """Trained here, saved in the official format, loaded as AllenNLP would."""
    from torchelmo.compat.allennlp import Elmo, batch_to_ids

    assert call("pretrain", toml, "--set", "model.max_characters=50", "--set", f"data={write_wide(tmp_path)}").code == 0
    bilm = torchelmo.load(tmp_path / "run")
    options, weights = tmp_path / "official" / "options.json", tmp_path / "official" / "weights.hdf5"
    torchelmo.save_official(bilm, options, weights)
    theirs = Elmo(str(options), str(weights), 1, dropout=0.0)
    texts = [["ann", "sees", "the", "dog", "."], ["who", "?"]]
    ours = torchelmo.Elmo(bilm, dropout=0.0)
    with torch.no_grad():
        expected, mask = ours(ours.encode(texts))
        found = theirs(batch_to_ids(texts))
    torch.testing.assert_close(found["elmo_representations"][0], expected[0], rtol=1e-5, atol=1e-6)
    assert found["mask"].bool().tolist() == mask.tolist()


def write_wide(folder):
    from torchelmo.lm.corpus import write_corpus

    write_corpus(folder / "wide", sentences(100), vocab_size=100)
    return folder / "wide"


def test_the_tiny_experiment_trains_on_any_prepared_text(call, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(" ".join(sentence) for sentence in sentences(300)))
    data = tmp_path / "data"
    assert call("prepare", tmp_path / "text.txt", "--out", data, "--vocab-size", 50, "--pretokenized").code == 0
    changes = [f"data={data}", f"out={tmp_path / 'run'}", "steps=5", "tensorboard=false"]
    outcome = call("pretrain", TINY, *(part for change in changes for part in ("--set", change)))
    assert outcome.code == 0, outcome.err
